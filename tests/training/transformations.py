"""Every transformation of optax, and chains of them, as the tests of `sh.optim.lift` build them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from optax import contrib

SIZES: Final = {"bias": (16,), "down": (32, 16), "scale": (32,), "up": (16, 32)}
MATRICES: Final = {name: len(size) > 1 for name, size in SIZES.items()}
GROUPS: Final = {name: "matrix" if of else "vector" for name, of in MATRICES.items()}
#: How many examples the gradients have that are those of single examples.
EXAMPLES: Final = 4


def weights(k: int = 0, *, lead: tuple[int, ...] = ()) -> dict[str, Any]:
    """Parameters, or gradients, of step k."""
    rng = np.random.default_rng(k)
    return {name: rng.normal(size=(*lead, *size)).astype(np.float32) for name, size in SIZES.items()}


def loss(params: Any) -> Any:
    """What the steps minimize whose transformation asks for a loss."""
    terms = jax.tree.map(lambda p, w: jnp.sum(jnp.square(p - w) + jnp.sin(p)), params, weights(9))
    return sum(jax.tree.leaves(terms)) / 100


class Case(NamedTuple):
    """A transformation, and what its update takes.

    Attributes:
        make: Makes it.
        extra: The other arguments of an update, from the value of the loss and its gradients; these are then the
            gradients of the step.
        lead: The dims that its gradients have in front of those of the parameters.
        params: What it calls parameters, from the parameters.
    """

    make: Callable[[], Any]
    extra: Callable[[Any, Any], dict[str, Any]] | None = None
    lead: tuple[int, ...] = ()
    params: Callable[[Any], Any] = lambda params: params


def _line_search(value: Any, grads: Any) -> dict[str, Any]:
    return {"value": value, "grad": grads, "value_fn": loss}


def _with_value(value: Any, grads: Any) -> dict[str, Any]:
    return {"value": value}


def _with_loss(value: Any, grads: Any) -> dict[str, Any]:
    return {"obj_fn": loss}


def _with_gradients(value: Any, grads: Any) -> dict[str, Any]:
    return {"grad_fn": lambda params, _: jax.grad(loss)(params)}


def _even(step: Any, **_: Any) -> Any:
    return step % 2 == 0


def _norm(updates: Any, **_: Any) -> Any:
    return optax.tree.norm(updates)


def _ascent() -> Any:
    return optax.chain(contrib.normalize(), optax.sgd(0.05))


def _dims(params: Any) -> Any:
    return jax.tree.map(lambda _: contrib.MuonDimensionNumbers(), params)


def _skipping(**how: Any) -> Any:
    return optax.MultiSteps(optax.adam(1e-2), 2, **how).gradient_transformation()


def _largest(updates: Any, step: Any, params: Any) -> Any:
    return optax.skip_large_updates(updates, step, params, max_squared_norm=1e3)


_RATE: Final = optax.warmup_cosine_decay_schedule(0.0, 1e-1, 2, 10)
#: Those that are made with a learning rate alone, or with nothing.
_OF_A_RATE: Final = {
    optax: (
        "adabelief adadelta adagrad adam adamax adamaxw adamw adan amsgrad fromage lamb lars lion nadam nadamw "
        "novograd optimistic_adam optimistic_adam_v2 optimistic_gradient_descent radam rmsprop rprop sgd sign_sgd "
        "signum sm3 yogi scale_by_rprop add_decayed_weights clip_by_block_rms clip scale"
    ),
    contrib: (
        "acprop ademamix adopt dadapt_adamw dog galore madgrad scale_by_madgrad muon prodigy schedule_free_sgd "
        "simplified_ademamix"
    ),
}
_OF_NOTHING: Final = {
    optax: "centralize identity keep_params_nonnegative normalize_by_update_norm set_to_zero zero_nans",
    contrib: "cocob dowg normalize",
}


def _made(names: dict[Any, str], *args: Any) -> dict[str, Case]:
    pairs = ((name, getattr(space, name)) for space, of in names.items() for name in of.split())
    return {name: Case(functools.partial(fn, *args)) for name, fn in pairs}


#: The parts that optimizers are made of, which all have defaults.
_PARTS: Final = {
    name: Case(getattr(space, name))
    for space in (optax, contrib)
    for name in sorted(dir(space))
    if name.startswith("scale_by_")
    and all(p.default is not p.empty for p in inspect.signature(getattr(space, name)).parameters.values())
}
TRANSFORMATIONS: Final[dict[str, Case]] = {
    **_made(_OF_A_RATE, 1e-2),
    **_made(_OF_NOTHING),
    **_PARTS,
    "scale_by_backtracking_linesearch": Case(
        lambda: optax.chain(optax.sgd(1.0), optax.scale_by_backtracking_linesearch(3)), _line_search
    ),
    "scale_by_galore": Case(lambda: contrib.scale_by_galore(rank=4)),
    "scale_by_learning_rate": Case(lambda: optax.scale_by_learning_rate(_RATE)),
    "scale_by_muon": Case(lambda: optax.masked(contrib.scale_by_muon(weight_dimension_numbers=_dims), MATRICES)),
    "scale_by_polyak": Case(optax.scale_by_polyak, _with_value),
    "scale_by_schedule": Case(lambda: optax.scale_by_schedule(_RATE)),
    "scale_by_zoom_linesearch": Case(
        lambda: optax.chain(optax.sgd(1.0), optax.scale_by_zoom_linesearch(3)), _line_search
    ),
    "scale_by_factored_rms": Case(lambda: optax.scale_by_factored_rms(min_dim_size_to_factor=8)),
    "adafactor": Case(lambda: optax.adafactor(1e-2, min_dim_size_to_factor=8, momentum=0.9)),
    "adaptive_grad_clip": Case(lambda: optax.adaptive_grad_clip(0.1)),
    "add_noise": Case(lambda: optax.add_noise(0.1, 0.5, jax.random.key(0))),
    "apply_every": Case(lambda: optax.apply_every(2)),
    "apply_if_finite": Case(lambda: optax.apply_if_finite(optax.adam(1e-2), 3)),
    "chain": Case(
        lambda: optax.chain(
            *(optax.zero_nans(), optax.clip_by_global_norm(0.5), optax.scale_by_adam()),
            *(optax.add_decayed_weights(1e-2, MATRICES), optax.scale_by_learning_rate(_RATE)),
        )
    ),
    "clip_by_global_norm": Case(lambda: optax.clip_by_global_norm(0.5)),
    "conditionally_mask": Case(lambda: optax.conditionally_mask(optax.adam(1e-2), _even)),
    "conditionally_transform": Case(lambda: optax.conditionally_transform(optax.adam(1e-2), _even)),
    "differentially_private_aggregate": Case(
        lambda: contrib.differentially_private_aggregate(1.0, 0.1, jax.random.key(0)), lead=(EXAMPLES,)
    ),
    "dpsgd": Case(lambda: contrib.dpsgd(1e-2, 1.0, 0.1, 0), lead=(EXAMPLES,)),
    "ema": Case(lambda: optax.ema(0.9)),
    "ema in 16 bits": Case(lambda: optax.ema(0.9, accumulator_dtype=jnp.bfloat16)),
    "flatten": Case(lambda: optax.flatten(optax.adam(1e-2))),
    "freeze": Case(lambda: optax.freeze(MATRICES)),
    "inject_hyperparams": Case(lambda: optax.inject_hyperparams(optax.adamw)(_RATE)),
    "inject_hyperparams of a number": Case(lambda: optax.inject_hyperparams(optax.adamw)(1e-2)),
    "inject_stateful_hyperparams": Case(lambda: optax.inject_stateful_hyperparams(optax.adamw)(_RATE)),
    "lbfgs": Case(lambda: optax.lbfgs(memory_size=3, linesearch=optax.scale_by_zoom_linesearch(3)), _line_search),
    "lbfgs without a line search": Case(lambda: optax.lbfgs(1e-2, memory_size=3, linesearch=None)),
    "lookahead": Case(
        lambda: optax.lookahead(optax.sgd(1e-2), 2, 0.5), params=lambda params: optax.LookaheadParams(params, params)
    ),
    "masked": Case(lambda: optax.masked(optax.adam(1e-2), MATRICES)),
    "masked by a function": Case(
        lambda: optax.masked(optax.adam(1e-2), lambda p: jax.tree.map(lambda x: x.ndim > 1, p))
    ),
    "measure_with_ema": Case(lambda: optax.monitor({"norm": optax.measure_with_ema(_norm, 0.9)})),
    "mechanize": Case(lambda: contrib.mechanize(optax.adam(1e-2))),
    "momo": Case(lambda: contrib.momo(1e-2), _with_value),
    "momo_adam": Case(lambda: contrib.momo_adam(1e-2), _with_value),
    "momentum in 16 bits": Case(lambda: optax.sgd(1e-2, momentum=0.9, nesterov=True, accumulator_dtype="bfloat16")),
    "monitor": Case(lambda: optax.monitor({"norm": _norm, "sum": lambda updates: jnp.sum(updates["up"])})),
    "multi_transform": Case(
        lambda: optax.multi_transform({"matrix": optax.adam(1e-2), "vector": optax.sgd(1e-2, momentum=0.9)}, GROUPS)
    ),
    "MultiSteps": Case(_skipping),
    "MultiSteps of a schedule": Case(
        lambda: optax.MultiSteps(optax.adam(1e-2), lambda step: 1 + step % 2).gradient_transformation()
    ),
    "named_chain": Case(lambda: optax.named_chain(("clip", optax.clip(0.5)), ("adam", optax.adam(1e-2)))),
    "narrow": Case(lambda: optax.adam(1e-2, mu_dtype="bfloat16", nesterov=True)),
    "noisy_sgd": Case(lambda: optax.noisy_sgd(1e-2, key=0)),
    "partition": Case(
        lambda: optax.partition({"matrix": optax.adam(1e-2), "vector": optax.lion(1e-2)}, lambda _: GROUPS)
    ),
    "polyak_sgd": Case(optax.polyak_sgd, _with_value),
    "reduce_on_plateau": Case(
        lambda: optax.chain(optax.adam(1e-2), contrib.reduce_on_plateau(patience=1, accumulation_size=1)), _with_value
    ),
    "sam": Case(lambda: contrib.sam(optax.sgd(1e-2), _ascent(), sync_period=2)),
    "sam in one step": Case(
        lambda: contrib.sam(optax.sgd(1e-2), _ascent(), sync_period=2, opaque_mode=True), _with_gradients
    ),
    "schedule_free": Case(lambda: contrib.schedule_free(optax.sgd(1e-2), 1e-2)),
    "schedule_free_adamw": Case(lambda: contrib.schedule_free_adamw(1e-2, warmup_steps=2)),
    "selective_transform": Case(lambda: optax.selective_transform(optax.adam(1e-2), freeze_mask=MATRICES)),
    "skip_large_updates": Case(lambda: _skipping(should_skip_update_fn=_largest)),
    "skip_not_finite": Case(lambda: _skipping(should_skip_update_fn=optax.skip_not_finite)),
    "snapshot": Case(lambda: optax.snapshot("gradients", lambda updates, **_: updates)),
    "sophia": Case(lambda: contrib.sophia(1e-2), _with_loss),
    "split_real_and_imaginary": Case(lambda: contrib.split_real_and_imaginary(optax.adam(1e-2))),
    "stateless": Case(lambda: optax.stateless(lambda grads, params: jax.tree.map(jnp.add, grads, params))),
    "stateless_with_tree_map": Case(lambda: optax.stateless_with_tree_map(lambda g, p: g + p)),
    "trace": Case(lambda: optax.trace(0.9)),
    "with_extra_args_support": Case(lambda: optax.with_extra_args_support(optax.adam(1e-2))),
}
#: Those that need more than numbers from other devices, in one layout or another, and so `implicit_comm`: sums, largest
#: elements or factors along one dim, products of a matrix with itself, and trees as one vector.
COMMUNICATING: Final = (
    *(
        *("adafactor", "adaptive_grad_clip", "centralize", "differentially_private_aggregate", "dpsgd", "flatten"),
        "galore",
    ),
    *("muon", "scale_by_factored_rms", "scale_by_galore", "scale_by_muon", "scale_by_sm3", "sm3"),
)
