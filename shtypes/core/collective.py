"""The collectives of local mode as primitives, and the casts to varying.

In jaxprs they print as ``psum[x] a``. All but the maxima are linear, and transposed by the table in
`shtypes.rules.local`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax import lax

from shtypes._compat import Zero, no_trace_is_running, trace_ctx, trace_notes
from shtypes.caches import CACHE_SIZE
from shtypes.context.scope import check_not_mapped
from shtypes.core.array import Array
from shtypes.core.elementwise_fns import Divide, Mul, NamedFn
from shtypes.core.jax_type import HiShType, as_jax_type
from shtypes.core.local import local, moved_to_front
from shtypes.core.operation import Comm, OperationPrimitive, UnaryOperation, sent_by
from shtypes.core.run_op import run_on_shards
from shtypes.core.run_plan import exchange_pieces
from shtypes.core.shard_fn import Linear, ShardFn
from shtypes.errors import ShardingTypeError
from shtypes.rules import local as rules
from shtypes.rules.local import Op
from shtypes.scopes.check_comm import check_sent
from shtypes.scopes.scope_rules import rules_in_force
from shtypes.types import COTANGENT, ShType, State, dtypes
from shtypes.types.mesh import Mesh

#: One primitive for each collective, with JAX's name, by which policies of `jax.checkpoint` recognise it.
COLLECTIVES: Final = {name: OperationPrimitive(name) for name, *_ in rules.ROWS}


@dataclass(frozen=True, eq=False)
class Collective(UnaryOperation):
    """A collective of local mode."""

    op: Op
    src: HiShType
    dst: HiShType
    inserted: bool

    def __str__(self) -> str:
        return str(self.op)

    @property
    def primitive(self) -> OperationPrimitive:  # type: ignore[override]
        return COLLECTIVES[self.op.name]

    def forward_comm(self) -> list[Comm]:
        kind = self.op.row.kind
        if not kind.communicates:
            return []
        launches = 0 if _makes_nothing(self.op, self.src) else self.op.launches(self.src.mesh)
        sent = self.op.bytes(self.src, self.dst)
        return [Comm(kind, self.op.axes, sent, launches, self.src, self.dst, self.src.dtype_name)]

    def backward_comm(self) -> list[Comm]:
        return self.returned() if self.src.differentiable else []

    def returned(self) -> list[Comm]:
        """The backward communication if its operand stands for one that has a gradient."""
        op = self.op.transposed()
        if op is None:  # a differentiated maximum counts its winners, by another all-reduce
            return self.forward_comm()
        return Collective(op, self.dst.to_ct_aval(), self.src.to_ct_aval(), self.inserted).forward_comm()

    def to_lojax(self, *operands: Any) -> list[Array]:
        return run_on_shards(on_shards(self.op, self.src), self.op.name, operands, (self.dst,))

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        (x,), (t,) = primals, tangents
        (out,) = self.bind(x)
        if isinstance(t, Zero) or not self.dst.differentiable:
            return [out], [Zero(self.dst.to_tangent_aval())]
        return [out], [_winners_share(self.op, x, out, t)] if self.op.row.transpose is None else self.bind(t)

    def transpose(self, cts: Sequence[Any], *operands: Any) -> list[Any]:
        (ct,) = cts
        if isinstance(ct, Zero):
            return [Zero(self.src.to_ct_aval())]
        if self.op.name == "pbroadcast":
            check_not_mapped(self.op.axes)
        op = self.op.transposed()
        assert op is not None  # linear, since the tangents of the others consist of linear ones
        return Collective(op, as_jax_type(jax.typeof(ct)), self.src.to_ct_aval(), self.inserted).applied(ct)

    def batch(self, axis_data: Any, operands: Sequence[Any], dims: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        (x,), (d,) = operands, dims
        if d is None:  # JAX calls it for unmapped operands too
            return self.bind(x), [None]
        x = moved_to_front(x, d)
        dst = self.dst.inc_rank(axis_data.size, 0)
        return Collective(self.op.shifted(), jax.typeof(x), dst, self.inserted).applied(x), [0]


def collect(op: Op, x: Any, *, inserted: bool = False, has_gradient: bool | None = None) -> Array:
    """Applies a collective to a typed value.

    ``inserted``: whether a typing rule inserted it; ``has_gradient``: whether the value may be differentiated, so that
    scopes check the transpose too; by default by dtype.
    """
    src = jax.typeof(x)
    return checked(Collective(op, src, as_jax_type(rules.result(op, src)), inserted), x, has_gradient)


def checked(collective: Collective, x: Any, has_gradient: bool | None = None) -> Array:
    """Applies a collective that the scopes allow; ``has_gradient`` as for `collect`."""
    op, src = collective.op, collective.src
    if rules_in_force():
        returns = src.differentiable if has_gradient is None else has_gradient
        sent = sent_by(collective.forward_comm()), sent_by(collective.returned() if returns else ())
        try:
            name = f"{op.across}` across shards by `{op.name}" if op.across else op.name
            check_sent(name, src, collective.dst, *sent, inserted=collective.inserted)
        except ShardingTypeError as error:
            error.hints = error.hints or (f"{op.across or op.name} before the scope, or after it",)
            raise
    moved: Array = collective.applied(x)[0]
    return moved


def once(make: Callable[[], Any], *operands: Any, key: Any = None) -> Any:
    """The result of a function of operands and a key; that of an earlier call with the same ones in the same trace."""
    traced = any(isinstance(x, jax.core.Tracer) for x in operands) if operands else not no_trace_is_running()
    notes = trace_notes(trace_ctx.trace) if traced else None
    if notes is None:
        return make()
    noted = notes.setdefault(("across", key, *map(id, operands)), [])
    if not noted:
        noted += [operands, make()]  # with the operands, so that their ids are not reused
    return noted[1]


# casts to varying


@dataclass(frozen=True)
class Reinterpret(ShardFn):
    """Gives shards another type: (axis, letter before, letter after) for each change."""

    changes: tuple[tuple[str, str, str], ...]
    linear = Linear.JOINTLY

    def __str__(self) -> str:
        return f"reinterpret[{', '.join(f'{axis}: {src}->{dst}' for axis, src, dst in self.changes)}]"

    def __call__(self, x: Any) -> Any:
        return x

    def check_transposed(self) -> None:
        check_not_mapped(
            [axis for axis, *change in self.changes if change == [State.REDUCED.value, State.VARYING.value]]
        )

    def adjoint(self, index: int, operands: Any, result: ShType) -> ShardFn | None:
        return Reinterpret(tuple((axis, _dual(dst), _dual(src)) for axis, src, dst in self.changes))

    def batched(self, dims: Any, ranks: Any) -> ShardFn | None:
        return self if dims[0] == 0 else None


def _dual(letter: str) -> str:
    return COTANGENT[State(letter)].value


def reinterpreted(x: Any, dst: ShType) -> Array:
    """The same shards under another type, which the caller knows to fit."""
    src = jax.typeof(x)
    states = zip(src.mesh.axis_names, src.states, dst.states, strict=True)
    changes = tuple((axis, a.value, b.value) for axis, a, b in states if a is not b)
    return local(Reinterpret(changes), x, out=dst) if changes else x


def vary(x: Any, axes: Sequence[str], *, inserted: bool = False) -> Array:
    """Casts replicated axes to varying: free for reduced ones; a psum backward for invariant ones."""
    t = jax.typeof(x)
    invariant = tuple(a for a in axes if t.state(a) is State.INVARIANT)
    if invariant:
        x = collect(Op("pbroadcast", invariant, State.INVARIANT, State.VARYING), x, inserted=inserted)
        t = jax.typeof(x)
    return reinterpreted(x, t.with_axes((a for a in axes if t.state(a) is not State.VARYING), State.VARYING))


# execution


@functools.lru_cache(maxsize=CACHE_SIZE)
def on_shards(op: Op, src: ShType) -> Callable[[Any], list[Any]]:
    """A collective on one device's shard, within a `shard_map`."""
    live = tuple(a for a in op.axes if src.mesh.shape[a] > 1)
    if op.name == "ppermute":
        op, live = _in_mesh_order(op, live, src.mesh)
    run = _RUN[op.name] if live else _ALONE[op.name]
    if live and _makes_nothing(op, src):
        run = _empty_result
    if dtypes.is_key(src.dtype_name):  # collectives take no extended dtypes; a key's words are its last dim
        return lambda keys: [
            jax.random.wrap_key_data(run(op, live, jax.random.key_data(keys)), impl=jax.random.key_impl(keys))
        ]
    return lambda shard: [run(op, live, shard)]


def _in_mesh_order(op: Op, live: tuple[str, ...], mesh: Mesh) -> tuple[Op, tuple[str, ...]]:
    """A permutation in terms of mesh order, in which JAX numbers devices, whatever the order of the axes."""
    ordered = tuple(a for a in mesh.axis_names if a in live)

    def renumbered(index: int) -> int:
        at: dict[str, int] = {}
        for axis in reversed(live):
            index, at[axis] = divmod(index, mesh.shape[axis])
        return functools.reduce(lambda total, axis: total * mesh.shape[axis] + at[axis], ordered, 0)

    return replace(op, perm=tuple((renumbered(a), renumbered(b)) for a, b in op.perm)), ordered


def part_of_device(x: Any, axes: tuple[str, ...], dim: int, *, tiled: bool) -> Any:
    """The part of an array on a device along mesh axes: an equal slice of a dim, or its element there."""
    index, n = lax.axis_index(axes), lax.axis_size(axes)
    if not tiled:
        return lax.dynamic_index_in_dim(x, index, dim, keepdims=False)
    size = x.shape[dim] // n
    return lax.dynamic_slice_in_dim(x, index * size, size, dim)


def _pplace(op: Op, live: tuple[str, ...], x: Any) -> Any:
    index, n = lax.axis_index(live), lax.axis_size(live)
    x = x if op.tiled else jnp.expand_dims(x, op.dim)
    size = x.shape[op.dim]
    wide = jnp.zeros((*x.shape[: op.dim], size * n, *x.shape[op.dim + 1 :]), x.dtype)
    return lax.dynamic_update_slice_in_dim(wide, x, index * size, op.dim)


def _all_to_all(op: Op, live: tuple[str, ...], x: Any) -> Any:
    n, shape = lax.axis_size(live), x.shape
    if op.tiled:
        x = x.reshape(*shape[: op.dim], n, shape[op.dim] // n, *shape[op.dim + 1 :])
    y = jnp.moveaxis(exchange_pieces(jnp.moveaxis(x, op.dim, 0), live), 0, op.concat)
    return lax.collapse(y, op.concat, op.concat + 2) if op.tiled else y


_Run = Callable[[Op, tuple[str, ...], Any], Any]

_RUN: Final[dict[str, _Run]] = {
    "psum": lambda op, live, x: lax.psum(x, live),
    "pbroadcast": lambda op, live, x: x,
    **dict.fromkeys(
        ("all_gather", "all_gather_invariant"),
        lambda op, live, x: lax.all_gather(x, live, axis=op.dim, tiled=op.tiled),
    ),
    "psum_scatter": lambda op, live, x: lax.psum_scatter(x, live, scatter_dimension=op.dim, tiled=op.tiled),
    "pscatter": lambda op, live, x: part_of_device(x, live, op.dim, tiled=op.tiled),
    "pplace": _pplace,
    "all_to_all": _all_to_all,
    "ppermute": lambda op, live, x: lax.ppermute(x, live, op.perm),
    "pmax": lambda op, live, x: lax.pmax(x, live),
    "pmin": lambda op, live, x: lax.pmin(x, live),
}


#: The collectives that XLA refuses along a dim of size 0.
_ALONG_DIMS: Final = frozenset({"all_gather", "all_gather_invariant", "psum_scatter", "all_to_all"})


def _makes_nothing(op: Op, src: ShType) -> bool:
    """Whether the result has no elements, so that each device creates it alone."""
    return op.name in _ALONG_DIMS and 0 in src.local_shape


def _empty_result(op: Op, live: tuple[str, ...], x: Any) -> Any:
    """The result of a collective of a value without elements, without communication."""
    out = jax.eval_shape(lambda x: _RUN[op.name](op, live, x), x)
    return jnp.zeros(out.shape, out.dtype)


#: The collectives over axes of size 1, which only change shapes.
_ALONE: Final[dict[str, _Run]] = {
    **dict.fromkeys(("psum", "pbroadcast", "pmax", "pmin"), lambda op, live, x: x),
    **dict.fromkeys(
        ("all_gather", "all_gather_invariant", "pplace"),
        lambda op, live, x: x if op.tiled else jnp.expand_dims(x, op.dim),
    ),
    **dict.fromkeys(("psum_scatter", "pscatter"), lambda op, live, x: x if op.tiled else jnp.squeeze(x, op.dim)),
    "all_to_all": lambda op, live, x: x if op.tiled else jnp.moveaxis(x, op.dim, op.concat),
    "ppermute": lambda op, live, x: x if op.perm else jnp.zeros_like(x),
}


def axis_index(mesh: Mesh, axes: tuple[str, ...], elsewhere: State) -> Array:
    """The index of each device along mesh axes, major to minor: varying, and ``elsewhere`` in that state."""
    states = {a: State.VARYING if a in axes else elsewhere for a in mesh.axis_names}
    fn = NamedFn(f"axis_index[{','.join(axes)}]", _axis_index, (("axes", axes),))
    return local(fn, out=as_jax_type(ShType(mesh, "i32", [], states)))


def _axis_index(axes: tuple[str, ...]) -> Any:
    return lax.axis_index(axes).astype(jnp.int32)


# the derivative of a maximum


@dataclass(frozen=True)
class Won(ShardFn):
    """One where the element is the maximum, else zero."""

    stops_gradient = True

    def __str__(self) -> str:
        return "won"

    def __call__(self, x: Any, best: Any) -> Any:
        return (x == best).astype(x.dtype)


def _winners_share(op: Op, x: Any, best: Any, tangent: Any) -> Any:
    """The tangent of a maximum or minimum: the mean of the winners' tangents."""
    t = jax.typeof(x)
    won = local(Won(), x, vary(best, op.axes), out=t)
    count = vary(collect(Op("psum", op.axes, State.VARYING, State.REDUCED), won), op.axes)
    share = local(Divide(), local(Mul(), tangent, won, out=t), count, out=t)
    return collect(Op("psum", op.axes, State.VARYING, op.dst), share)
