"""Modules of Haiku as their users make them: transformed, each a function of its parameters and state."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import jax
import pytest

from tests.lifting.frameworks.judging import Module, array, cases, judged, whole

hk: Any = pytest.importorskip("haiku")


def _applied(make: Callable[[], Callable[..., Any]], *inputs: Any) -> Callable[[], Module]:
    def made() -> Module:
        def run(*xs: Any) -> Any:
            return make()(*xs)

        pure = hk.transform_with_state(run)
        key = jax.random.key(0)
        params, state = pure.init(key, *inputs)
        return Module(lambda given, *xs: pure.apply(*given, key, *xs), (params, state), inputs)

    return made


def _attended(x: Any) -> Any:
    return hk.MultiHeadAttention(4, 4, w_init=hk.initializers.VarianceScaling())(x, x, x)


def _lstm(x: Any) -> Any:
    core = hk.LSTM(8)
    return hk.dynamic_unroll(core, x, core.initial_state(4), time_major=False)


def _gru(x: Any) -> Any:
    core = hk.GRU(8)
    return core(x, core.initial_state(4))


MODULES: Final[dict[str, Callable[[], Module]]] = {
    "Linear": _applied(lambda: hk.Linear(8), array(4, 16)),
    "MLP": _applied(lambda: hk.nets.MLP([32, 8]), array(4, 16)),
    "Conv2D": _applied(lambda: hk.Conv2D(8, 3), array(2, 6, 6, 4)),
    "BatchNorm": _applied(lambda: functools.partial(hk.BatchNorm(True, True, 0.9), is_training=True), array(8, 8)),
    "LayerNorm": _applied(lambda: hk.LayerNorm(-1, True, True), array(4, 16)),
    "RMSNorm": _applied(lambda: hk.RMSNorm(-1), array(4, 16)),
    "GroupNorm": _applied(lambda: hk.GroupNorm(4), array(4, 3, 16)),
    "MultiHeadAttention": _applied(lambda: _attended, array(4, 6, 16)),
    "GRU": _applied(lambda: _gru, array(4, 16)),
    "LSTM": _applied(lambda: _lstm, array(4, 5, 16)),
    "Embed": _applied(lambda: hk.Embed(16, 8), whole(16, 4, 3)),
    "dropout": _applied(lambda: functools.partial(hk.dropout, hk.next_rng_key(), 0.5), array(4, 16)),
}

#: Those that are looked at each time.
DAILY: Final = ["LayerNorm"]


@pytest.mark.parametrize(("name", "layout"), cases(MODULES, DAILY))
def test_a_module_of_haiku_is_that_of_one_device(name: str, layout: str) -> None:
    judged(MODULES[name](), layout)
