"""Typed ops in plain programs: a call of `reshard`, `einsum`, ... on plain arrays where no mesh is set.

On one device it is the same op without communication. While `lift` traces a plain program, it is recorded as one
equation, which is evaluated as the op on typed values. So one model, with its reshards, runs in both ways.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import jax
import numpy as np
from jax.interpreters import ad, batching, mlir

from shtypes._compat import Zero, instantiate_zeros, is_undefined_primal
from shtypes._compat.plain_programs import PlainPrimitive, closed_over, is_tracing_plain
from shtypes.caches import COMPILED
from shtypes.context.user_line import connect_one_device
from shtypes.control.vmap import vmap
from shtypes.core.meshes import abstract_mesh, use_mesh
from shtypes.lifting.constants import is_constant, is_inexact, typed_constant
from shtypes.lifting.joins import aval_of, of_some, placed
from shtypes.lifting.registry import body_row, op
from shtypes.lifting.static import Static
from shtypes.ops.dispatch import is_typed
from shtypes.ops.table import OPS
from shtypes.primitives.conversions import to_jax
from shtypes.primitives.native import from_jax
from shtypes.region import Lowering
from shtypes.types.mesh import current_mesh

#: Ops that give the value that they are given, on one device.
_SAME: Final = frozenset(
    ("all_gather", "all_reduce", "all_to_all", "constant", "reduce_scatter", "reinterpret", "reshard", "shard")
)
#: Where a type text names mesh axes: after ``@`` and after a state.
_AXES: Final = re.compile(r"(?:@|\b[A-Z]:)\s*(\w+|\([^)]*\))")


@dataclass(frozen=True)
class TypedCall:
    """A call of a public op: its arrays apart from all else.

    Attributes:
        name: The op, as `OPS` calls it.
        tree: The structure of its arguments.
        static: The leaves that are no arrays; None in the places of arrays.
    """

    name: str
    tree: Any
    static: tuple[Static | None, ...]

    def __str__(self) -> str:
        return self.name

    @property
    def is_the_value(self) -> bool:
        """Whether it gives its operand on one device."""
        return self.name in _SAME and None in self.static

    def on_values(self, *xs: Any) -> Any:
        """The op on these arrays."""
        given = iter(xs)
        args, kwargs = jax.tree.unflatten(self.tree, [next(given) if s is None else s.value for s in self.static])
        return op(self.name)(*args, **kwargs)

    def on_one_device(self, *xs: Any) -> Any:
        """The op on plain arrays: on a mesh that has one device along each axis that the call names."""
        if self.is_the_value:
            return xs[0]
        program, axes, form = _on_one_device(self, tuple(aval_of(x) for x in xs))
        return jax.tree.unflatten(form, Lowering().on_one_device(program, axes, xs))


@functools.lru_cache(maxsize=COMPILED)
def _on_one_device(call: TypedCall, avals: tuple[Any, ...]) -> tuple[Any, tuple[str, ...], Any]:
    """The typed program of a call on one device, its axes, and the structure of its results."""
    texts = " ".join(s.value for s in call.static if s is not None and isinstance(s.value, str))
    axes = dict.fromkeys((n for part in _AXES.findall(texts) for n in re.findall(r"\w+", part)), 1) or {"one": 1}
    form: list[Any] = []

    def typed(*xs: Any) -> list[Any]:
        made, tree = jax.tree.flatten(call.on_values(*map(from_jax, xs)), is_leaf=is_typed)
        form.append(tree)
        return [to_jax(y) if is_typed(y) else y for y in made]

    with use_mesh(abstract_mesh(axes)):
        program = jax.make_jaxpr(typed)(*avals)
    return program, tuple(axes), form[0]


@dataclass(frozen=True)
class Derived:
    """What a transformation of JAX makes of a call: of the flat list of its results, as a function of arrays.

    Attributes:
        call: The call, or what was derived from it before.
        how: ``"tangents"``: from operands, and the tangents of those that are live, to the results' tangents;
            ``"cotangents"``: from operands, and the results' cotangents, to those of the live operands; ``"mapped"``:
            from operands with a mapped dim where ``dims`` says.
        live: Which operands are differentiated.
        dims: The mapped dim of each operand.
    """

    call: Any
    how: str
    live: tuple[bool, ...] = ()
    dims: tuple[int | None, ...] = ()

    def __str__(self) -> str:
        return f"{self.how} of {self.call}"


def results(call: Any, xs: Sequence[Any], *, typed: bool) -> list[Any]:
    """The arrays that a call gives, of typed values or of plain ones."""
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
        given = [placed(t, x.type) if is_typed(x) else t for t, x in zip(rest, at, strict=True)]
        return list(jax.jvp(of_live, at, given)[1])
    ys, pull = jax.vjp(of_live, *at)
    return list(pull([placed(ct, y.type.cotangent()) if is_typed(y) else ct for ct, y in zip(rest, ys, strict=True)]))


# the primitive

typed_call_p: Final = PlainPrimitive("typed_call")
typed_call_p.multiple_results = True


def _plainly(*xs: Any, call: Any) -> list[Any]:
    return results(call, xs, typed=False)


def _abstract(*avals: Any, call: Any) -> Any:
    if isinstance(call, TypedCall) and call.is_the_value:
        return [jax.core.ShapedArray(avals[0].shape, avals[0].dtype)], set()
    outs = jax.eval_shape(
        functools.partial(_plainly, call=call), *[jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]
    )
    return [jax.core.ShapedArray(out.shape, out.dtype) for out in outs], set()


typed_call_p.def_effectful_abstract_eval(_abstract)
typed_call_p.def_impl(_plainly)
mlir.register_lowering(typed_call_p, mlir.lower_fun(_plainly, multiple_results=True))


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, call: Any) -> Any:
    outs = typed_call_p.bind(*primals, call=call)
    live = tuple(not isinstance(t, Zero) and is_inexact(x) for x, t in zip(primals, tangents, strict=True))
    given = [t for t, is_live in zip(tangents, live, strict=True) if is_live]
    made = iter(typed_call_p.bind(*primals, *given, call=Derived(call, "tangents", live)))
    zero = [Zero(jax.typeof(y).to_tangent_aval()) for y in outs]
    return outs, [next(made) if is_inexact(y) else z for y, z in zip(outs, zero, strict=True)]


def _transpose(cts: Sequence[Any], *operands: Any, call: Any) -> list[Any]:
    """Of the tangents of a call: its cotangents."""
    n = len(call.live)
    given = [instantiate_zeros(ct) for ct in cts]
    found = typed_call_p.bind(*operands[:n], *given, call=Derived(call.call, "cotangents", call.live))
    rest = [ct if is_undefined_primal(t) else None for t, ct in zip(operands[n:], found, strict=True)]
    return [None] * n + rest


def _batch(operands: Sequence[Any], dims: Sequence[Any], *, call: Any) -> Any:
    mapped = tuple(None if d is None else int(d) for d in dims)
    outs = typed_call_p.bind(*operands, call=Derived(call, "mapped", dims=mapped))
    return outs, [0] * len(outs)


ad.primitive_jvps[typed_call_p] = _jvp
ad.primitive_transposes[typed_call_p] = _transpose
batching.primitive_batchers[typed_call_p] = _batch


@body_row("typed_call")
def _typed_call(eqn: Any, operands: list[Any]) -> list[Any]:
    mesh = next((x.type.mesh for x in operands if is_typed(x)), None) or current_mesh()
    call = eqn.params["call"]
    known = [isinstance(x, jax.core.Tracer) and not is_typed(x) and is_constant(x) for x in operands]
    given = [typed_constant(x, mesh) if k else x for x, k in zip(operands, known, strict=True)]
    return results(call, given, typed=True)


@body_row("closed_over")
def _closed_over(eqn: Any, operands: list[Any]) -> list[Any]:
    return operands


# calls where no mesh is set


def without_mesh(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A public function of plain arrays where no mesh is set; None where it is no op, or there are none."""
    name = _names().get(fn)
    leaves, tree = jax.tree.flatten((args, kwargs), is_leaf=lambda x: x is None)
    traced = is_tracing_plain()
    leaves = [closed_over(x) if traced else x for x in leaves]
    arrays = [isinstance(x, (jax.Array, np.ndarray, np.generic)) for x in leaves]
    if name is None or any(map(is_typed, leaves)) or not (traced or any(isinstance(x, jax.Array) for x in leaves)):
        return None
    static = tuple(None if a else Static(x) for x, a in zip(leaves, arrays, strict=True))
    call = TypedCall(name, tree, static)
    xs = [x for x, a in zip(leaves, arrays, strict=True) if a]
    if not traced:
        return call.on_one_device(*xs)
    if call.is_the_value:
        return typed_call_p.bind(*xs, call=call)[0]
    form = jax.tree.structure(jax.eval_shape(call.on_one_device, *[jax.typeof(x) for x in xs]))
    return jax.tree.unflatten(form, typed_call_p.bind(*xs, call=call))


@functools.cache
def _names() -> dict[Any, str]:
    """The public ops, and what they are called."""
    return {op(name): name for name in OPS}


connect_one_device(without_mesh)
