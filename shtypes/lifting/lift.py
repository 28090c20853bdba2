"""`lift`: a plain JAX function as one of typed values."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import jax
import numpy as np

from shtypes._compat.plain_programs import needed, trace_plain
from shtypes.caches import PROGRAMS, Bounded
from shtypes.context.calls import check_function
from shtypes.errors import ShardingTypeError
from shtypes.lifting import typed_calls
from shtypes.lifting.constants import noting
from shtypes.lifting.evaluate import evaluate
from shtypes.lifting.joins import aval_of
from shtypes.lifting.rows import annotations as annotations_
from shtypes.lifting.rows import control, derivatives, elementwise, lookups, matrices, numbers, reductions, shapes
from shtypes.ops.dispatch import is_typed

#: The files that fill the table of primitives when they are imported.
_FILLED: Final = (
    *(annotations_, control, derivatives, elementwise, lookups, matrices, numbers, reductions, shapes, typed_calls),
)


class _Static:
    """A leaf of the arguments that is no array: the function gets it as it is."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Static) or type(self.value) is not type(other.value):
            return False
        return self.value is other.value or bool(self.value == other.value)

    def __hash__(self) -> int:
        try:
            return hash((type(self.value), self.value))
        except TypeError:
            return id(self.value)


class _Program:
    """A plain function for arguments of one structure, and with these static leaves."""

    def __init__(self, f: Callable[..., Any], tree: Any, static: tuple[_Static | None, ...]) -> None:
        def flat(*arrays: Any) -> Any:
            given = iter(arrays)
            leaves = [next(given) if s is None else s.value for s in static]
            args, kwargs = jax.tree.unflatten(tree, leaves)
            return f(*args, **kwargs)

        flat.__name__ = flat.__qualname__ = getattr(f, "__name__", "f")
        self.flat = flat
        self._live: Bounded[Any] = Bounded(8)

    def __call__(self, arrays: list[Any]) -> Any:
        closed, tree = trace_plain(self.flat, [aval_of(x) for x in arrays])
        known = self._live.get(id(closed))
        if known is None:
            known = self._live.put(id(closed), (closed, *needed(closed)))  # held, so that its id stays its own
        _, jaxpr, consts = known
        with noting():
            return jax.tree.unflatten(tree, evaluate(jaxpr, consts, arrays))


def _is_array(x: Any) -> bool:
    return is_typed(x) or isinstance(x, (jax.Array, jax.core.Tracer, np.ndarray, np.generic))


def lift(f: Callable[..., Any]) -> Callable[..., Any]:
    """A plain JAX function as one of typed values.

    The typed leaves of its arguments are traced as plain arrays of their global shape; the program is evaluated with
    the typed ops, one for each primitive. So what is written in `jax.numpy`, Flax, Equinox or optax is typed by the
    rules of this library, and what it communicates is known.

    Args:
        f: A function of trees of arrays. What is no array in its arguments, it gets as it is.

    Returns:
        A function of the same arguments, typed or plain. Results that depend on no typed value are plain.

    Raises:
        ShardingTypeError: (when called) an operation does not type, with the line of ``f``, the function of JAX that
            was called there, and fixes; a primitive has no row.

    Communicates: what each operation does: nothing, unless the program says so or `implicit_comm` allows it.

    Example:
        >>> import jax.numpy as jnp
        >>> import shtypes as sh
        >>> def layer(x, w):
        ...     return jnp.tanh(x @ w)
        >>> with sh.use_mesh(sh.make_mesh({"dp": 2})):
        ...     sh.lift(layer)(sh.ones("f32[4@dp, 8]"), sh.ones("f32[8, 8]")).type
        f32[4@dp,8]
    """
    check_function("lift", f)
    programs: Bounded[_Program] = Bounded(PROGRAMS)

    @functools.wraps(f)
    def lifted(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = jax.tree.flatten((args, kwargs))
        static = tuple(None if _is_array(x) else _Static(x) for x in leaves)
        key = (tree, static)
        program = programs.get(key)
        if program is None:
            program = programs.put(key, _Program(f, tree, static))
        try:
            return program([x for x, s in zip(leaves, static, strict=True) if s is None])
        except ShardingTypeError as error:
            raise error.with_traceback(None) from None

    return lifted


__all__ = ["lift"]
