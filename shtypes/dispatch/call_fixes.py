"""Errors of an op that is made of others, in terms of the user's call.

An op inside refuses values that the user never sees, and its fixes speak of those. So the fixes are looked for again,
over the operands of the call: types are tried and priced by the whole of it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import jax

from shtypes.context.user_line import connect_retelling
from shtypes.core.conversion import abstract_array
from shtypes.core.jax_context import complete_when_read, holds_tracers
from shtypes.dispatch.apply import is_typed
from shtypes.dispatch.reshard import reshard
from shtypes.errors import Fix, ShardingTypeError
from shtypes.rules import Typing, suggest_fixes
from shtypes.scopes.check_comm import is_bounded, keep_to_scopes
from shtypes.scopes.comm import runs_again, trying
from shtypes.traced.ledger import priced, sent_by_program
from shtypes.types import ShType


def in_terms_of_the_call(
    error: ShardingTypeError, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Gives an error fixes for the operands of the call, where it has them for others, and only what scopes allow."""
    if error.operands is not None:
        _retell(error, fn, args, kwargs)
    if is_bounded():
        complete_when_read(error, functools.partial(keep_to_scopes, error, runs_again()))


def _retell(error: ShardingTypeError, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    leaves: list[Any] = jax.tree.leaves((args, kwargs))
    tree: Any = jax.tree.structure((args, kwargs))
    places = [i for i, x in enumerate(leaves) if is_typed(x)]
    types = tuple(jax.typeof(leaves[i]) for i in places)
    shown, error.operands = error.operands, None
    if shown == types and not error.inner:
        return
    leaves = [None if is_typed(x) else x for x in leaves]

    def call(*values: Any, **more: Any) -> Any:
        merged = dict(zip(places, values, strict=True))
        again, named = jax.tree.unflatten(tree, [merged.get(i, x) for i, x in enumerate(leaves)])
        return fn(*again, **named, **more)

    def complete() -> None:
        codes = [] if error.asking is None else [fix.code for fix in error.asking()]
        try:
            with trying():
                found = [*_asking(call, types, codes), *fixes_of_call(call, types, _MOST_TRIED)]
            error.fixes = tuple(sorted(found, key=lambda f: f.bytes)[: suggest_fixes.MOST])
        except Exception:  # what else it may meet on the way is not what the user asked about: no advice
            error.fixes = ()

    error.fixes, error.subjects = (), types  # not those of the op inside
    complete_when_read(error, complete)
    if holds_tracers(leaves):
        _ = error.fixes


#: With how many other operands a whole call is traced.
_MOST_TRIED: Final = 44
#: Where a fix asks the call for a type.
_OUT: Final = re.compile(r'\(\.\.\., out="(.*)"\)$')


def _asking(call: Callable[..., Any], types: tuple[ShType, ...], codes: Sequence[str]) -> Iterator[Fix]:
    """The fixes that ask for a type of the result, with what the whole call then communicates."""
    for code in codes:
        found = _OUT.search(code)
        assert found is not None  # they were chosen by it
        yield Fix(code, *priced(functools.partial(call, out=found[1]), types))


def fixes_of_call(call: Callable[..., Any], types: tuple[ShType, ...], most_tried: int) -> tuple[Fix, ...]:
    """Reshards of one operand, or of two, that make the call type, cheapest first.

    All of them are tried in one trace: to make one for each takes longer than to try it.
    """
    found: list[tuple[Fix, ...]] = []
    sends: dict[tuple[ShType, ...], tuple[int, int]] = {}

    def resharded(goal: tuple[ShType, ...]) -> Callable[..., Any]:
        return lambda *xs: call(*map(reshard, xs, goal))

    def sent(goal: tuple[ShType, ...]) -> tuple[int, int]:
        if goal not in sends:
            sends[goal] = sent_by_program(jax.make_jaxpr(call)(*map(abstract_array, goal)))
        return sends[goal]

    def search(*xs: Any) -> None:
        def rule(goal: tuple[ShType, ...]) -> Typing:
            outs = map(jax.typeof, jax.tree.leaves(resharded(goal)(*xs)))
            return Typing(goal, tuple(t for t in outs if isinstance(t, ShType)))

        price = lambda goal: priced(resharded(goal), types)  # noqa: E731
        found.append(suggest_fixes.priced_fixes(rule, types, sent, price, most_tried))

    jax.eval_shape(search, *map(abstract_array, types))
    return found[0]


connect_retelling(in_terms_of_the_call)
