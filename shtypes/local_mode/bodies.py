"""The function given to `shard_map`: made of typed ops, or of what only plain JAX takes, and then it is lifted."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Final

import jax

from shtypes._compat import no_trace_is_running
from shtypes.caches import PROGRAMS, Bounded
from shtypes.context.frames import Owner, owner_of_frame
from shtypes.errors import ShardingTypeError
from shtypes.scopes.comm import rules_in_force, trying

#: Whether functions with some code are plain programs, as far as they were applied before.
_plain: Final[Bounded[bool]] = Bounded(PROGRAMS)
#: `lifting.lift.lift`, which is above this room and so comes here itself.
_lift: Final[list[Callable[[Any], Callable[..., Any]]]] = []


def connect_lift(lift: Callable[[Any], Callable[..., Any]]) -> None:
    """Sets what makes a plain function one of typed values."""
    _lift[:] = [lift]


class Body:
    """A function of one device's values.

    It is called with typed values first. Where a function of JAX refuses them, the body is a plain program, and from
    then on it is lifted.
    """

    def __init__(self, f: Callable[..., Any]) -> None:
        self.f = f
        self._code = _code_of(f)

    def __call__(self, *args: Any) -> Any:
        """The results for typed values."""
        plain = _plain.get(self._code)
        if plain is None and (rules_in_force() or not no_trace_is_running()):
            # Of what is only tried nothing is to be left in the program around it, or counted by a scope.
            refused = self._tried(args)
            plain = refused is not None
        else:
            refused = None
        if not plain:
            try:
                results = self.f(*args)
            except Exception as error:
                if not _is_jaxs(error):
                    raise
                refused = error
            else:
                _plain.put(self._code, False)
                return results
        results = self._lifted_call(args, refused)
        _plain.put(self._code, True)
        return results

    def _tried(self, args: tuple[Any, ...]) -> Exception | None:
        """What JAX refuses when the function is traced with typed values; None if nothing."""
        leaves, tree = jax.tree.flatten(args)

        def flat(*leaves: Any) -> tuple[()]:
            self.f(*jax.tree.unflatten(tree, leaves))
            return ()

        try:
            with trying():
                jax.make_jaxpr(flat)(*leaves)
        except Exception as error:
            return error if _is_jaxs(error) else None  # what else is wrong is said when it is applied
        return None

    @functools.cached_property
    def _lifted(self) -> Callable[..., Any]:
        return _lift[0](self.f)

    def _lifted_call(self, args: tuple[Any, ...], refused: Exception | None) -> Any:
        try:
            return self._lifted(*args)
        except (AttributeError, jax.errors.JAXTypeError) as error:
            if refused is None or isinstance(error, ShardingTypeError):
                raise
            raise refused from None  # it asks for what only typed values have: the call that JAX refused is the mistake


def _is_jaxs(error: Exception) -> bool:
    """Whether an error says that something of JAX's does not take typed values, or does not know the mesh's axes."""
    if isinstance(error, ShardingTypeError):
        return error.of_plain
    if isinstance(error, NameError):
        return "unbound axis name" in str(error)
    if not isinstance(error, (AttributeError, TypeError, ValueError, NotImplementedError)):
        return False
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    hidden = any("JAX has removed its internal frames" in note for note in getattr(error, "__notes__", ()))
    return hidden or (last is not None and owner_of_frame(last.tb_frame) is Owner.MACHINERY)


def _code_of(f: Any) -> Any:
    """What tells a function's text apart: its code, and that of the functions that it was made with."""
    if isinstance(f, functools.partial):
        return _code_of(f.func)
    f = getattr(f, "__func__", f)
    code = getattr(f, "__code__", None)
    if code is None:
        return type(f)
    cells = [cell.cell_contents for cell in f.__closure__ or () if _is_filled(cell)]
    return (code, *[_code_of(c) for c in cells if inspect.isfunction(c) and c is not f])


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018  # raises if it is empty
    except ValueError:
        return False
    return True
