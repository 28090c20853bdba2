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
from shtypes.errors import Fix, ShardingTypeError
from shtypes.ops.dispatch import is_typed
from shtypes.ops.reshard import reshard
from shtypes.primitives.conversions import abstract_array
from shtypes.rules import Typing, advice
from shtypes.scopes.comm import trying
from shtypes.scopes.judging import keep_to_scopes
from shtypes.traced.ledger import priced
from shtypes.types import ShType


def in_terms_of_the_call(
    error: ShardingTypeError, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Gives an error fixes for the operands of the call, where it has them for others, and only what scopes allow."""
    if error.operands is not None:
        _retell(error, fn, args, kwargs)
    keep_to_scopes(error)


def _retell(error: ShardingTypeError, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    leaves: list[Any] = jax.tree.leaves((args, kwargs))
    tree: Any = jax.tree.structure((args, kwargs))
    places = [i for i, x in enumerate(leaves) if is_typed(x)]
    types = tuple(jax.typeof(leaves[i]) for i in places)
    shown, error.operands = error.operands, None
    if (shown == types and not error.inner) or advice.is_silent():
        return

    def call(*values: Any, **more: Any) -> Any:
        merged = dict(zip(places, values, strict=True))
        again, named = jax.tree.unflatten(tree, [merged.get(i, x) for i, x in enumerate(leaves)])
        return fn(*again, **named, **more)

    asking = [fix.code for fix in error.fixes if _OUT.search(fix.code)]
    try:
        with trying():
            found = [*_asking(call, types, asking), *_fixes(call, types)]
        error.fixes = tuple(sorted(found, key=lambda f: f.bytes)[: advice.MOST])
        error.subjects = types
    except Exception:  # what else it may meet on the way is not what the user asked about: no advice
        error.fixes = ()


#: Where a fix asks the call for a type.
_OUT: Final = re.compile(r'\(\.\.\., out="(.*)"\)$')


def _asking(call: Callable[..., Any], types: tuple[ShType, ...], codes: Sequence[str]) -> Iterator[Fix]:
    """The fixes that ask for a type of the result, with what the whole call then communicates."""
    for code in codes:
        found = _OUT.search(code)
        assert found is not None  # they were chosen by it
        yield Fix(code, *priced(functools.partial(call, out=found[1]), types))


def _fixes(call: Callable[..., Any], types: tuple[ShType, ...]) -> tuple[Fix, ...]:
    """Reshards of one operand, or of two, that make the call type, cheapest first."""

    def rule(tried: tuple[ShType, ...]) -> Typing:
        refused: list[ShardingTypeError] = []

        def trial(*values: Any) -> Any:
            try:
                return call(*values)
            except ShardingTypeError as error:  # JAX would rewrite its traceback, at ten times the cost of the trial
                refused.append(error)

        outs = jax.tree.leaves(jax.eval_shape(trial, *map(abstract_array, tried)))
        if refused:
            raise refused[0]
        return Typing(tried, tuple(t for t in outs if isinstance(t, ShType)))

    return advice.priced_fixes(rule, types, lambda tried: priced(lambda *xs: call(*map(reshard, xs, tried)), types))


connect_retelling(in_terms_of_the_call)
