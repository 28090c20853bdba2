"""The derivative of a function of shards by residuals that its forward pass saves: nothing is computed again."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from shtypes import dtypes
from shtypes._compat import jaxpr_of
from shtypes.caches import MOST, Bounded
from shtypes.hitype import hi
from shtypes.local_mode.user_function import Shards, UserFn, shards_of
from shtypes.localfn import LocalFn, as_tuple
from shtypes.mesh import Mesh
from shtypes.primitives import local_all
from shtypes.types import Dim, ShType, State


@dataclass(frozen=True)
class Forward(LocalFn):
    """A function's results, and what its backward pass needs besides the operands."""

    fn: LocalFn
    active: tuple[bool, ...]
    kept: tuple[bool, ...]
    forwarded: tuple[int | None, ...]  # for each residual the operand that it is, or None

    def __str__(self) -> str:
        return f"fwd({self.fn})"

    def __call__(self, *shards: Any) -> Any:
        """The results, and then the residuals that are no operands."""
        outs, residuals, _ = _vjp(self.fn, self.active, self.kept, shards)
        return (*outs, *[r for r, known in zip(residuals, self.forwarded, strict=True) if known is None])


@dataclass(frozen=True)
class Backward(LocalFn):
    """(residuals, cotangents of the kept results) -> cotangents of the active operands."""

    fn: LocalFn
    active: tuple[bool, ...]
    kept: tuple[bool, ...]
    operands: Shards
    residuals: int

    def __str__(self) -> str:
        return f"bwd({self.fn})"

    def __call__(self, *shards: Any) -> Any:
        """The cotangents of the active operands."""
        # The structure of the residuals comes from a trace made here, where the mesh is the one that they are under.
        structs = [jax.ShapeDtypeStruct(shape, dtypes.to_numpy(dtype)) for shape, dtype in self.operands]
        pulls: list[Any] = []
        jax.eval_shape(lambda *xs: pulls.append(_vjp(self.fn, self.active, self.kept, xs)[2]), *structs)
        pull = jax.tree.unflatten(pulls[0], shards[: self.residuals])
        return tuple(pull(tuple(shards[self.residuals :])))


def _vjp(
    fn: LocalFn, active: Sequence[bool], kept: Sequence[bool], shards: Sequence[Any]
) -> tuple[tuple[Any, ...], list[Any], Any]:
    """The results, the residuals of the backward pass, and the structure that makes them its function."""

    def of_active(*values: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        rest = iter(values)
        outs = as_tuple(fn(*[next(rest) if a else x for a, x in zip(active, shards, strict=True)]))
        return tuple(o for o, k in zip(outs, kept, strict=True) if k), outs

    _, pull, outs = jax.vjp(of_active, *[x for a, x in zip(active, shards, strict=True) if a], has_aux=True)
    residuals, structure = jax.tree.flatten(pull)
    return outs, residuals, structure


@functools.lru_cache(maxsize=MOST)
def _saved(fn: LocalFn, active: tuple[bool, ...], kept: tuple[bool, ...], operands: Shards) -> tuple[Any, ...]:
    """For each residual the operand that it is, or its shape and dtype."""
    structs = [jax.ShapeDtypeStruct(shape, dtypes.to_numpy(dtype)) for shape, dtype in operands]
    jaxpr = jaxpr_of(jax.make_jaxpr(lambda *xs: _vjp(fn, active, kept, xs)[1])(*structs))
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
        types = [_varying(mesh, *s) for s in saved if not isinstance(s, int)]
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


def _varying(mesh: Mesh, shape: tuple[int, ...], dtype: str) -> ShType:
    return hi(ShType(mesh, dtype, map(Dim, shape), dict.fromkeys(mesh.axis_names, State.VARYING)))


__all__ = ["Backward", "Forward", "with_residuals"]
