"""Modules of Flax NNX as their users make them: each a function of its state, which comes back changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import jax.numpy as jnp
import pytest

from tests.lifting.frameworks.judging import Module, array, cases, judged, whole

nnx: Any = pytest.importorskip("flax.nnx")


def _applied(module: Any, call: Callable[..., Any], *inputs: Any) -> Module:
    graph, state = nnx.split(module)

    def apply(state: Any, *xs: Any) -> Any:
        mine = nnx.merge(graph, state)
        y = call(mine, *xs)
        return y, nnx.split(mine)[1]

    return Module(apply, state, inputs)


def _called(make: Callable[[Any], Any], *inputs: Any, **options: Any) -> Callable[[], Module]:
    return lambda: _applied(make(nnx.Rngs(0)), lambda m, *xs: m(*xs, **options), *inputs)


def _with_cache() -> Module:
    module = nnx.MultiHeadAttention(4, 16, decode=True, rngs=nnx.Rngs(0))
    module.init_cache((4, 8, 16))

    def two_steps(m: Any, x: Any) -> Any:
        return jnp.concatenate([m(x[:, :1]), m(x[:, 1:])], 1)

    return _applied(module, two_steps, array(4, 2, 16))


def _causal(m: Any, x: Any) -> Any:
    return m(x, mask=nnx.make_causal_mask(jnp.ones(x.shape[:2])))


def _cell(make: Callable[..., Any]) -> Callable[[], Module]:
    def made() -> Module:
        def run(m: Any, x: Any) -> Any:
            carry, _ = m(m.initialize_carry(x.shape, nnx.Rngs(1)), x)
            return m(carry, x)

        return _applied(make(16, 8, rngs=nnx.Rngs(0)), run, array(4, 16))

    return made


def _recurrent(m: Any, x: Any) -> Any:
    return m(x)


MODULES: Final[dict[str, Callable[[], Module]]] = {
    "Linear": _called(lambda r: nnx.Linear(16, 8, rngs=r), array(4, 16)),
    "LinearGeneral": _called(lambda r: nnx.LinearGeneral((4, 4), (8, 2), axis=(-2, -1), rngs=r), array(4, 4, 4)),
    "Einsum": _called(lambda r: nnx.Einsum("nta,hab->nthb", (4, 8, 4), (4, 4), rngs=r), array(4, 3, 8)),
    "Conv": _called(lambda r: nnx.Conv(4, 8, (3, 3), rngs=r), array(2, 6, 6, 4)),
    "Conv strided": _called(lambda r: nnx.Conv(4, 8, (3,), strides=2, padding="VALID", rngs=r), array(2, 9, 4)),
    "Conv of groups": _called(lambda r: nnx.Conv(8, 8, (3,), feature_group_count=8, rngs=r), array(2, 6, 8)),
    "ConvTranspose": _called(lambda r: nnx.ConvTranspose(4, 8, (3, 3), strides=(2, 2), rngs=r), array(2, 4, 4, 4)),
    "BatchNorm": _called(lambda r: nnx.BatchNorm(8, rngs=r), array(8, 8)),
    "BatchNorm of averages": _called(lambda r: nnx.BatchNorm(8, use_running_average=True, rngs=r), array(8, 8)),
    "BatchNorm of images": _called(lambda r: nnx.BatchNorm(8, rngs=r), array(4, 3, 3, 8)),
    "LayerNorm": _called(lambda r: nnx.LayerNorm(16, rngs=r), array(4, 16)),
    "RMSNorm": _called(lambda r: nnx.RMSNorm(16, rngs=r), array(4, 16)),
    "GroupNorm": _called(lambda r: nnx.GroupNorm(16, num_groups=4, rngs=r), array(4, 3, 16)),
    "InstanceNorm": _called(lambda r: nnx.InstanceNorm(8, rngs=r), array(4, 5, 8)),
    "MultiHeadAttention": _called(lambda r: nnx.MultiHeadAttention(4, 16, decode=False, rngs=r), array(4, 6, 16)),
    "MultiHeadAttention causal": lambda: _applied(
        nnx.MultiHeadAttention(4, 16, decode=False, rngs=nnx.Rngs(0)), _causal, array(4, 6, 16)
    ),
    "MultiHeadAttention with a cache": _with_cache,
    "LSTMCell": _cell(nnx.LSTMCell),
    "OptimizedLSTMCell": _cell(nnx.OptimizedLSTMCell),
    "GRUCell": _cell(nnx.GRUCell),
    "SimpleCell": _cell(nnx.SimpleCell),
    "RNN": lambda: _applied(nnx.RNN(nnx.LSTMCell(8, 8, rngs=nnx.Rngs(0))), _recurrent, array(4, 5, 8)),
    "Embed": _called(lambda r: nnx.Embed(16, 8, rngs=r), whole(16, 4, 3)),
    "Embed attended": lambda: _applied(nnx.Embed(16, 8, rngs=nnx.Rngs(0)), lambda m, x: m.attend(x), array(4, 3, 8)),
    "Dropout": _called(lambda r: nnx.Dropout(0.5, rngs=r), array(4, 16)),
    "PReLU": _called(lambda r: nnx.PReLU(), array(4, 16)),
    "LoRA": _called(lambda r: nnx.LoRA(16, 4, 8, rngs=r), array(4, 16)),
    "Sequential": _called(
        lambda r: nnx.Sequential(nnx.Linear(16, 32, rngs=r), nnx.gelu, nnx.Linear(32, 8, rngs=r)), array(4, 16)
    ),
    "SpectralNorm": _called(
        lambda r: nnx.SpectralNorm(nnx.Linear(8, 8, rngs=r), rngs=r), array(4, 8), update_stats=True
    ),
    "WeightNorm": _called(lambda r: nnx.WeightNorm(nnx.Linear(8, 8, rngs=r), rngs=r), array(4, 8)),
}

#: Those that are looked at each time.
DAILY: Final = ["Linear"]


@pytest.mark.parametrize(("name", "layout"), cases(MODULES, DAILY))
def test_a_module_of_nnx_is_that_of_one_device(name: str, layout: str) -> None:
    judged(MODULES[name](), layout)
