"""optax as it is, lifted: state typed like its parameters, and three steps that are those of one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest

import shtypes as sh
from tests.denotation import denoted
from tests.tolerance import assert_within, computed

MESH: Final = {"dp": 2, "tp": 4}
SHAPES: Final = {"embed": (16, 8), "up": (8, 16), "bias": (16,), "down": (16, 8), "scale": (8,)}
#: Weights over ``tp``, as they are for a tensor parallel layer; and over ``dp`` as well, as for ZeRO.
LAYOUTS: Final = {
    "tensor": {"embed": "[_, _@tp]", "up": "[_, _@tp]", "bias": "[_@tp]", "down": "[_@tp, _]", "scale": "[_]"},
    "zero": {
        "embed": "[_@dp, _@tp]",
        "up": "[_@dp, _@tp]",
        "bias": "[_@(tp,dp)]",
        "down": "[_@tp, _@dp]",
        "scale": "[_@dp]",
    },
}
RATE: Final = 0.1


def _only_matrices(params: Any) -> Any:
    return jax.tree.map(lambda x: x.ndim > 1, params)


def _by_shape(params: Any) -> Any:
    return jax.tree.map(lambda x: "matrix" if x.ndim > 1 else "vector", params)


#: Whose state is typed like the parameters and whose steps are judged.
OPTIMIZERS: Final[dict[str, Callable[[], Any]]] = {
    "sgd": lambda: optax.sgd(RATE),
    "momentum": lambda: optax.sgd(RATE, momentum=0.9),
    "nesterov": lambda: optax.sgd(RATE, momentum=0.9, nesterov=True),
    "adam": lambda: optax.adam(RATE),
    "adamw": lambda: optax.adamw(RATE),
    "adam of bf16 moments": lambda: optax.adam(RATE, mu_dtype=jnp.bfloat16),
    "nadam": lambda: optax.nadam(RATE),
    "radam": lambda: optax.radam(RATE),
    "adabelief": lambda: optax.adabelief(RATE),
    "amsgrad": lambda: optax.amsgrad(RATE),
    "adamax": lambda: optax.adamax(RATE),
    "adan": lambda: optax.adan(RATE),
    "adadelta": lambda: optax.adadelta(RATE),
    "yogi": lambda: optax.yogi(RATE),
    "lion": lambda: optax.lion(RATE),
    "rmsprop": lambda: optax.rmsprop(RATE, momentum=0.9, centered=True),
    "adagrad": lambda: optax.adagrad(RATE),
    "lamb": lambda: optax.lamb(RATE),
    "lars": lambda: optax.lars(RATE),
    "fromage": lambda: optax.fromage(RATE),
    "novograd": lambda: optax.novograd(RATE),
    "adafactor": lambda: optax.adafactor(RATE, min_dim_size_to_factor=4),
    "sm3": lambda: optax.sm3(RATE),
    "rprop": lambda: optax.rprop(RATE),
    "sign_sgd": lambda: optax.sign_sgd(RATE),
    "optimistic": lambda: optax.optimistic_gradient_descent(RATE),
    "optimistic_adam": lambda: optax.optimistic_adam_v2(RATE),
    "muon": lambda: optax.contrib.muon(RATE),
    "ademamix": lambda: optax.contrib.ademamix(RATE),
    "schedule_free": lambda: optax.contrib.schedule_free_adamw(RATE, warmup_steps=2),
    "prodigy": lambda: optax.contrib.prodigy(RATE),
    "dog": lambda: optax.contrib.dog(RATE),
    "clipped": lambda: optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(RATE)),
    "clipped by blocks": lambda: optax.chain(optax.adaptive_grad_clip(0.1), optax.clip(0.2), optax.sgd(RATE)),
    "scheduled": lambda: optax.adamw(optax.warmup_cosine_decay_schedule(0.0, RATE, 2, 5)),
    "scheduled in pieces": lambda: optax.sgd(optax.piecewise_constant_schedule(RATE, {1: 0.5, 2: 0.1})),
    "injected": lambda: optax.inject_hyperparams(optax.adam)(optax.linear_schedule(RATE, 0.0, 4)),
    "accumulated": lambda: optax.MultiSteps(optax.adam(RATE), 2),
    "averaged": lambda: optax.chain(optax.sgd(RATE), optax.ema(0.9)),
    "masked": lambda: optax.masked(optax.adamw(RATE), _only_matrices),
    "partitioned": lambda: optax.multi_transform({"matrix": optax.adam(RATE), "vector": optax.sgd(RATE)}, _by_shape),
    "finite": lambda: optax.apply_if_finite(optax.adam(RATE), 2),
    "decayed": lambda: optax.chain(optax.add_decayed_weights(0.1, mask=_only_matrices), optax.sgd(RATE)),
    "centralized": lambda: optax.chain(optax.centralize(), optax.zero_nans(), optax.sgd(RATE)),
    "lbfgs": lambda: optax.lbfgs(RATE, memory_size=2, linesearch=None),
}


def _arrays(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}


def _typed(arrays: dict[str, Any], layout: str) -> dict[str, Any]:
    return {name: sh.array(x, LAYOUTS[layout][name]) for name, x in arrays.items()}


def _value(x: Any) -> Any:
    return denoted(x) if isinstance(x, sh.Array) else np.asarray(x)


def _check_types(state: Any, params: dict[str, Any], *, lost: bool = False) -> None:
    """A leaf of a state that has the shape of its parameter has its type; no other is whole on each device."""
    for path, x in jax.tree_util.tree_leaves_with_path(state):
        where = jax.tree_util.keystr(path)
        param = next((p for name, p in params.items() if f"[{name!r}]" in where), None)
        if isinstance(x, sh.Array) and param is not None and x.type.shape == param.type.shape:
            assert (x.type.dims, x.type.states) == (param.type.dims, param.type.states), f"{where}: {x.type}"
        assert lost or isinstance(x, sh.Array) or np.size(x) <= 8, f"{where} is plain: {x.dtype}{list(x.shape)}"


def _settled(before: Any, after: Any) -> None:
    """A step changes no type; what came plain may come back typed."""
    for x, y in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        assert not isinstance(x, sh.Array) or (isinstance(y, sh.Array) and x.type == y.type), f"{x} came back as {y}"


def judged(opt: Any, layout: str, *, lost: bool = False) -> None:
    """Compares an optimizer, lifted, with itself on one device: the types of its state, and three steps."""
    plain, grads = _arrays(0), [_arrays(1 + i) for i in range(3)]

    def step(grads: Any, state: Any, params: Any) -> Any:
        updates, state = opt.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    def steps(params: Any, *grads: Any) -> Any:
        state = opt.init(params)
        for g in grads:
            params, state = step(g, state, params)
        return params, state

    wanted, errors = computed(steps, plain, *grads)
    with sh.use_mesh(sh.make_mesh(MESH)):
        params = _typed(plain, layout)
        state = sh.implicit_comm(sh.lift(opt.init))(params)
        _check_types(state, params, lost=lost)
        update = sh.jit(sh.implicit_comm(sh.lift(step)))
        for g in grads:
            before = params, state
            params, state = jax.block_until_ready(update(_typed(g, layout), state, params))
            _settled(before, (params, state))
            _check_types(state, params)
        for y, right, most in zip(*map(jax.tree.leaves, ((params, state), wanted, errors)), strict=True):
            assert_within(_value(y), right, most, layout)


#: Whose ``init`` makes arrays of a shape that it computes: plain, and whole until the first step has typed them.
LOST: Final = ["adafactor", "sm3", "lbfgs"]
#: Those that are looked at each time.
DAILY: Final = ["adamw", "lion", "clipped"]


@pytest.mark.one_in(13)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", [n if n in DAILY else pytest.param(n, marks=pytest.mark.nightly) for n in OPTIMIZERS])
def test_an_optimizer_is_that_of_one_device(name: str, layout: str) -> None:
    judged(OPTIMIZERS[name](), layout, lost=name in LOST)
