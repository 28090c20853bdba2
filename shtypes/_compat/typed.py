"""Classes of typed values and the base class of their type, by which patches of JAX recognise them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any, ClassVar, Final, NamedTuple, NoReturn

import jax
from jax.extend.core import Primitive, set_current_trace

from shtypes._compat import HiPrimitive, HiType, private, register_hitype, trace_ctx
from shtypes._compat.program_mesh import sees_plain
from shtypes.context.eqn_source import plain_trace

#: The classes of typed values and of their tracers.
CLASSES: Final[set[type]] = set()
#: The classes of their tracers.
TRACERS: Final[set[type]] = set()

#: `jax.grad`'s check of a loss, which accepts only a `ShapedArray`.
_CHECK_SCALAR: Final[CodeType] = private("jax._src.api", "_check_scalar").__code__
#: JAX 0.12's check of a sharding's value, which tests for JAX's types.
_CHECK_PLACED: Final[CodeType] = private("jax._src.pjit", "pjit_check_aval_sharding").__code__
#: `jax.linear_transpose`'s check of a cotangent, which compares its type with that of the result.
_CHECK_COTANGENT: Final[CodeType] = private("jax._src.core", "typecheck").__code__


class Behaviour(NamedTuple):
    """Operations on typed values that JAX needs; set by `autodiff.grad`, which can import the primitives."""

    raise_val: Callable[[Any, Any], Any]  # the value of a type and a physical array
    zero: Callable[[Any], Any]  # zero of a type
    add: Callable[[Any, Any, Any], Any]  # the sum of two values of a type
    broadcast: Callable[[Any, int, int], Any]  # a value broadcast along a new dim of some size
    stop_gradient: Callable[[Any], Any]  # a value without its gradient
    optimization_barrier: Callable[[Any], Any]  # a value behind an optimization barrier
    checkpoint_policy: Callable[[Any], Any]  # from a policy for plain programs, a checkpoint policy for typed equations
    select_n: Callable[[Any, Sequence[Any]], Any]  # the selected case along the mapped dim
    check_loss: Callable[[Any], object]  # refuses a type that is not a loss; JAX checks complex ones
    seed: Callable[[Any], Any]  # the first cotangent of a loss of a type


class TypedType(HiType):
    """The base class of sharding types for JAX."""

    __slots__ = ()
    dims: tuple[Any, ...]
    dtype: Any
    behaviour: ClassVar[Behaviour]  # set by `shtypes.autodiff.grad`
    key_data: ClassVar[Callable[[Any], Any]]  # `jax.random.key_data`; likewise
    # methods of the class in `core.jax_type`
    refuse_plain_use: Callable[[str], NoReturn]  # of a JAX or numpy function that takes no typed values
    refuse_sharding: Callable[[bool], NoReturn]  # of a typed value; whether `jax.jit` has it
    refuse_forward: Callable[[], NoReturn]  # of a function with a custom backward pass
    steps: Callable[[], int]  # the length of a loop over the leading dim; raises if that is impossible
    refuse_steps: Callable[[Sequence[int]], NoReturn]  # of loop operands of different lengths

    @property
    def is_high(self) -> bool:  # type: ignore[override]  # JAX only reads it
        """True for JAX's dispatch on hijax types; refuses JAX's check of a sharding."""
        caller = sys._getframe(1)
        if caller.f_code is _CHECK_PLACED:
            self.refuse_sharding("jit" in caller.f_locals.get("what_aval", ""))
        return True

    def normalize(self) -> Any:
        """The type that JAX's `typecheck` compares; for `jax.linear_transpose`, equal to the cotangent type."""
        caller = sys._getframe(3)
        if caller.f_code is _CHECK_COTANGENT and caller.f_locals.get("aval") is self:
            outer = (caller.f_back, caller.f_back and caller.f_back.f_back)
            if any(frame is not None and frame.f_code.co_name == "transposed_fun" for frame in outer):
                return _Result(self)
        return self


#: JAX's table of rules that add an equation to a jaxpr being traced.
_staging_rules: Final[dict[Any, Any]] = private("jax._src.interpreters.partial_eval", "custom_staging_rules")


class _Probe(Primitive):
    def bind_with_trace(self, trace: Any, args: Any, avals: Any, params: Any, /) -> Any:
        return trace_ctx.trace


#: The current trace while a primitive is processed: the eager one up to 0.11, and None later.
_PROCESSING: Final = _Probe("probe").bind()


class TypedPrimitive(HiPrimitive):
    """A primitive of typed values with several results, with faster binding and tracing.

    JAX's `bind` checks each operand for a plain array on another mesh; its traces look up result types by all
    parameters, and constants to fold.
    """

    multiple_results = True

    def __init__(self, name: str) -> None:
        super().__init__(name)
        _staging_rules[self] = self._staged

    def bind(self, *args: Any, **params: Any) -> Any:
        for x in args:
            if type(x) not in TRACERS or not x._trace.is_valid():
                return super().bind(*args, **params)  # type: ignore[no-untyped-call]
        trace = trace_ctx.trace
        if trace.requires_low:
            with set_current_trace(trace):
                return self.to_lojax(*args, **params)
        trace_ctx.set_trace(_PROCESSING)
        try:
            return trace.process_primitive(self, args, params)
        finally:
            trace_ctx.set_trace(trace)

    def _staged(self, trace: Any, source_info: Any, *tracers: Any, **params: Any) -> list[Any]:
        types, effects = self.abstract_eval(*[x.aval for x in tracers], **params)
        eqn, outs = trace.make_eqn(tracers, types, self, params, effects, source_info)
        trace.frame.add_eqn(eqn)
        return outs  # type: ignore[no-any-return]


class _Result:
    """The type of a result, equal to that of its cotangents."""

    __slots__ = ("_type",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, t: TypedType) -> None:
        self._type = t

    def __eq__(self, other: object) -> bool:
        return bool(self._type.to_ct_aval() == (other._type if isinstance(other, _Result) else other))


def refused_cotangents() -> list[tuple[Any, Any]]:
    """The result types and cotangents that `jax.linear_transpose` is refusing, from the caller's caller."""
    caller = sys._getframe(2)
    if caller.f_code.co_name != "transposed_fun":
        return []
    return list(zip(caller.f_locals.get("out_avals", ()), caller.f_locals.get("out_cts", ()), strict=False))


def is_shown_as_no_loss() -> bool:
    """Whether `jax.grad` is formatting its error for a loss that is not a scalar (in the caller's caller)."""
    return sys._getframe(2).f_code is _CHECK_SCALAR


def type_of(x: Any) -> TypedType | None:
    """The type of a typed value; None for anything else."""
    if type(x) not in CLASSES:
        return None
    t: TypedType = jax.typeof(x)
    return t


def is_typed_var(var: Any) -> bool:
    """Whether a program's variable has a sharding type."""
    return isinstance(var.aval, TypedType)


def is_of_typed(eqn: Any) -> bool:
    """Whether an equation has typed operands or results."""
    return any(map(is_typed_var, (*eqn.invars, *eqn.outvars)))


def register(kind: type, attribute: str) -> None:
    """Makes a class one of typed values, whose type is an attribute.

    For `jax.grad`'s check of its loss, a scalar is a scalar array. In a plain program being traced, they are arrays of
    their global shapes.
    """

    def typeof(x: Any) -> Any:
        t = getattr(x, attribute)
        if plain_trace.depth and sees_plain():
            return jax.core.ShapedArray(t.shape, t.dtype)
        return t if t.dims or sys._getframe(2).f_code is not _CHECK_SCALAR else _scalar_array(t)

    CLASSES.add(kind)
    register_hitype(kind, typeof)


def _scalar_array(t: TypedType) -> Any:
    """The scalar array type with which `jax.grad` accepts a loss; the type itself if it is not a loss."""
    try:
        t.behaviour.check_loss(t)
    except TypeError:
        return t  # for the error message
    return jax.core.ShapedArray((), t.dtype)
