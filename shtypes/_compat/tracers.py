"""What each tracer and each primitive of JAX passes: tracers of typed values get a class of their own.

JAX has one class for the tracers of all types. Python then never asks a typed value on the right of an operator: of
two operands of one class it asks the left one only, but one of a subclass first.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, Final

from shtypes._compat import private
from shtypes._compat.native import bound_to_typed, raised
from shtypes._compat.plain_programs import bound_in_program
from shtypes._compat.program_mesh import sees_plain
from shtypes._compat.typed import CLASSES, TRACERS, TypedType, register
from shtypes.context import plain

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
    self.aval.refuse_native("a function of numpy")


#: What a tracer of a typed value has, and another one has in another way.
_OWN: Final[dict[str, Any]] = {
    **{f"__r{name}__": _reflected(f"_r{name}") for name in _OPERATORS},
    "__array__": _to_numpy,
    "type": property(operator.attrgetter("aval")),
    "_is_traced_array": lambda self: True,
}
#: The class that tracers of typed values get, by the one that they have.
_classes: Final[dict[type, type]] = {}


def _class_for(tracer: type) -> type:
    """Makes the class of tracers of one kind whose values are typed."""
    body = {"__slots__": (), "__module__": tracer.__module__, "__doc__": tracer.__doc__, **_OWN}
    found = type(tracer)(tracer.__name__, (tracer,), body)
    _classes[tracer] = _classes[found] = found
    TRACERS.add(found)
    register(found, "aval")
    return found


def by_type(original: Callable[..., None]) -> Callable[..., None]:
    """The initializer of tracers, which gives those of typed values their class."""

    def init(self: Any, trace: Any, aval: Any) -> None:
        original(self, trace, aval)
        if isinstance(aval, TypedType):
            kind = type(self)
            self.__class__ = _classes.get(kind) or _class_for(kind)

    return init


def by_operands(original: Callable[..., Any]) -> Callable[..., Any]:
    """What binds a primitive; one of JAX's to typed values, as these take it."""

    def bind(self: Any, *args: Any, **params: Any) -> Any:
        if plain.thread.depth and sees_plain():
            return bound_in_program(functools.partial(original, self), self, args, params)
        for x in args:
            if type(x) in CLASSES:
                return bound_to_typed(original, self, args, params)
        outs = original(self, *args, **params)
        return outs if self is not _remat else raised(outs)

    return bind
