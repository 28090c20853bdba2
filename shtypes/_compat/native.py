"""JAX's primitives on typed values: those bound by its transformations, and errors for the others."""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

import jax

from shtypes._compat import private, trace_ctx
from shtypes._compat.jaxprs import jaxpr_of
from shtypes._compat.plain_programs import bound_in_program
from shtypes._compat.program_mesh import sees_plain
from shtypes._compat.tracing import refuse_escaped_operands
from shtypes._compat.typed import CLASSES, TRACERS, TypedType, register, type_of
from shtypes.context.eqn_source import plain_trace
from shtypes.context.frames import frames


def bound_to_typed(original: Callable[..., Any], primitive: Any, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
    """Binds a JAX primitive to operands some of which are typed: by its entry in `_HANDLERS`, or unchanged."""
    handler = _HANDLERS.get(primitive.name)
    if handler is not None:
        outs = handler(functools.partial(original, primitive), args, params)
        if outs is not None:
            return outs
    if _takes_arrays_only(primitive):
        _first_type(args).refuse_plain_use("")
    return original(primitive, *args, **params)


def _first_type(args: tuple[Any, ...]) -> TypedType:
    return next(t for t in map(type_of, args) if t is not None)


def raised(outs: list[Any]) -> list[Any]:
    """Converts the results of `jax.checkpoint`, which JAX lowers to physical arrays, back to typed values."""
    frame: FrameType | None = sys._getframe(2)
    if frame is not None and frame.f_code.co_name == "_remat_bind":
        frame = frame.f_back
    if frame is None or frame.f_code.co_name != "_remat_to_lojax":
        return outs
    avals = [v.aval for v in jaxpr_of(frame.f_locals["jaxpr"]).outvars]
    if not any(isinstance(a, TypedType) for a in avals):
        return outs
    rest = iter(outs)
    return [a.raise_val(*[next(rest) for _ in a.lo_ty()]) if a.is_high else next(rest) for a in avals]


# primitives bound by JAX's transformations

_Bind = Callable[..., Any]


def _repeated(bind: _Bind, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
    """Broadcasts an unmapped operand of `vmap`, where a loop, branch or result must be mapped."""
    if not _called_by("broadcast", "jax._src.interpreters.batching"):
        return None
    shape = params["shape"]
    (axis,) = set(range(len(shape))) - set(params["broadcast_dimensions"])
    return _first_type(args).behaviour.broadcast(args[0], shape[axis], axis)


def _called_by(function: str, module: str) -> bool:
    """Whether a JAX function of this name is binding a primitive."""
    binding = ("jax._src.lax.lax", "jax._src.core", "shtypes._compat.native")
    frame = next((f for f in frames(4) if f.f_globals.get("__name__") not in binding), None)  # the binding caller
    return frame is not None and frame.f_code.co_name == function and frame.f_globals.get("__name__") == module


def _barred(bind: _Bind, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
    """An optimization barrier: around the operands of JAX's next checkpoint, and in users' code."""
    types = [type_of(x) for x in args]
    plain = iter(bind(*(x for x, t in zip(args, types, strict=True) if t is None)))
    return [next(plain) if t is None else t.behaviour.optimization_barrier(x) for x, t in zip(args, types, strict=True)]


def _forward(bind: _Bind, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
    """Refuses to evaluate or differentiate the linear part of a `custom_vjp`, which can only be transposed."""
    trace = trace_ctx.trace
    if getattr(trace, "requires_low", False) or type(trace).__name__ in ("BatchTrace", "JVPTrace", "LinearizeTrace"):
        _first_type(args).refuse_forward()


def _recomputed(bind: _Bind, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
    """`jax.checkpoint`, with its policy adapted to typed equations."""
    policy = _first_type(args).behaviour.checkpoint_policy(params["policy"])
    return None if policy is params["policy"] else bind(*args, **{**params, "policy": policy})


def _with_shardings(bind: _Bind, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
    """Refuses shardings for typed values in `jax.jit`, which up to 0.11 applies them to the physical arrays."""
    outs = getattr(jaxpr_of(params["jaxpr"]), "outvars", ())
    avals = [*map(jax.typeof, args), *(v.aval for v in outs)]
    for aval, sharding in zip(avals, (*params["in_shardings"], *params["out_shardings"]), strict=False):
        if isinstance(aval, TypedType) and isinstance(sharding, jax.sharding.Sharding):
            aval.refuse_sharding(True)


def _refuse_sharding(bind: _Bind, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
    _first_type(args).refuse_sharding(False)


def _key_data(bind: _Bind, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
    """`jax.random.key_data`, which libraries apply to all keys."""
    return type(_first_type(args)).key_data(args[0])


_HANDLERS: Final[dict[str, Callable[[_Bind, tuple[Any, ...], dict[str, Any]], Any]]] = {
    "broadcast_in_dim": _repeated,
    "optimization_barrier": _barred,
    "random_unwrap": _key_data,
    "remat2": _recomputed,
    "custom_lin": _forward,
    "jit": _with_shardings,
    "reshard": _refuse_sharding,
    "sharding_constraint": _refuse_sharding,
}

#: JAX's primitives that send or show plain arrays, whose errors for other operands are unreadable.
_OF_ARRAYS: Final = frozenset(
    {
        *("psum", "pmax", "pmin", "ppermute", "pbroadcast", "psend", "all_to_all", "ragged_all_to_all"),
        *("all_gather", "all_gather_invariant", "all_gather_reduced", "reduce_scatter", "psum_invariant"),
        *("debug_callback", "debug_print", "pure_callback", "io_callback"),
    }
)


@functools.cache
def _takes_arrays_only(primitive: Any) -> bool:
    """Whether a primitive's typing rule is that of JAX's functions of arrays, which refuses anything else."""
    if primitive.name in _OF_ARRAYS:
        return True
    cells = getattr(primitive.abstract_eval, "__closure__", None) or ()
    rules = (getattr(cell.cell_contents, "func", None) for cell in cells)
    return any(getattr(rule, "__name__", "").startswith("standard_") for rule in rules)


_remat: Any = private("jax._src.ad_checkpoint", "remat_p")

_OPERATORS: Final = (
    *("add", "sub", "mul", "truediv", "floordiv", "divmod", "mod", "pow", "matmul", "and", "or", "xor"),
    *("lshift", "rshift"),
)


def _reflected(name: str) -> Callable[[Any, Any], Any]:
    def operate(self: Any, other: Any) -> Any:
        return getattr(self.aval, name)(self, other)

    return operate


def _to_numpy(self: Any, *_: Any, **__: Any) -> Any:
    self.aval.refuse_plain_use("a function of numpy")


#: Attributes of typed values' tracers that differ from other tracers'.
_TYPED_ATTRIBUTES: Final[dict[str, Any]] = {
    **{f"__r{name}__": _reflected(f"_r{name}") for name in _OPERATORS},
    "__array__": _to_numpy,
    "type": property(operator.attrgetter("aval")),
    "tolist": lambda self: type(self.aval).tolist.fun(self),  # JAX's tracers have one that asks no type
    "_is_traced_array": lambda self: True,
}
#: The class of typed values' tracers, by the original class.
_classes: Final[dict[type, type]] = {}


def _class_for(tracer: type) -> type:
    """Makes the class of typed values' tracers of one kind."""
    body = {"__slots__": (), "__module__": tracer.__module__, "__doc__": tracer.__doc__, **_TYPED_ATTRIBUTES}
    typed_class = type(tracer)(tracer.__name__, (tracer,), body)
    _classes[tracer] = _classes[typed_class] = typed_class
    TRACERS.add(typed_class)
    register(typed_class, "aval")
    return typed_class


def by_type(original: Callable[..., None]) -> Callable[..., None]:
    """Wraps the initializer of tracers, to set the class of typed values' tracers."""

    def init(self: Any, trace: Any, aval: Any) -> None:
        original(self, trace, aval)
        if isinstance(aval, TypedType):
            kind = type(self)
            self.__class__ = _classes.get(kind) or _class_for(kind)

    return init


def by_operands(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces `Primitive.bind`, with other rules for typed operands and in plain programs being traced."""

    def bind(self: Any, *args: Any, **params: Any) -> Any:
        if plain_trace.depth and sees_plain():
            return bound_in_program(functools.partial(original, self), self, args, params)
        for x in args:
            if type(x) in CLASSES:
                return bound_to_typed(original, self, args, params)
        try:
            outs = original(self, *args, **params)
        except ValueError as error:
            refuse_escaped_operands(self, args, error)
            raise
        return outs if self is not _remat else raised(outs)

    return bind
