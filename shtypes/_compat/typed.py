"""The bases by which what is replaced in JAX recognises typed values: their classes, and the base of their type."""

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

#: The classes of typed values: that of values, and those of tracers, as they are met.
CLASSES: Final[set[type]] = set()
#: Those of tracers.
TRACERS: Final[set[type]] = set()

#: Where `jax.grad` looks at its loss: it asks for the type, and takes a `ShapedArray` only.
_CHECK_SCALAR: Final[CodeType] = private("jax._src.api", "_check_scalar").__code__
#: Where JAX 0.12 looks at the value that a sharding is for: it tests for JAX's types.
_CHECK_PLACED: Final[CodeType] = private("jax._src.pjit", "pjit_check_aval_sharding").__code__
#: Where `jax.linear_transpose` looks at a cotangent: it compares its type with that of the result.
_CHECK_COTANGENT: Final[CodeType] = private("jax._src.core", "typecheck").__code__


class Behaviour(NamedTuple):
    """Operations of types on their values that JAX asks for; they take the primitives, and so are set from above."""

    raised: Callable[[Any, Any], Any]  # of a type and a physical array: the value
    zero: Callable[[Any], Any]  # zero of a type
    added: Callable[[Any, Any, Any], Any]  # of a type and two of its values: their sum
    repeated: Callable[[Any, int, int], Any]  # a value with a new dim of some size, along which it is repeated
    stopped: Callable[[Any], Any]  # a value without its gradient
    barred: Callable[[Any], Any]  # a value, computed before what follows
    typed_policy: Callable[[Any], Any]  # the policy of a checkpoint, as it decides about typed equations
    selected: Callable[[Any, Sequence[Any]], Any]  # the case that is chosen along the mapped dim
    check_loss: Callable[[Any], object]  # refuses a type that is no loss; whether a complex one is, JAX asks itself
    seed: Callable[[Any], Any]  # the cotangent that the backward pass of a loss of a type starts with


class TypedType(HiType):
    """The base of the type of typed values, with what JAX is led to ask of it."""

    __slots__ = ()
    dims: tuple[Any, ...]
    dtype: Any
    behaviour: ClassVar[Behaviour]  # set by the room that has it: `shtypes.autodiff.grad`
    key_data: ClassVar[Callable[[Any], Any]]  # the words of keys, for `jax.random.key_data`; likewise

    @property
    def is_high(self) -> bool:  # type: ignore[override]  # JAX only reads it
        """True for JAX's dispatch on hijax types; a check of shardings that asks is refused."""
        asking = sys._getframe(1)
        if asking.f_code is _CHECK_PLACED:
            self.refuse_sharding(by_jit="jit" in asking.f_locals.get("what_aval", ""))
        return True

    def normalize(self) -> Any:
        """The type that JAX's `typecheck` compares; for `jax.linear_transpose`, equal to the cotangent type."""
        asking = sys._getframe(3)
        if asking.f_code is _CHECK_COTANGENT and asking.f_locals.get("aval") is self:
            outer = (asking.f_back, asking.f_back and asking.f_back.f_back)
            if any(frame is not None and frame.f_code.co_name == "transposed_fun" for frame in outer):
                return _Result(self)
        return self

    def refuse_native(self, called: str) -> NoReturn:
        """Says that a function of JAX or numpy takes no typed value."""
        raise NotImplementedError

    def refuse_sharding(self, by_jit: bool) -> NoReturn:
        """Says that a sharding does not go with a typed value."""
        raise NotImplementedError

    def steps(self) -> int:
        """How many steps a loop over the leading dim has; refused where it cannot run over it."""
        raise NotImplementedError

    def refuse_steps(self, counts: Sequence[int]) -> NoReturn:
        """Says that what a loop runs over has other sizes."""
        raise NotImplementedError

    def refuse_forward(self) -> NoReturn:
        """Says that a function with a custom backward pass has no forward derivative."""
        raise NotImplementedError


#: JAX's table of rules that add an equation to the jaxpr that is traced.
_staging_rules: Final[dict[Any, Any]] = private("jax._src.interpreters.partial_eval", "custom_staging_rules")


class _Probe(Primitive):
    def bind_with_trace(self, trace: Any, args: Any, avals: Any, params: Any, /) -> Any:
        return trace_ctx.trace


#: The current trace while a primitive is processed: that of values up to 0.11, and none later.
_PROCESSING: Final = _Probe("probe").bind()


class TypedPrimitive(HiPrimitive):
    """A primitive of typed values, with several results, that is quicker to bind and to trace.

    JAX's `bind` checks of each operand whether it is a plain array on another mesh; its traces look up the types of
    the results by all parameters, and look for constants to fold.
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
    """The type of a result, which is equal to that of its cotangents."""

    __slots__ = ("_type",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, t: TypedType) -> None:
        self._type = t

    def __eq__(self, other: object) -> bool:
        return bool(self._type.to_ct_aval() == (other._type if isinstance(other, _Result) else other))


def refused_cotangents() -> list[tuple[Any, Any]]:
    """The types of results and the cotangents that `jax.linear_transpose` is refusing: in the caller's caller."""
    asking = sys._getframe(2)
    if asking.f_code.co_name != "transposed_fun":
        return []
    return list(zip(asking.f_locals.get("out_avals", ()), asking.f_locals.get("out_cts", ()), strict=False))


def is_shown_as_no_loss() -> bool:
    """Whether `jax.grad` is formatting its error for a loss that is no scalar (in the caller's caller)."""
    return sys._getframe(2).f_code is _CHECK_SCALAR


def type_of(x: Any) -> TypedType | None:
    """The type of a typed value; None of anything else."""
    if type(x) not in CLASSES:
        return None
    t: TypedType = jax.typeof(x)
    return t


def is_typed_var(var: Any) -> bool:
    """Whether a variable of a program stands for a typed value."""
    return isinstance(var.aval, TypedType)


def is_of_typed(eqn: Any) -> bool:
    """Whether an equation takes typed values, or makes some."""
    return any(map(is_typed_var, (*eqn.invars, *eqn.outvars)))


def register(kind: type, attribute: str) -> None:
    """Makes the objects of a class typed values, with the type that they have under a name.

    To `jax.grad`, which asks what its loss is, a scalar is a scalar array. In a plain program that is being traced,
    they are arrays of their global shapes.
    """

    def typeof(x: Any) -> Any:
        t = getattr(x, attribute)
        if plain_trace.depth and sees_plain():
            return jax.core.ShapedArray(t.shape, t.dtype)
        return t if t.dims or sys._getframe(2).f_code is not _CHECK_SCALAR else _scalar_array(t)

    CLASSES.add(kind)
    register_hitype(kind, typeof)


def _scalar_array(t: TypedType) -> Any:
    """The scalar array type under which `jax.grad` accepts a loss; the type itself if it is no loss."""
    try:
        t.behaviour.check_loss(t)
    except TypeError:
        return t  # the message is about it
    return jax.core.ShapedArray((), t.dtype)
