"""The `local` primitive: a function that each device applies to its shards. It never communicates.

What it applies is a parameter (`operation`), so that jaxprs read ``einsum[sbh,hi->sbi] a b``.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import jax

from shtypes._compat import Zero, instantiate_zeros, is_undefined_primal, no_trace_is_running
from shtypes.caches import MOST
from shtypes.core.array import Array
from shtypes.core.functions.basics import IDENTITY, Full, Permute
from shtypes.core.functions.derivatives import Jvp, Transpose, Vmap
from shtypes.core.functions.shapes import Broadcast
from shtypes.core.hitype import HiShType, hi
from shtypes.core.localfn import Linear, LocalFn, check_derivative, check_transpose
from shtypes.core.operation import LinearizedPrimitive, Operation
from shtypes.lowering.per_op import run
from shtypes.rules.cotangent import check_tangent
from shtypes.types import ShType

local_p = LinearizedPrimitive("local", communicates=False)


@dataclass(frozen=True, eq=False)
class Local(Operation):
    """A local function applied to shards; the result types come from the typing rules."""

    primitive = local_p
    fn: LocalFn
    operands: tuple[HiShType, ...]
    results: tuple[HiShType, ...]

    def __str__(self) -> str:
        return str(self.fn)

    def to_lojax(self, *operands: Any) -> list[Array]:
        return run(self.fn, operands, self.results)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        check_tangents(primals, tangents)
        outs, _, push = self.linearize(primals, [not isinstance(t, Zero) for t in tangents])
        return outs, push(tangents)

    def linearize(self, primals: Sequence[Any], nonzero: Sequence[bool]) -> tuple[list[Any], list[bool], Any]:
        outs = self.bind(*primals)
        active = tuple(n and jax.typeof(p).differentiable for p, n in zip(primals, nonzero, strict=True))
        moves = any(active) and not self.fn.stops_gradient
        carried = [moves and t.differentiable for t in self.results]

        def push(tangents: Sequence[Any]) -> list[Any]:
            moved = iter(self._tangents(primals, tangents, active, tuple(carried)) if any(carried) else ())
            return [next(moved) if c else Zero(t.to_tangent_aval()) for c, t in zip(carried, self.results, strict=True)]

        return outs, carried, push

    def _tangents(
        self, primals: Sequence[Any], tangents: Sequence[Any], active: tuple[bool, ...], kept: tuple[bool, ...]
    ) -> list[Any]:
        """The tangents of the kept results."""
        nonzero = [t for t, a in zip(tangents, active, strict=True) if a]
        types = [jax.typeof(p) for p in primals]
        linear_part = self.fn.linear_part
        if linear_part is not None and linear_part.linear is Linear.BESIDE and all(kept):
            pairs = zip(primals, tangents, types, strict=True)
            moved = [instantiate_zeros(t) if own.differentiable else p for p, t, own in pairs]
            return local_all(linear_part, *moved, out=self.results)
        if linear_part is not None and all(t.differentiable for t in types) and all(kept):
            fn = linear_part if all(active) else linear_part.restricted(active, types, self.results[0])
            if fn == IDENTITY and jax.typeof(nonzero[0]) == self.results[0]:
                return nonzero
            if fn is not None:
                return local_all(fn, *nonzero, out=self.results)
            return local_all(linear_part, *map(instantiate_zeros, tangents), out=self.results)
        if self.fn.linear is Linear.EACH and all(kept) and all(self.fn.linear_in(i) for i, a in enumerate(active) if a):
            terms = [
                local_all(self.fn, *[t if j == i else p for j, p in enumerate(primals)], out=self.results)[0]
                for i, (t, a) in enumerate(zip(tangents, active, strict=True))
                if a
            ]
            return [functools.reduce(self.results[0].vspace_add, terms)]
        results = tuple(t for t, k in zip(self.results, kept, strict=True) if k)
        fn = Jvp(self.fn, active, kept)
        check_derivative(self.fn, active, fn, types, [jax.typeof(t) for t in nonzero])
        return local_all(fn, *primals, *nonzero, out=results)

    def transpose(self, cts: Sequence[Any], *operands: Any) -> list[Any]:
        linear = [is_undefined_primal(x) for x in operands]
        if all(isinstance(c, Zero) for c in cts):
            return [Zero(x.aval) if u else None for x, u in zip(operands, linear, strict=True)]
        # JAX gives a linear operand's cotangent type here, not its own; they have one local shape.
        types = [x.aval if u else jax.typeof(x) for x, u in zip(operands, linear, strict=True)]
        by_operand = self._adjoints(types, linear) if len(cts) == 1 else None
        if by_operand is not None:
            return [
                None if fn is None else self._transposed(fn, operands, linear, cts[0], t)
                for fn, t in zip(by_operand, types, strict=True)
            ]
        given = tuple(not isinstance(c, Zero) for c in cts)
        fn = Transpose(
            self.fn,
            tuple((t.local_shape, t.dtype_name) if u else None for t, u in zip(types, linear, strict=True)),
            given,
            tuple((t.local_shape, t.dtype_name) for t in self.results),
        )
        fixed = [x for x, u in zip(operands, linear, strict=True) if not u]
        check_transpose(self.fn, fn, [*map(jax.typeof, fixed), *[jax.typeof(c) for c in cts if type(c) is not Zero]])
        out = tuple(t for t, u in zip(types, linear, strict=True) if u)
        moved = iter(local_all(fn, *fixed, *[c for c in cts if not isinstance(c, Zero)], out=out))
        return [next(moved) if u else None for u in linear]

    def _transposed(self, fn: LocalFn, operands: Sequence[Any], linear: Sequence[bool], ct: Any, out: HiShType) -> Any:
        """An adjoint applied: to the cotangent alone, or with it in the place of the one linear operand."""
        if fn == IDENTITY and jax.typeof(ct) == out:
            return ct
        if self.fn.linear is Linear.JOINTLY:
            return local(fn, ct, out=out)
        if self.fn.linear is Linear.BESIDE:
            held = [x for x, u in zip(operands, linear, strict=True) if not u and not jax.typeof(x).differentiable]
            return local(fn, *held, ct, out=out)
        return local(fn, *[ct if u else x for x, u in zip(operands, linear, strict=True)], out=out)

    def _adjoints(self, types: Sequence[ShType], linear: Sequence[bool]) -> list[LocalFn | None] | None:
        """The adjoint for each linear operand, or None if JAX must transpose."""
        if self.fn.linear not in (Linear.JOINTLY, Linear.BESIDE) and sum(linear) != 1:
            return None
        found = [self.fn.adjoint(i, types, self.results[0]) if u else None for i, u in enumerate(linear)]
        return None if any(u and fn is None for fn, u in zip(found, linear, strict=True)) else found

    def batch(self, axis_data: Any, operands: Sequence[Any], dims: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        if all(d is None for d in dims):
            return self.bind(*operands), [None] * len(self.results)
        results = tuple(t.inc_rank(axis_data.size, 0) for t in self.results)
        ranks = [jax.typeof(x).ndim for x in operands]
        fn = self.fn.batched(dims, ranks) or Vmap(self.fn, tuple(dims))
        return local_all(fn, *operands, out=results), [0] * len(results)


def check_tangents(primals: Sequence[Any], tangents: Sequence[Any]) -> None:
    """Refuses tangents of other types than their values, which raw `jax.jvp` lets through."""
    for x, t in zip(primals, tangents, strict=True):
        own = jax.typeof(x)
        if type(t) is not Zero and type(own) is HiShType and own.differentiable:
            given = jax.typeof(t)
            if given is not own and given != own:
                check_tangent(given if type(given) is HiShType else str(given), own)


def local_all(fn: LocalFn, *operands: Any, out: Sequence[ShType]) -> list[Array]:
    """Applies a local function that has several results; ``out`` gives their types."""
    if all(type(x) is Array for x in operands) and no_trace_is_running():
        return run(fn, operands, tuple(map(hi, out)))
    return _applied(fn, [x.type for x in operands], out).bind(*operands)


#: By the function, and the serial numbers of the types: layers are alike, and so are their backward passes.
_known: Final[dict[Any, Local]] = {}


def _applied(fn: LocalFn, operands: Sequence[HiShType], out: Sequence[ShType]) -> Local:
    """A local function for operands and results of these types; the same object for the same."""
    key = (fn, tuple([t.serial for t in operands]), tuple([t.serial for t in out]))
    found = _known.get(key)
    if found is None:
        if len(_known) >= MOST:
            _known.clear()
        found = _known[key] = Local(fn, tuple(operands), tuple(map(hi, out)))
    return found


def local(fn: LocalFn, *operands: Any, out: ShType) -> Array:
    """Applies a local function to shards; ``out`` is the type of its one result."""
    return local_all(fn, *operands, out=(out,))[0]


def zeros_of(t: ShType) -> Array:
    """Zero of a type: in any state, without communication."""
    zero = False if t.dtype_name == "bool" else 0
    return local(Full(zero, t.local_shape, t.dtype_name), out=t)


def moved_to_front(x: Array, dim: int) -> Array:
    """A typed value with one dim before the others."""
    if dim == 0:
        return x
    t = jax.typeof(x)
    perm = (dim, *(d for d in range(t.ndim) if d != dim))
    return local(Permute(perm), x, out=t.replace(dims=[t.dims[d] for d in perm]))


def repeated(x: Array, size: int, dim: int = 0) -> Array:
    """A typed value with a new dim, along which it is repeated."""
    t = jax.typeof(x)
    out = t.inc_rank(size, dim)
    return local(Broadcast(out.local_shape, tuple(d + (d >= dim) for d in range(t.ndim))), x, out=out)
