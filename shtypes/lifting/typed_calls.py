"""Calls of public functions recorded in plain programs: their results on one device, and on typed values."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import jax

from shtypes._compat.plain_programs import alone
from shtypes.caches import COMPILED, Static
from shtypes.control.vmap import vmap
from shtypes.core.collective import reinterpreted
from shtypes.core.conversion import abstract_array, from_jax, to_jax
from shtypes.core.device_put import type_of
from shtypes.core.jax_context import holds_tracers
from shtypes.core.meshes import abstract_mesh, use_mesh
from shtypes.core.physical import hidden_axes
from shtypes.core.region import Lowering
from shtypes.core.reshard import move
from shtypes.core.shard_fn import is_inexact
from shtypes.dispatch.apply import as_operands, is_typed
from shtypes.errors import ShardingTypeError
from shtypes.evaluation.value_info import aval_of, cast_to_type, of_some
from shtypes.local_mode.shard_map import specs_of
from shtypes.ops import namesakes as _namesakes  # noqa: F401  # connects the fixes with `out=`
from shtypes.ops.table import OPS
from shtypes.scopes.check_comm import check_comm
from shtypes.scopes.scope_rules import in_force
from shtypes.types import ShType, State, dtypes
from shtypes.types.mesh import current_mesh

#: Ops that are the identity on one device.
_SAME: Final = frozenset(
    ("all_gather", "all_reduce", "all_to_all", "constant", "reduce_scatter", "reinterpret", "reshard", "shard")
)
#: The functions of `sh.lax` whose operands need not vary.
_ENTERING: Final = frozenset({"lax.pvary", "lax.pcast", "lax.axis_index", "lax.axis_size"})
#: The mesh axes in a type text: after ``@`` and after a state.
_AXES: Final = re.compile(r"(?:@|\b[A-Z]:)\s*(\w+|\([^)]*\))")


@dataclass(frozen=True)
class TypedCall:
    """A call of a public function, without its arrays."""

    name: str  # of the op in `OPS`, or of ``fn`` in messages
    tree: Any  # the pytree structure of the arguments
    static: tuple[Static | None, ...]  # the non-array leaves, with None for each array
    fn: Callable[..., Any] | None = None  # the function, if it is no op
    axes: tuple[tuple[str, int], ...] = ()  # the axes and sizes of the program's mesh; empty on one device
    plain: Callable[..., Any] | None = None  # the function on one device, if that is another one
    types: tuple[ShType | None, ...] = ()  # of the arrays that are arguments of the traced program

    def __str__(self) -> str:
        return self.name

    @property
    def is_collective(self) -> bool:
        """Whether it is a collective of `sh.lax`, whose operands vary."""
        return self.fn is None and self.name.startswith("lax.") and self.name not in _ENTERING

    @property
    def is_identity(self) -> bool:
        """Whether it is the identity on one device."""
        return self.fn is None and self.name in _SAME and None in self.static

    def on_values(self, *xs: Any) -> Any:
        """Calls the function with these arrays."""
        return self._applied(self.fn or OPS[self.name].function, xs)

    def on_one_device_mesh(self, *xs: Any) -> Any:
        """Calls the function on a mesh of one device, where there is nothing to overlap or to reshard."""
        fn = self.fn or OPS[self.name].function
        left_out = set() if self.fn else {"out", "overlap"} & {*inspect.signature(fn).parameters}

        def as_it_is(*args: Any, **kwargs: Any) -> Any:
            return fn(*args, **{k: v for k, v in kwargs.items() if k not in left_out})

        return self._applied(as_it_is, xs)

    def _applied(self, fn: Callable[..., Any], xs: Sequence[Any]) -> Any:
        rest = iter(xs)
        args, kwargs = jax.tree.unflatten(self.tree, [next(rest) if s is None else s.value for s in self.static])
        return fn(*args, **kwargs)

    def on_one_device(self, *xs: Any) -> Any:
        """Calls the function with plain arrays, on a mesh that has size 1 along each axis that the call names."""
        if self.is_identity:
            return xs[0]
        if self.plain is not None:
            return self._applied(self.plain, xs)
        program, axes, form = _on_one_device(self, tuple(aval_of(x) for x in xs))
        return jax.tree.unflatten(form, Lowering().on_one_device(program, axes, xs))


@functools.lru_cache(maxsize=COMPILED)
def _on_one_device(call: TypedCall, avals: tuple[Any, ...]) -> tuple[Any, tuple[str, ...], Any]:
    """The typed program of a call on one device, its mesh axes, and the structure of its results."""
    texts = [s.value for s in call.static if s is not None and isinstance(s.value, str)]
    named: Any = [n for part in _AXES.findall(" ".join(texts)) for n in re.findall(r"\w+", part)]
    if call.is_collective:  # its strings are axis names
        named = [*named, *texts]
    axes = dict.fromkeys(dict(call.axes) or named, 1) or {"one": 1}
    form: list[Any] = []

    def typed(*xs: Any) -> list[Any]:
        typed_args = [from_jax(x) for x in xs]
        if call.is_collective:
            typed_args = [reinterpreted(x, x.type.with_axes(tuple(axes), State.VARYING)) for x in typed_args]
        leaves, tree = jax.tree.flatten(call.on_one_device_mesh(*typed_args), is_leaf=is_typed)
        form.append(tree)
        return [_plain(y) if is_typed(y) else y for y in leaves]

    with alone(), in_force(()), use_mesh(abstract_mesh(axes)):
        program = jax.make_jaxpr(typed)(*avals)
    return program, tuple(axes), form[0]


@dataclass(frozen=True)
class InsertedCast(TypedCall):
    """A reshard that `implicit_comm` inserts."""

    to: ShType | None = None
    constant: bool = False  # whether the value has no gradient

    def __str__(self) -> str:
        return "implicit_comm"

    def on_values(self, *xs: Any) -> Any:
        """Checks the reshard against the enclosing scopes, and applies it."""
        ((x,), constants) = as_operands(xs)  # a carry may start as a plain number
        constant = self.constant or bool(constants)
        goal = x.type if self.to is None else self.to.named(x.type.names)
        check_comm("implicit_comm", x.type, goal, inserted=True, has_gradient=not constant)
        return move(x, goal, inserted=True, constant=constant)


def _plain(y: Any) -> Any:
    """Converts a result on one device to a plain array."""
    hidden = hidden_axes(y.type)
    return to_jax(reinterpreted(y, y.type.with_axes(hidden, State.INVARIANT)) if hidden else y)


def check_closure(name: str, fn: Callable[..., Any]) -> None:
    """Refuses a function that closes over tracers, which are gone when it is evaluated."""
    if holds_tracers(fn):
        raise ShardingTypeError(
            f"the function given to `{name}` closes over a value of the lifted program",
            why="it is evaluated later, on typed values, when that value is gone",
            hints=["give the value to the function as an argument"],
        )


@functools.lru_cache(maxsize=COMPILED)
def _typed_results(call: TypedCall, avals: tuple[Any, ...]) -> Any:
    """The abstract results for operands of the types of the call or of its ``in_specs``; None without types."""
    specs: Sequence[Any] = call.types or [None]
    if getattr(call.fn, "in_specs", None) is not None:
        args, _ = jax.tree.unflatten(call.tree, [0 if s is None else s.value for s in call.static])
        arg_specs = specs_of(call.fn.in_specs, args)  # type: ignore[union-attr]
        specs = [spec for spec, s in zip(arg_specs, call.static, strict=True) if s is None]
    if any(spec is None for spec in specs):
        return None
    with alone(), in_force(()), use_mesh(abstract_mesh(dict(call.axes))):
        types = [
            type_of(spec, None, shape=a.shape, dtype=dtypes.from_numpy(a.dtype))
            for spec, a in zip(specs, avals, strict=True)
        ]
        structs = jax.eval_shape(call.on_values, *map(abstract_array, types))
    return jax.tree.map(_struct, structs, is_leaf=lambda x: hasattr(x, "dtype"))


def eval_shape_of(call: TypedCall, avals: tuple[Any, ...]) -> Any:
    """The shapes and dtypes of a call's results, for operands of these shapes and dtypes."""
    if call.is_identity:
        return avals[0]
    structs = _typed_results(call, avals) if call.axes and call.plain is None else None
    if structs is not None:
        return structs
    if call.axes and call.is_collective:
        return jax.tree.map(_struct, _collective_results(call, avals), is_leaf=lambda x: hasattr(x, "dtype"))
    with alone():
        try:
            return jax.eval_shape(call.on_one_device, *avals)
        except ShardingTypeError as error:
            if call.fn is None or not call.axes:
                raise
            raise ShardingTypeError(
                f"what `{call}` makes of its operands is not known where a lifted program is traced",
                why=f"it follows from their types, which are found afterwards; on one device: {error.what}",
                hints=["sh.shard_map(..., in_specs=...), which says how the operands lie"],
            ) from None


@functools.lru_cache(maxsize=COMPILED)
def _collective_results(call: TypedCall, avals: tuple[Any, ...]) -> Any:
    """The abstract results of a collective for shards of these shapes."""
    with alone(), in_force(()), use_mesh(abstract_mesh(dict(call.axes))):
        states = dict.fromkeys(dict(call.axes), State.VARYING)
        types = [ShType(current_mesh(), dtypes.from_numpy(a.dtype), list(a.shape), states) for a in avals]
        return jax.eval_shape(call.on_values, *map(abstract_array, types))


def _struct(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


@dataclass(frozen=True)
class Derived:
    """The jvp, vjp or vmap of a call, as a function from a list of arrays to a list of arrays.

    Attributes:
        how: ``"tangents"``: from operands and the tangents of the live ones to the results' tangents;
            ``"cotangents"``: from operands and the results' cotangents to the cotangents of the live operands;
            ``"mapped"``: from operands with mapped ``dims`` to the results, mapped over their first dim.
    """

    call: Any  # a `TypedCall`, or another `Derived`
    how: str
    live: tuple[bool, ...] = ()  # which operands are differentiated
    dims: tuple[int | None, ...] = ()  # the mapped dim of each operand

    def __str__(self) -> str:
        return f"{self.how} of {self.call}"


def shapes(call: Any, avals: Sequence[Any]) -> list[Any]:
    """The shapes and dtypes of a call's results, flat."""
    if isinstance(call, TypedCall):
        return jax.tree.leaves(eval_shape_of(call, tuple(map(_struct, avals))))
    if call.how == "cotangents":
        return [a for a, live in zip(avals, call.live, strict=False) if live]
    if call.how == "tangents":
        return [y for y in shapes(call.call, avals[: len(call.live)]) if is_inexact(y)]
    size = next(a.shape[d] for a, d in zip(avals, call.dims, strict=True) if d is not None)
    one = [
        a if d is None else jax.ShapeDtypeStruct(a.shape[:d] + a.shape[d + 1 :], a.dtype)
        for a, d in zip(avals, call.dims, strict=True)
    ]
    return [jax.ShapeDtypeStruct((size, *y.shape), y.dtype) for y in shapes(call.call, one)]


def results(call: Any, xs: Sequence[Any], *, typed: bool) -> list[Any]:
    """The results of a call on typed or plain values, flat."""
    if isinstance(call, TypedCall):
        return jax.tree.leaves((call.on_values if typed else call.on_one_device)(*xs), is_leaf=is_typed)
    inner = functools.partial(results, call.call, typed=typed)
    if call.how == "mapped":
        mapping: Any = vmap if typed else jax.vmap
        return list(mapping(lambda *xs: inner(xs), in_axes=call.dims)(*xs))
    n = len(call.live)
    primals, rest = list(xs[:n]), list(xs[n:])
    chosen = [i for i, live in enumerate(call.live) if live]

    of_live = of_some(lambda full: [y for y in inner(full) if is_inexact(y)], primals, chosen)
    at = [primals[i] for i in chosen]
    if call.how == "tangents":
        tangents = [cast_to_type(t, x.type) if is_typed(x) else t for t, x in zip(rest, at, strict=True)]
        return list(jax.jvp(of_live, at, tangents)[1])
    ys, pull = jax.vjp(of_live, *at)
    return list(
        pull([cast_to_type(ct, y.type.cotangent()) if is_typed(y) else ct for ct, y in zip(rest, ys, strict=True)])
    )
