"""Modules of Flax linen as their users make them: each a function of its variables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
import pytest

from tests.lifting.frameworks.judging import Module, array, cases, judged, whole

nn: Any = pytest.importorskip("flax.linen")


def _applied(make: Callable[[], Any], *inputs: Any, rngs: tuple[str, ...] = (), **options: Any) -> Callable[[], Module]:
    def made() -> Module:
        module = make()
        keys = {name: jax.random.key(i) for i, name in enumerate(("params", *rngs))}
        variables = module.init(keys, *inputs, **options)
        mutable = [name for name in variables if name != "params"]
        used = {name: keys[name] for name in rngs}

        def apply(variables: Any, *xs: Any) -> Any:
            return module.apply(variables, *xs, mutable=mutable, rngs=used, **options)

        return Module(apply, variables, inputs)

    return made


def _with_cache() -> Module:
    module = nn.MultiHeadDotProductAttention(4, decode=True)
    variables = module.init(jax.random.key(0), jnp.ones((4, 8, 16)))

    def apply(variables: Any, x: Any) -> Any:
        first, changed = module.apply(variables, x[:, :1], mutable=["cache"])
        second, changed = module.apply({**variables, **changed}, x[:, 1:], mutable=["cache"])
        return first, second, changed

    return Module(apply, variables, (array(4, 2, 16),))


def _cell(make: Callable[[], Any]) -> Callable[[], Module]:
    def made() -> Module:
        module, x = make(), array(4, 16)
        start = module.initialize_carry(jax.random.key(1), x.shape)
        variables = module.init(jax.random.key(0), start, x)
        return Module(lambda variables, x: module.apply(variables, start, x), variables, (x,))

    return made


class Perceptron(nn.Module):  # type: ignore[misc]
    """Two layers, the second of which is recomputed."""

    @nn.compact  # type: ignore[untyped-decorator]
    def __call__(self, x: Any) -> Any:
        return nn.remat(nn.Dense)(8)(nn.gelu(nn.Dense(32)(x)))


MODULES: Final[dict[str, Callable[[], Module]]] = {
    "Dense": _applied(lambda: nn.Dense(8), array(4, 16)),
    "DenseGeneral": _applied(lambda: nn.DenseGeneral((8, 2), axis=(-2, -1)), array(4, 4, 4)),
    "Conv": _applied(lambda: nn.Conv(8, (3, 3)), array(2, 6, 6, 4)),
    "ConvTranspose": _applied(lambda: nn.ConvTranspose(8, (3, 3), strides=(2, 2)), array(2, 4, 4, 4)),
    "BatchNorm": _applied(lambda: nn.BatchNorm(use_running_average=False), array(8, 8)),
    "LayerNorm": _applied(nn.LayerNorm, array(4, 16)),
    "RMSNorm": _applied(nn.RMSNorm, array(4, 16)),
    "GroupNorm": _applied(lambda: nn.GroupNorm(num_groups=4), array(4, 3, 16)),
    "MultiHeadDotProductAttention": _applied(lambda: nn.MultiHeadDotProductAttention(4), array(4, 6, 16)),
    "MultiHeadDotProductAttention with a cache": _with_cache,
    "LSTMCell": _cell(lambda: nn.LSTMCell(8)),
    "OptimizedLSTMCell": _cell(lambda: nn.OptimizedLSTMCell(8)),
    "GRUCell": _cell(lambda: nn.GRUCell(8)),
    "RNN": _applied(lambda: nn.RNN(nn.GRUCell(8)), array(4, 5, 8)),
    "Embed": _applied(lambda: nn.Embed(16, 8), whole(16, 4, 3)),
    "Dropout": _applied(lambda: nn.Dropout(0.5, deterministic=False), array(4, 16), rngs=("dropout",)),
    "max_pool": lambda: Module(lambda _, x: nn.max_pool(x, (2, 2), (2, 2)), {}, (array(2, 6, 6, 4),)),
    "avg_pool": lambda: Module(lambda _, x: nn.avg_pool(x, (2, 2), (2, 2)), {}, (array(2, 6, 6, 4),)),
    "remat": _applied(Perceptron, array(4, 16)),
}

#: Those that are looked at each time.
DAILY: Final = ["Dense"]


@pytest.mark.parametrize(("name", "layout"), cases(MODULES, DAILY))
def test_a_module_of_linen_is_that_of_one_device(name: str, layout: str) -> None:
    judged(MODULES[name](), layout)
