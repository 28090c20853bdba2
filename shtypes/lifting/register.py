"""`lift.register`, which adds the user's rows to the table of primitives."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, TypeVar, cast

import jax

from shtypes.context.settings import count_rows
from shtypes.context.signature_errors import check_function, kind_of
from shtypes.context.user_line import public
from shtypes.dispatch.apply import is_array, is_number
from shtypes.errors import ShardingTypeError
from shtypes.evaluation.table import BODIES, CHOICES, ROWS, WAYS

R = TypeVar("R", bound=Callable[..., Any])


class Lift(Protocol):
    """The type of `lift`: a function with a ``register`` attribute."""

    def __call__(
        self,
        f: Callable[..., Any],
        *,
        at: Mapping[str, Any] | None = None,
        pending: Literal["keep", "finish"] = "keep",
    ) -> Callable[..., Any]:
        """Converts a plain JAX function to one of typed values."""
        ...

    def register(self, primitive: Any) -> Callable[[R], R]:
        """Registers a function as the row of a primitive."""
        ...


def register(primitive: Any) -> Callable[[R], R]:
    """Registers a function as the row of a primitive, which evaluates it where an operand is typed.

    Args:
        primitive: JAX's primitive, or its name. An existing row is replaced.

    Returns:
        A decorator for the row: a function of the operands and, by keyword, of all parameters of the primitive. It
        calls ops of typed values, whose typing and derivative rules apply, and returns the result, or a list of
        results for a primitive with several. Constant operands are typed; concrete scalars are Python numbers.

    Raises:
        ShardingTypeError: ``primitive`` is neither a primitive nor a name.

    Examples:
        >>> import shtypes as sh
        >>> @sh.lift.register("my_scale")
        ... def scale(x, *, factor):
        ...     return x * factor
    """
    name = primitive if isinstance(primitive, str) else getattr(primitive, "name", None)
    if not isinstance(name, str) or not name:
        raise ShardingTypeError(
            f"`lift.register` takes a primitive of JAX or its name, and was given `{primitive!r}`",
            hints=['@sh.lift.register("my_primitive")'],
        )

    def add(fn: R) -> R:
        check_function("lift.register", fn)
        for table in (BODIES, CHOICES, WAYS):  # the entries of the row that is replaced
            table.pop(name, None)
        ROWS[name] = functools.partial(_registered, fn)
        count_rows()
        return fn

    return add


def _registered(fn: Callable[..., Any], eqn: Any, operands: list[Any]) -> list[Any]:
    """Evaluates an equation with a row that the user registered."""
    try:
        inspect.signature(fn).bind(*operands, **eqn.params)
    except TypeError:
        raise ShardingTypeError(
            f"`{eqn.primitive.name}` has the parameters {', '.join(sorted(eqn.params))}, which its row does not take",
            why="a row is a function of the operands and, by keyword, of all parameters",
        ) from None
    out = fn(*operands, **eqn.params)
    results = list(out) if isinstance(out, (list, tuple)) else [out]
    types = [jax.typeof(x) if is_array(x) or is_number(x) else None for x in results]
    shapes = [None if t is None else (tuple(t.shape), t.dtype) for t in types]
    if shapes != [(tuple(v.aval.shape), v.aval.dtype) for v in eqn.outvars]:
        texts = (kind_of(x) if t is None else str(t) for x, t in zip(results, types, strict=True))
        raise ShardingTypeError(
            f"the row of `{eqn.primitive.name}` gave {', '.join(texts)}, "
            f"and the primitive gives {', '.join(str(v.aval) for v in eqn.outvars)}",
            why="a row returns typed values of the primitive's shapes and dtypes, one for each result",
        )
    return results


def add_register(fn: Callable[..., Callable[..., Any]]) -> Lift:
    """`lift` with its attribute."""
    fn.register = public(register)  # type: ignore[attr-defined]
    return cast("Lift", fn)
