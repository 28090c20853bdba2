"""What the models share: how a step is described, and the three places where variants of plain JAX code differ."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

Tree = Any


class Program(NamedTuple):
    """One training step, not yet jitted: ``step(params, batch) -> (loss, gradients)``, all sums done.

    Attributes:
        step: The function.
        args: Its arguments, on the devices.
    """

    step: Callable[..., Any]
    args: tuple[Any, ...]


class Hooks(NamedTuple):
    """What a variant in plain JAX does where a model may communicate.

    Attributes:
        weight: To a parameter, before it is used.
        enter: To a replicated activation that meets sharded weights.
        leave: ``leave(equation, x, w)``: the einsum that contracts a sharded dim, and its sum.
        loss: From the last activation to the loss.
    """

    weight: Callable[[Any], Any]
    enter: Callable[[Any], Any]
    leave: Callable[..., Any]
    loss: Callable[[Any], Any]


def same(x: Any) -> Any:
    """The operand."""
    return x


def mean_square(x: Any) -> Any:
    """The loss of the models."""
    return jnp.mean(x * x)


def put(mesh: jax.sharding.Mesh, specs: Tree, values: Tree) -> Tree:
    """Host arrays on the devices."""
    return jax.tree.map(lambda v, s: jax.device_put(v, NamedSharding(mesh, s)), values, specs)


def with_reduced(spec: PartitionSpec, axes: set[str]) -> PartitionSpec:
    """The spec, reduced over those of ``axes`` that do not shard it."""
    return PartitionSpec(*spec, reduced=axes - _axes(spec))


def _axes(spec: PartitionSpec) -> set[str]:
    return {a for entry in spec for a in ((entry,) if isinstance(entry, str) else entry or ())}


# JAX's explicit mode


def explicit_hooks(stream: PartitionSpec) -> Hooks:
    """Replicated types: the policy "jax". ``stream`` is how activations between blocks lie."""
    return Hooks(same, same, functools.partial(jnp.einsum, out_sharding=stream), mean_square)


def pending_hooks(stream: PartitionSpec) -> Hooks:
    """Reduced and unreduced types: the policy "partial"."""
    partial = PartitionSpec(*stream, unreduced={"tp"})
    reduced = with_reduced(stream, {"tp"})

    def leave(equation: str, x: Any, w: Any) -> Any:
        return jax.reshard(jnp.einsum(equation, x, w, out_sharding=partial), reduced)

    return Hooks(same, same, leave, lambda x: mean_square(jax.reshard(x, stream)))


def replicate_gradients(specs: Tree) -> Callable[[Any], Any]:
    """Sums the pending gradients of `pending_hooks`: each ends in its parameter's plain spec."""
    return lambda grads: jax.tree.map(jax.reshard, grads, specs)


# By hand. Inside jax.shard_map(check_vma=False) the transpose of psum is psum. That is the schedule of "partial":
# gradients of replicated values stay partial until a psum needs them. Under "jax" they are summed where a replicated
# value enters what differs between devices, and the psum that leaves it passes its cotangent on.


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def sum_backward(x: Any, axes: Any) -> Any:
    """The operand; its cotangent is summed over ``axes``."""
    return x


sum_backward.defvjp(lambda x, axes: (x, None), lambda axes, _, ct: (lax.psum(ct, axes),))


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def sum_forward(x: Any, axes: Any) -> Any:
    """The sum over ``axes``; the cotangent is passed on as it is."""
    return lax.psum(x, axes)


sum_forward.defvjp(lambda x, axes: (lax.psum(x, axes), None), lambda axes, _, ct: (ct,))


def hand_hooks(policy: str, count: int) -> Hooks:
    """Every sum written out; ``count`` is the number of elements of the global activation."""

    def leave(equation: str, x: Any, w: Any) -> Any:
        y = jnp.einsum(equation, x, w)
        return sum_forward(y, "tp") if policy == "jax" else lax.psum(y, "tp")

    def loss(x: Any) -> Any:
        return jnp.sum(x * x) / count

    if policy == "partial":
        return Hooks(same, same, leave, loss)
    return Hooks(lambda w: sum_backward(w, "dp"), lambda x: sum_backward(x, "tp"), leave, loss)


def hand_step(
    loss: Callable[[Tree, Any], Any], policy: str, mesh: jax.sharding.Mesh, specs: Tree, stream: PartitionSpec
) -> Callable[[Tree, Any], Any]:
    """The step in one shard_map: the local loss, its gradients, and the sums that they leave open."""

    def summed(gradient: Any, spec: PartitionSpec) -> Any:
        pending = tuple(a for a in mesh.axis_names if a not in _axes(spec))
        return lax.psum(gradient, pending) if pending else gradient

    def step(params: Tree, x: Any) -> Any:
        value, pull = jax.vjp(lambda p: loss(p, x), params)
        if policy == "jax":
            (grads,) = pull(np.float32(1))
        else:  # the loss is the same all along tp: it is counted once
            (grads,) = pull((lax.axis_index("tp") == 0).astype("float32"))
            grads = jax.tree.map(summed, grads, specs)
        return lax.psum(value, "dp"), grads

    return jax.shard_map(step, mesh=mesh, in_specs=(specs, stream), out_specs=(PartitionSpec(), specs), check_vma=False)
