"""Modules of Equinox as their users make them: each a function of its arrays, mapped over the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
import pytest

import shtypes as sh
from tests.lifting.frameworks.judging import Module, array, cases, judged, whole

eqx: Any = pytest.importorskip("equinox")


def _applied(module: Any, call: Callable[..., Any], *inputs: Any) -> Module:
    arrays, static = eqx.partition(module, eqx.is_array)
    return Module(lambda arrays, *xs: call(eqx.combine(arrays, static), *xs), arrays, inputs)


def _mapped(make: Callable[[Any], Any], *inputs: Any) -> Callable[[], Module]:
    return lambda: _applied(make(jax.random.key(0)), lambda m, *xs: jax.vmap(m)(*xs), *inputs)


def _of_tokens(make: Callable[[Any], Any], *inputs: Any) -> Callable[[], Module]:
    return lambda: _applied(make(jax.random.key(0)), lambda m, x: jax.vmap(jax.vmap(m))(x), *inputs)


def _attended(m: Any, x: Any) -> Any:
    mask = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
    return jax.vmap(lambda x: m(x, x, x, mask=mask))(x)


def _batch_norm() -> Module:
    module, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(8, axis_name="batch", mode="batch")
    arrays, static = eqx.partition(module, eqx.is_array)

    def apply(given: Any, x: Any) -> Any:
        m = eqx.combine(given[0], static)
        y, state = jax.vmap(m, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(x, given[1])
        return y, state

    return Module(apply, (arrays, state), (array(8, 8),))


def _gru(m: Any, x: Any) -> Any:
    def step(h: Any, x: Any) -> Any:
        h = m(x, h)
        return h, h

    return jax.vmap(lambda x: jax.lax.scan(step, jnp.zeros(8), x)[1])(x)


def _lstm(m: Any, x: Any) -> Any:
    def step(carry: Any, x: Any) -> Any:
        carry = m(x, carry)
        return carry, carry[0]

    return jax.vmap(lambda x: jax.lax.scan(step, (jnp.zeros(8), jnp.zeros(8)), x)[1])(x)


def _dropped(m: Any, x: Any) -> Any:
    return jax.vmap(lambda x, key: m(x, key=key))(x, jax.random.split(jax.random.key(0), x.shape[0]))


n: Any = eqx.nn
MODULES: Final[dict[str, Callable[[], Module]]] = {
    "Linear": _mapped(lambda k: n.Linear(16, 8, key=k), array(4, 16)),
    "MLP": _mapped(lambda k: n.MLP(16, 8, 32, 2, key=k), array(4, 16)),
    "Conv1d": _mapped(lambda k: n.Conv1d(4, 8, 3, key=k), array(4, 4, 9)),
    "Conv2d": _mapped(lambda k: n.Conv2d(4, 8, 3, padding=1, key=k), array(2, 4, 6, 6)),
    "ConvTranspose2d": _mapped(lambda k: n.ConvTranspose2d(4, 8, 3, stride=2, key=k), array(2, 4, 4, 4)),
    "MaxPool2d": _mapped(lambda k: n.MaxPool2d(2, 2), array(2, 4, 6, 6)),
    "AvgPool1d": _mapped(lambda k: n.AvgPool1d(2, 2), array(2, 4, 6)),
    "AdaptiveAvgPool2d": _mapped(lambda k: n.AdaptiveAvgPool2d(2), array(2, 4, 6, 6)),
    "LayerNorm": _mapped(lambda k: n.LayerNorm(16), array(4, 16)),
    "RMSNorm": _mapped(lambda k: n.RMSNorm(16), array(4, 16)),
    "GroupNorm": _mapped(lambda k: n.GroupNorm(4, 16), array(4, 16, 3)),
    "BatchNorm": _batch_norm,
    "MultiheadAttention": lambda: _applied(
        n.MultiheadAttention(4, 16, key=jax.random.key(0)), _attended, array(4, 6, 16)
    ),
    "GRUCell": lambda: _applied(n.GRUCell(16, 8, key=jax.random.key(0)), _gru, array(4, 5, 16)),
    "LSTMCell": lambda: _applied(n.LSTMCell(16, 8, key=jax.random.key(0)), _lstm, array(4, 5, 16)),
    "Embedding": _of_tokens(lambda k: n.Embedding(16, 8, key=k), whole(16, 4, 3)),
    "Dropout": lambda: _applied(n.Dropout(0.5), _dropped, array(4, 16)),
    "PReLU": _mapped(lambda k: n.PReLU(), array(4, 16)),
    "RotaryPositionalEmbedding": _mapped(lambda k: n.RotaryPositionalEmbedding(8), array(4, 6, 8)),
    "Sequential": _mapped(
        lambda k: n.Sequential([n.Linear(16, 32, key=k), n.Lambda(jax.nn.relu), n.Linear(32, 8, key=k)]), array(4, 16)
    ),
    "WeightNorm": _mapped(lambda k: n.WeightNorm(n.Linear(16, 8, key=k)), array(4, 16)),
}

#: Those that are looked at each time.
DAILY: Final = ["MLP"]


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "layout"), cases(MODULES, DAILY))
def test_a_module_of_equinox_is_that_of_one_device(name: str, layout: str) -> None:
    judged(MODULES[name](), layout)


def test_what_a_plain_carry_makes_is_refused_in_words() -> None:
    """The gates of a cell are split where they are sharded; in the first step they are of a plain carry, too."""
    arrays, static = eqx.partition(eqx.nn.GRUCell(8, 16, key=jax.random.key(0)), eqx.is_array)

    def states(arrays: Any, x: Any) -> Any:
        cell = eqx.combine(arrays, static)
        return jax.vmap(lambda x: jax.lax.scan(lambda h, t: (cell(t, h), None), jnp.zeros(16), x)[0])(x)

    with sh.use_mesh(sh.abstract_mesh({"x": 4, "y": 2})):
        typed = jax.tree.map(lambda a: sh.abstract_array(f"f32{[*a.shape]}"), arrays)
        typed = eqx.tree_at(lambda m: m.weight_hh, typed, sh.abstract_array("f32[48@y, 16]"))
        with pytest.raises(sh.ShardingTypeError, match="`split` acts along dim 0") as refused:
            jax.eval_shape(sh.lift(states), typed, sh.abstract_array("f32[8@x, 6, 8]"))
        assert "sh.implicit_comm()" in str(refused.value)
