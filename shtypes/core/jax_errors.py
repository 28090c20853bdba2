"""Converts JAX's errors in a traced plain program to `ShardingTypeError`s with the user's line and the types."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import jax

from shtypes._compat import JAX_ERRORS, trace_of
from shtypes._compat.eqn_frames import Frame, eqn_source_of
from shtypes._compat.local_axes import traced_type
from shtypes.context.frames import Owner, owner_of_frame
from shtypes.context.signature_errors import jax_error
from shtypes.context.user_line import frames_through, placed, shortened
from shtypes.errors import ShardingTypeError, also

#: JAX's errors for Python operations that need a concrete value.
_CONCRETIZATION: Final[dict[str, type[Exception]]] = {
    "bool": jax.errors.TracerBoolConversionError,
    "index": jax.errors.TracerIntegerConversionError,
    "numpy array": jax.errors.TracerArrayConversionError,
}
_OPERATION: Final = re.compile(r"`(int|float|complex)` function|(item|tolist)\(\)")
_HINTS: Final = {
    "numpy array": ("the function of jax.numpy in place of numpy's",),
    "": ("jnp.where, jax.lax.cond and jax.lax.while_loop take it as it is",),
}
_MASKED: Final = "jnp.where(mask, x, 0) keeps the shape, which a selection by a mask does not"


def concretization_error(t: Any, operation: str, hints: Sequence[str]) -> ShardingTypeError:
    """The error for an operation on a traced value that needs a concrete one; also of JAX's class for it."""
    kind = also(_CONCRETIZATION.get(operation, jax.errors.ConcretizationTypeError))
    return kind(f"a traced value, {t}, has no {operation} while it is traced", hints=hints)


class Refusal(NamedTuple):
    """A line of a plain program that JAX refuses."""

    error: Exception  # JAX's error
    frames: Sequence[Frame]  # innermost first
    operands: Sequence[Any]  # the arrays passed to the JAX function
    axes: Any  # its ``axis_name``, if any

    def as_error(self, types: Iterable[Any]) -> ShardingTypeError:
        """The error for the user, with these types of the operands."""
        source = eqn_source_of(self.frames)
        code = next((f.expression() for f in self.frames if f.kind is Owner.USERS), "")
        texts = [str(t) for t in types]
        match = _OPERATION.search(str(self.error))
        operation = (match[1] or match[2]) if match else ""
        operation = next((name for name, cls in _CONCRETIZATION.items() if isinstance(self.error, cls)), operation)
        if operation and texts:
            error = concretization_error(texts[0], operation, _HINTS.get(operation, _HINTS[""]))
        else:
            what = f"does not take {' and '.join(texts)}" if 0 < len(texts) < 4 else "does not take these arguments"
            called = code if 0 < len(code) < 60 and not source.library else source.called or source.library or code
            error = jax_error(called or "a function of JAX", what, self.error)
            if isinstance(self.error, jax.errors.NonConcreteBooleanIndexError):
                error.hints = (_MASKED,)
            elif isinstance(self.error, AssertionError) and self.axes is not None:  # it has no message
                error.hints = (f"mesh axes that are mapped here, where it names {self.axes!r}",)
            else:
                error.hints = ()
        call = f"{source.called}({', '.join(texts)})" if source.called else code or "a function of JAX"
        if source.line:
            in_library = f" (in {source.library})" if source.library else ""
            error.where, error.placed = f"{source.line}{in_library}: {call}", True
        return placed(error, call)


class PlainCode:
    """A plain function of the user's, which records the lines that JAX refuses while it is traced.

    Args:
        f: The function.
        ends: Whether a refused line ends the trace with its operands as the results, so that these can be typed.

    Attributes:
        refusals: The refused lines, one for each attempt to trace it; none that the user's code, a library or shtypes
            refuses.
    """

    def __init__(self, f: Callable[..., Any], *, ends: bool = False) -> None:
        self.f, self.ends = f, ends
        self.refusals: list[Refusal] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The results of the function, or the operands of the refused line, None for those of other traces."""
        try:
            return self.f(*args, **kwargs)
        except JAX_ERRORS as error:
            refusal = _refusal(error)
            if refusal is None:
                raise
            self.refusals.append(refusal)
            if not self.ends:
                raise
        traces = {trace_of(x) for x in jax.tree.leaves((args, kwargs)) if isinstance(x, jax.core.Tracer)}
        return [x if not isinstance(x, jax.core.Tracer) or trace_of(x) in traces else None for x in refusal.operands]

    def refusal_of(self, error: Exception) -> Refusal | None:
        """The recorded line for which JAX raised an error; None if the user's code, a library or shtypes raised it."""
        return next((refusal for refusal in self.refusals if refusal.error is error), None)


@contextlib.contextmanager
def wrap_refusals() -> Iterator[None]:
    """A scope around user code in a trace: JAX's errors in it get the user's line and JAX's types."""
    try:
        yield
    except JAX_ERRORS as error:
        refusal = _refusal(error)
        if refusal is None:
            raise
        raise refusal.as_error(map(traced_type, refusal.operands)) from shortened(error)


def _refusal(error: Exception) -> Refusal | None:
    """The line for which JAX raises an error; None if the user's code, a library or shtypes raises it."""
    if isinstance(error, ShardingTypeError):
        return None
    frames = frames_through(error)
    last = max((i for i, f in enumerate(frames) if owner_of_frame(f.tb_frame) in _NOT_JAX), default=-1)
    inside = [f.tb_frame for f in frames[last + 1 :]]
    if not any(str(f.f_globals.get("__name__", "")).startswith("jax.") for f in inside) and "Tracer" not in str(error):
        return None
    operands = next(filter(None, map(_arrays, inside)), [])
    axes = next(filter(None, (f.f_locals.get("axis_name") for f in inside)), None)
    return Refusal(error, [Frame(f.tb_frame.f_code, f.tb_lasti) for f in reversed(frames)], operands, axes)


_NOT_JAX: Final = (Owner.USERS, Owner.INSTALLED)


def _arrays(frame: Any) -> list[Any]:
    """The arrays among a frame's arguments."""
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
    leaves = jax.tree.leaves([frame.f_locals.get(name) for name in code.co_varnames[:count]])
    return [x for x in leaves if isinstance(x, (jax.Array, jax.core.Tracer))]
