"""Functions of plain arrays whose programs `lift` types once for all calls with operands of the same types."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import jax

from shtypes._compat.typed_once import TYPED_ONCE
from shtypes.caches import PROGRAMS, Bounded
from shtypes.dispatch.apply import is_typed
from shtypes.errors import ShardingTypeError
from shtypes.evaluation.interpreter import evaluate_closed, key_of_operands
from shtypes.evaluation.value_info import CONSTANT, noted
from shtypes.lifting.jax_rules import Split

#: By the key of a call, the typed function; None if its operands or results have notes besides their types.
_typed: Final[Bounded[Callable[..., Any] | None]] = Bounded(PROGRAMS)


def typed_once(f: Callable[..., Any]) -> Callable[..., Any]:
    """A jitted plain function, whose program is typed once for all operands of the same types."""

    def run(*args: Any) -> Any:
        return f(*args)

    run.__name__ = run.__qualname__ = TYPED_ONCE
    return jax.jit(run)


def results_of_call(eqn: Any, operands: list[Any]) -> list[Any] | None:
    """The results of a call of `typed_once`; None if it is to be evaluated like any other."""
    key = key_of_operands(eqn, operands)
    if key is None:
        return None
    split = Split(operands)
    if key not in _typed:

        def run(*xs: Any) -> list[Any]:
            outs = split.body(functools.partial(evaluate_closed, eqn.params["jaxpr"]))(*xs)
            if not all(map(is_typed, outs)) or any(map(noted, outs)):
                raise _Noted
            return outs

        run.__name__ = run.__qualname__ = TYPED_ONCE
        noted_inputs = any(noted(x).keys() - {CONSTANT} for x in operands)
        _typed.put(key, None if noted_inputs else jax.jit(run))
    call = _typed[key]
    if call is None:
        return None
    try:
        return list(call(*split.inputs(operands)))
    except (_Noted, ShardingTypeError):
        _typed.put(key, None)
        return None


class _Noted(Exception):  # noqa: N818  # a signal, not an error
    """Aborts the trace of a body whose results carry facts besides their types, which the cached trace would lose."""
