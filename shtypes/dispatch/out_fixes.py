"""The fix that asks an op for the type of its result, ``out=``, typed again and priced by the ledger."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from shtypes.core.conversion import abstract_array
from shtypes.core.jax_context import complete_when_read, holds_tracers
from shtypes.dispatch.reshard import reshard
from shtypes.errors import Fix, ShardingTypeError
from shtypes.rules.suggest_fixes import MOST
from shtypes.scopes.comm import trying
from shtypes.traced.ledger import priced
from shtypes.types import ShType, State
from shtypes.types.policy import replicated


def with_own_fixes(
    error: ShardingTypeError, name: str, across: Callable[..., Any], *types: ShType
) -> ShardingTypeError:
    """An error with the ways to ask for ``across`` among its fixes, typed and priced by the ledger."""

    @functools.cache
    def asking() -> list[Fix]:
        try:
            with trying():
                return _own_fixes(name, across, types)
        except ShardingTypeError:  # it does not type for another reason
            return []

    def complete() -> None:
        found = {fix.code: fix for fix in (*error.fixes, *asking())}
        error.fixes = tuple(sorted(found.values(), key=lambda f: f.bytes)[:MOST])

    if holds_tracers(across):
        asking()
    error.asking = asking
    complete_when_read(error, complete)
    return error


def _own_fixes(name: str, across: Callable[..., Any], types: Sequence[ShType]) -> list[Fix]:
    natural: Any = jax.make_jaxpr(across)(*map(abstract_array, types)).out_avals[0]
    lost = [a for a in natural.axes(State.INVARIANT) if any(t.state(a) is not State.INVARIANT for t in types)]
    outs = {natural: None}
    if natural.differentiable and replicated() is State.REDUCED:
        outs[to_state(natural, lost, State.REDUCED)] = None
    found = []
    for out in outs:
        text = str(out).removeprefix(out.dtype_name)
        price = priced(lambda *xs, out=out: reshard(across(*xs), out), types)
        found.append(Fix(f'sh.{name}(..., out="{text}")', *price))
    return found


def to_state(t: ShType, axes: Sequence[str], state: State) -> ShType:
    """The type with each of the axes replicated or unreduced."""
    for axis in axes:
        t = t.with_axis(axis, state)
    return t
