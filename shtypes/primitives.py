"""The two primitives, `local` and `reshard`, and the doors to native JAX arrays.

`local` applies a function on each device and never communicates; `reshard` moves data and computes nothing. What they
apply is a parameter (`operation`), so that jaxprs read `einsum[sbh,hi->sbi] a b` and `reshard[tp: U->R] c`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import NamedSharding

from shtypes._compat import HiPrimitive, Zero, instantiate_zeros, is_undefined_primal, no_trace_is_running
from shtypes.analysis.scopes import rules_in_force
from shtypes.array import Array, wrap
from shtypes.autodiff.cotangent import check_tangent
from shtypes.functions.basics import IDENTITY, Full
from shtypes.functions.derivatives import Jvp, Transpose, Vmap
from shtypes.hitype import HiShType, hi
from shtypes.local_mode.explicit import check_written
from shtypes.localfn import Linear, LocalFn, check_derivative
from shtypes.lowering.carrier import explicit_spec
from shtypes.lowering.per_op import run, run_reshard
from shtypes.meshes import jax_mesh
from shtypes.operation import LinearizedPrimitive, Operation, Sending
from shtypes.reshard import plan
from shtypes.types import ShType, State

local_p = LinearizedPrimitive("local", communicates=False)
reshard_p = LinearizedPrimitive("reshard")


@dataclass(frozen=True, eq=False)
class Local(Operation):
    """A local function applied to shards; the result types come from the typing rules.

    Attributes:
        fn: The function.
    """

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
        if self.fn.linear is Linear.EACH and all(kept) and all(map(self.fn.linear_in, _indices(active))):
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


def _indices(flags: Sequence[bool]) -> list[int]:
    return [i for i, flag in enumerate(flags) if flag]


def local_all(fn: LocalFn, *operands: Any, out: Sequence[ShType]) -> list[Any]:
    """Applies a local function that has several results; ``out`` gives their types."""
    if all(type(x) is Array for x in operands) and no_trace_is_running():
        return run(fn, operands, tuple(map(hi, out)))
    return Local(fn, tuple(map(jax.typeof, operands)), tuple(map(hi, out))).bind(*operands)


def local(fn: LocalFn, *operands: Any, out: ShType) -> Any:
    """Applies a local function to shards; ``out`` is the type of its one result."""
    return local_all(fn, *operands, out=(out,))[0]


def zeros_of(t: ShType) -> Any:
    """Zero of a type: in any state, without communication."""
    zero = False if t.dtype_name == "bool" else 0
    return local(Full(zero, t.local_shape, t.dtype_name), out=t)


@dataclass(frozen=True, eq=False)
class Reshard(Operation):
    """The only operation that communicates. Linear; its transpose is the reshard of the cotangent types.

    One that a typing rule inserted prints as ``cast``, one that the user wrote as ``reshard``.

    Attributes:
        src: The type before.
        dst: The type after.
        constant: Whether its operand has no gradient, whatever its type says.
    """

    primitive = reshard_p
    src: HiShType
    dst: HiShType
    inserted: bool
    constant: bool = False

    @property
    def operands(self) -> tuple[HiShType, ...]:  # type: ignore[override]
        return (self.src,)

    @property
    def results(self) -> tuple[HiShType, ...]:  # type: ignore[override]
        return (self.dst,)

    def forth(self) -> list[Sending]:
        return [Sending(s, self.src, self.dst) for s in plan(self.src, self.dst).steps if s.kind.communicates]

    def back(self) -> list[Sending]:
        if self.constant or not self.src.differentiable:
            return []
        src, dst = self.dst.cotangent(), self.src.cotangent()
        return [Sending(s, src, dst) for s in plan(src, dst).steps if s.kind.communicates]

    def __str__(self) -> str:
        return f"{'cast' if self.inserted else 'reshard'}[{changes(self.src, self.dst)}]"

    def to_lojax(self, *operands: Any) -> list[Array]:
        (x,) = operands
        return [run_reshard(x, self.dst)]

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        check_tangents(primals, tangents)
        outs, _, push = self.linearize(primals, [not isinstance(t, Zero) for t in tangents])
        return outs, push(tangents)

    def linearize(self, primals: Sequence[Any], nonzero: Sequence[bool]) -> tuple[list[Any], list[bool], Any]:
        carried = nonzero[0] and self.dst.differentiable
        zero = Zero(self.dst.to_tangent_aval())
        return self.bind(*primals), [carried], lambda tangents: self.bind(*tangents) if carried else [zero]

    def transpose(self, cts: Sequence[Any], *operands: Any) -> list[Any]:
        (ct,) = cts
        dst = self.src.to_ct_aval()
        return [Zero(dst) if isinstance(ct, Zero) else move(ct, dst, inserted=self.inserted)]

    def batch(self, axis_data: Any, operands: Sequence[Any], dims: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        (x,), (d,) = operands, dims
        return [move(x, self.dst.inc_rank(axis_data.size, d), inserted=self.inserted)], [d]


def changes(src: ShType, dst: ShType) -> str:
    """What a reshard changes, axis by axis: ``tp: U->S(0)``."""

    def place(t: ShType, axis: str) -> str:
        state = t.state(axis)
        return f"S({t.dim_of(axis)})" if state is State.SHARDED else state.value

    moved = [f"{a}: {place(src, a)}->{place(dst, a)}" for a in src.mesh.axis_names if place(src, a) != place(dst, a)]
    order = [
        f"{i}: ({','.join(s.axes)})->({','.join(d.axes)})"
        for i, (s, d) in enumerate(zip(src.dims, dst.dims, strict=True))
        if s.axes != d.axes and set(s.axes) == set(d.axes)
    ]
    return ", ".join(moved + order)


def move(x: Any, dst: ShType, *, inserted: bool = False, constant: bool = False) -> Any:
    """Reshards a typed value to a type of the same mesh, dtype and shape; nothing happens if it has it.

    Args:
        x: The value.
        dst: The type.
        inserted: Whether a typing rule asks for it.
        constant: Whether the value has no gradient, whatever its type says.
    """
    src = jax.typeof(x)
    if src == dst:
        return x
    if inserted:
        check_written(src, dst)
    if State.VARYING in dst.states and src.axes(State.VARYING) != dst.axes(State.VARYING):
        from shtypes.collective import move_to_varying

        return move_to_varying(x, dst, inserted=inserted)
    plan(src, dst)  # raises if there is no way
    if type(x) is Array and no_trace_is_running():
        if not rules_in_force():
            return run_reshard(x, hi(dst))
        return Reshard(src, hi(dst), inserted, constant).run(x)[0]
    return Reshard(src, hi(dst), inserted, constant).bind(x)[0]


class _Door(HiPrimitive):
    """A linear change of representation between typed values and plain arrays; moves nothing."""

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        check_tangents(primals, tangents)
        (x,), (t,) = primals, tangents
        out = self.bind(x, **params)
        if isinstance(t, Zero) or jax.typeof(t).dtype == jax.dtypes.float0:
            return out, Zero(jax.typeof(out).to_tangent_aval())
        return out, self.bind(t, **params)

    def batch(self, axis_data: Any, operands: Sequence[Any], dims: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        raised = {name: t.inc_rank(axis_data.size, dims[0]) for name, t in params.items()}
        return self.bind(*operands, **raised), dims[0]


class FromJax(_Door):
    """A plain array as a typed value, sharded or invariant on every axis: JAX's own meaning."""

    def abstract_eval(self, x: Any, *, ty: HiShType) -> tuple[HiShType, set[Any]]:
        return ty, set()

    def to_lojax(self, x: Any, *, ty: HiShType) -> Array:
        return wrap(ty, placed(x, ty))

    def transpose(self, ct: Any, x: Any, *, ty: HiShType) -> list[Any]:
        return [Zero(x.aval) if isinstance(ct, Zero) else to_jax_p.bind(ct)]


class ToJax(_Door):
    """A typed value, sharded or invariant on every axis, as a plain array."""

    def abstract_eval(self, t: Any) -> tuple[Any, set[Any]]:
        return t.lo_ty()[0], set()

    def to_lojax(self, x: Any) -> Any:
        return x.data

    def transpose(self, ct: Any, x: Any) -> list[Any]:
        return [Zero(x.aval) if isinstance(ct, Zero) else from_jax_p.bind(ct, ty=x.aval)]


class Raise(_Door):
    """A carrier as a typed value: where JAX hands us one while it traces."""

    def abstract_eval(self, x: Any, *, ty: HiShType) -> tuple[HiShType, set[Any]]:
        return ty, set()

    def to_lojax(self, x: Any, *, ty: HiShType) -> Array:
        return wrap(ty, x)


class EnsureMapped(HiPrimitive):
    """Makes a result of `vmap` mapped over dim 0, whether or not it depends on what is mapped."""

    def abstract_eval(self, x: Any) -> tuple[Any, set[Any]]:
        return x, set()

    def to_lojax(self, x: Any) -> Any:
        return x

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        (t,) = tangents
        return self.bind(*primals), t if isinstance(t, Zero) else self.bind(t)

    def transpose(self, ct: Any, x: Any) -> list[Any]:
        return [ct]

    def batch(self, axis_data: Any, operands: Sequence[Any], dims: Sequence[Any]) -> tuple[Any, Any]:
        from shtypes.ops.shape import broadcast_leading, moveaxis

        (x,), (d,) = operands, dims
        return (broadcast_leading(x, axis_data.size) if d is None else moveaxis(x, d, 0)), 0


def placed(x: Any, t: ShType) -> Any:
    """A plain array with the sharding of a type's carrier, as far as JAX tracks it."""
    mesh = jax_mesh(t.mesh)
    spec = explicit_spec(t, mesh)
    x = jax.numpy.asarray(x)
    sharding = jax.typeof(x).sharding
    if any(kind == jax.sharding.AxisType.Explicit for kind in mesh.axis_types) and (
        sharding.mesh.empty or sharding.spec != spec
    ):
        return jax.reshard(x, NamedSharding(mesh, spec))
    return x


from_jax_p, to_jax_p, raise_p = FromJax("from_jax"), ToJax("to_jax"), Raise("raise")
#: For concrete arrays, which are known to lie as the type says, or are handed to each device as it needs them.
from_concrete_p = FromJax("from_jax")
ensure_mapped_p = EnsureMapped("ensure_mapped")
