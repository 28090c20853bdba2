"""The derivative of a function of shards by residuals that its forward pass saves: nothing is computed again."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from shtypes._compat.jaxprs import jaxpr_of
from shtypes.caches import MOST, Bounded
from shtypes.core.jax_type import as_jax_type
from shtypes.core.local import local_all
from shtypes.core.shard_fn import ShardFn
from shtypes.local_mode.user_function import Shards, UserFn, shards_of, structs_of, vjp_of
from shtypes.types import Dim, ShType, State, dtypes


@dataclass(frozen=True)
class Forward(ShardFn):
    """A function's results, and what its backward pass needs besides the operands."""

    fn: ShardFn
    active: tuple[bool, ...]
    kept: tuple[bool, ...]
    forwarded: tuple[int | None, ...]  # for each residual the operand that it is, or None

    def __str__(self) -> str:
        return f"fwd({self.fn})"

    def __call__(self, *shards: Any) -> Any:
        """The results, and then the residuals that are no operands."""
        outs, pull = vjp_of(self.fn, self.active, self.kept, shards)
        pairs = zip(jax.tree.leaves(pull), self.forwarded, strict=True)
        return (*outs, *[r for r, known in pairs if known is None])


@dataclass(frozen=True)
class Backward(ShardFn):
    """(residuals, cotangents of the kept results) -> cotangents of the active operands."""

    fn: ShardFn
    active: tuple[bool, ...]
    kept: tuple[bool, ...]
    operands: Shards
    residuals: int

    def __str__(self) -> str:
        return f"bwd({self.fn})"

    def __call__(self, *shards: Any) -> Any:
        """The cotangents of the active operands."""
        # The structure of the residuals comes from a trace made here, where the mesh is the one that they are under.
        structures: list[Any] = []

        def traced(*xs: Any) -> None:
            structures.append(jax.tree.structure(vjp_of(self.fn, self.active, self.kept, xs)[1]))

        jax.eval_shape(traced, *structs_of(self.operands))
        pull = jax.tree.unflatten(structures[0], shards[: self.residuals])
        return tuple(pull(tuple(shards[self.residuals :])))


@functools.lru_cache(maxsize=MOST)
def _saved(fn: ShardFn, active: tuple[bool, ...], kept: tuple[bool, ...], operands: Shards) -> tuple[Any, ...]:
    """For each residual the operand that it is, or its shape and dtype."""
    residuals = jax.make_jaxpr(lambda *xs: jax.tree.leaves(vjp_of(fn, active, kept, xs)[1]))
    jaxpr = jaxpr_of(residuals(*structs_of(operands)))
    found: list[Any] = []
    for v in jaxpr.outvars:
        own = [i for i, given in enumerate(jaxpr.invars) if given is v]
        found.append(own[0] if own else (tuple(v.aval.shape), dtypes.from_numpy(v.aval.dtype)))
    return tuple(found)


_saving: Bounded[Callable[..., Any]] = Bounded()


def with_residuals(
    fn: UserFn, operands: tuple[ShType, ...], results: tuple[ShType, ...], active: tuple[bool, ...]
) -> Callable[..., Any]:
    """The op as a `jax.custom_vjp` that saves what the backward pass needs, and computes nothing again."""
    key = (fn, tuple(t.exact for t in operands), tuple(t.exact for t in results), active)
    return _saving.made(key, lambda: _made_saving(fn, operands, results, active))


def _made_saving(
    fn: UserFn, operands: tuple[ShType, ...], results: tuple[ShType, ...], active: tuple[bool, ...]
) -> Callable[..., Any]:
    kept = tuple(t.differentiable for t in results)
    mesh = operands[0].mesh

    def op(*xs: Any) -> tuple[Any, ...]:
        return tuple(local_all(fn, *xs, out=results))

    def forward(*xs: Any) -> tuple[tuple[Any, ...], list[Any]]:
        # Looked up here, since the types of operands under `vmap` are those of one slice.
        saved = _saved(fn, active, kept, shards_of(operands))
        # Each device's own, without a global meaning: always sound, and no larger than on one device.
        varying = dict.fromkeys(mesh.axis_names, State.VARYING)
        types = [as_jax_type(ShType(mesh, s[1], map(Dim, s[0]), varying)) for s in saved if not isinstance(s, int)]
        ran = Forward(fn, active, kept, tuple(s if isinstance(s, int) else None for s in saved))
        outs = local_all(ran, *xs, out=(*results, *types))
        rest = iter(outs[len(results) :])
        return tuple(outs[: len(results)]), [xs[s] if isinstance(s, int) else next(rest) for s in saved]

    def backward(residuals: list[Any], cts: Sequence[Any]) -> tuple[Any, ...]:
        pull = Backward(fn, active, kept, shards_of(operands), len(residuals))
        out = tuple(t.cotangent() for t, a in zip(operands, active, strict=True) if a)
        given = [ct for ct, k in zip(cts, kept, strict=True) if k]
        moved = iter(local_all(pull, *residuals, *given, out=out))
        return tuple(next(moved) if a else None for a in active)

    op.__name__ = op.__qualname__ = fn.name
    differentiable = jax.custom_vjp(op)
    differentiable.defvjp(forward, backward)
    return differentiable
