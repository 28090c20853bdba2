"""What JAX refuses in a plain program of the user's that is traced for types: told at its line, with the types."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import jax

from shtypes._compat import trace_of
from shtypes._compat.eqn_frames import Frame, eqn_source_of
from shtypes._compat.local_axes import traced_type
from shtypes.context.frames import Owner, owner_of_frame
from shtypes.context.signature_errors import jax_error
from shtypes.context.user_line import ARGUMENT_ERRORS, frames_through, placed, shortened
from shtypes.errors import ShardingTypeError, also

#: JAX's errors where Python asks a traced value for what only a known one has.
_KINDS: Final[dict[str, type[Exception]]] = {
    "bool": jax.errors.TracerBoolConversionError,
    "index": jax.errors.TracerIntegerConversionError,
    "numpy array": jax.errors.TracerArrayConversionError,
}
_ASKED: Final = re.compile(r"`(int|float|complex)` function|(item|tolist)\(\)")
_HINTS: Final = {
    "numpy array": ("the function of jax.numpy in place of numpy's",),
    "": ("jnp.where, jax.lax.cond and jax.lax.while_loop take it as it is",),
}
_MASKED: Final = "jnp.where(mask, x, 0) keeps the shape, which a selection by a mask does not"


def has_no(t: Any, asked: str, hints: Sequence[str]) -> ShardingTypeError:
    """The error for what only a known value has, asked of a traced one; JAX's own error for it too."""
    kind = also(_KINDS.get(asked, jax.errors.ConcretizationTypeError))
    return kind(f"a traced value, {t}, has no {asked} while it is traced", hints=hints)


class Refused(NamedTuple):
    """What JAX refuses in a line of a plain program."""

    error: Exception  # JAX's error
    frames: Sequence[Frame]  # the user's line and what it called, innermost first
    operands: Sequence[Any]  # the arrays that it was given
    axes: Any  # the names of mesh axes that it was given, if any

    def told(self, types: Iterable[Any]) -> ShardingTypeError:
        """The error for the user, where the operands have these types."""
        source = eqn_source_of(self.frames)
        code = next((f.expression() for f in self.frames if f.kind is Owner.USERS), "")
        given = [str(t) for t in types]
        found = _ASKED.search(str(self.error))
        asked = (found[1] or found[2]) if found else ""
        asked = next((name for name, kind in _KINDS.items() if isinstance(self.error, kind)), asked)
        if asked and given:
            told = has_no(given[0], asked, _HINTS.get(asked, _HINTS[""]))
        else:
            what = f"does not take {' and '.join(given)}" if 0 < len(given) < 4 else "does not take these arguments"
            called = code if 0 < len(code) < 60 and not source.library else source.called or source.library or code
            told = jax_error(called or "a function of JAX", what, self.error)
            masked = isinstance(self.error, jax.errors.NonConcreteBooleanIndexError)
            told.hints = (_MASKED,) if masked else ()
            if isinstance(self.error, AssertionError) and self.axes is not None:  # which has no words
                told.hints = (f"mesh axes that are mapped here, where it names {self.axes!r}",)
        call = f"{source.called}({', '.join(given)})" if source.called else code or "a function of JAX"
        if source.line:
            through = f" (in {source.library})" if source.library else ""
            told.where, told.placed = f"{source.line}{through}: {call}", True
        return placed(told, call)


class PlainCode:
    """A plain function of the user's, as JAX traces it; notes where JAX refuses a line.

    Args:
        f: The function.
        ends: Whether the trace ends there, with the operands of the line, so that evaluating it gives their types.
    """

    def __init__(self, f: Callable[..., Any], *, ends: bool = False) -> None:
        self.f, self.ends = f, ends
        self._refused: list[Refused] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The results of the function, or the operands of what was refused that the trace knows."""
        try:
            return self.f(*args, **kwargs)
        except ARGUMENT_ERRORS as error:
            refused = _refused(error)
            self._refused += refused
            if not refused or not self.ends:
                raise
        here = {trace_of(x) for x in jax.tree.leaves((args, kwargs)) if isinstance(x, jax.core.Tracer)}
        return [x if not isinstance(x, jax.core.Tracer) or trace_of(x) in here else None for x in refused[0].operands]

    def refused(self, error: Exception) -> Refused | None:
        """The line for which JAX raised an error; None where the user's code, a library or shtypes raised it."""
        return next((each for each in self._refused if each.error is error), None)


@contextlib.contextmanager
def telling() -> Iterator[None]:
    """A scope around code of the user's in a trace: what JAX refuses in it is told at its line, with JAX's types."""
    try:
        yield
    except ARGUMENT_ERRORS as error:
        for refused in _refused(error):
            raise refused.told(map(traced_type, refused.operands)) from shortened(error)
        raise


def _refused(error: Exception) -> list[Refused]:
    """The line that JAX refuses; none where the user's code, a library or shtypes raises the error."""
    if isinstance(error, ShardingTypeError):
        return []
    through = frames_through(error)
    last = max((i for i, f in enumerate(through) if owner_of_frame(f.tb_frame) in _OTHERS), default=-1)
    inside = [f.tb_frame for f in through[last + 1 :]]
    if not any(str(f.f_globals.get("__name__", "")).startswith("jax.") for f in inside) and "Tracer" not in str(error):
        return []
    operands = next(filter(None, map(_arrays, inside)), [])
    axes = next(filter(None, (f.f_locals.get("axis_name") for f in inside)), None)
    return [Refused(error, [Frame(f.tb_frame.f_code, f.tb_lasti) for f in reversed(through)], operands, axes)]


_OTHERS: Final = (Owner.USERS, Owner.INSTALLED)


def _arrays(frame: Any) -> list[Any]:
    """The arrays among the arguments of a call."""
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
    leaves = jax.tree.leaves([frame.f_locals.get(name) for name in code.co_varnames[:count]])
    return [x for x in leaves if isinstance(x, (jax.Array, jax.core.Tracer))]
