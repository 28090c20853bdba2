"""Fixes of a whole call, typed again and priced by the ledger: other types of its operands, and ``out=``.

An op inside a call refuses values that the user never sees, and its fixes speak of those. So the fixes are looked for
again, over the operands of the call.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import jax
from jax.tree_util import keystr, tree_leaves_with_path

from shtypes.context.user_line import connect_retelling
from shtypes.core.conversion import abstract_array
from shtypes.core.jax_context import complete_when_read, holds_tracers
from shtypes.core.operation import applied_by
from shtypes.core.reshard import Reshard
from shtypes.dispatch.apply import is_typed
from shtypes.dispatch.reshard import reshard
from shtypes.errors import Fix, ShardingTypeError
from shtypes.rules import Typing, suggest_fixes
from shtypes.rules.suggest_fixes import MOST, called_names, memory_note
from shtypes.scopes.check_comm import is_bounded, keep_to_scopes
from shtypes.scopes.comm import runs_again, trying
from shtypes.traced.equations import equations
from shtypes.traced.ledger import priced, sent_by_program
from shtypes.types import ShType, State
from shtypes.types.policy import replicated
from shtypes.types.target import target_text


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
    names = called_names(types) if len(places) < 3 else _argument_names(fn, tree, places)
    if shown == types and not error.inner:
        if len(places) > 2:
            complete_when_read(error, functools.partial(_rename, error, names))
        return
    leaves = [None if is_typed(x) else x for x in leaves]

    def call(*values: Any, **more: Any) -> Any:
        merged = dict(zip(places, values, strict=True))
        again, named = jax.tree.unflatten(tree, [merged.get(i, x) for i, x in enumerate(leaves)])
        return fn(*again, **named, **more)

    def complete() -> None:
        asks = error.asking is not None and "out" in inspect.signature(fn).parameters
        codes = [fix.code for fix in error.asking()] if asks and error.asking is not None else []
        try:
            with trying():
                found = [*_asking(call, types, codes), *fixes_of_call(call, types, _MOST_TRIED, names)]
            error.fixes = tuple(sorted(found, key=lambda f: f.bytes)[:MOST])
            error.names = tuple(names)
        except Exception:  # what else it may meet on the way is not what the user asked about: no advice
            error.fixes = ()

    error.fixes, error.subjects = (), types  # not those of the op inside
    complete_when_read(error, complete)
    if holds_tracers(leaves):
        _ = error.fixes


def _rename(error: ShardingTypeError, names: Sequence[str]) -> None:
    """Has the fixes of an error name the arguments."""
    numbered = re.compile(r"(?<=\()operand_(\d+)(?=,)")
    error.fixes = tuple(f._replace(code=numbered.sub(lambda m: names[int(m[1])], f.code)) for f in error.fixes)
    error.names = tuple(names)


def _argument_names(fn: Callable[..., Any], tree: Any, places: Sequence[int]) -> list[str]:
    """What some leaves of a call's arguments are called: their parameter, and where they are in it."""
    args, kwargs = jax.tree.unflatten(tree, range(tree.num_leaves))
    arguments = inspect.signature(fn).bind(*args, **kwargs).arguments
    names = {i: str(path[0].key) + keystr(path[1:]) for path, i in tree_leaves_with_path(dict(arguments))}
    return [names[i] for i in places]


#: With how many other operands a whole call is traced.
_MOST_TRIED: Final = 44
#: Where a fix asks the call for a type.
_OUT: Final = re.compile(r'\(\.\.\., out="(.*)"\)$')


def _asking(call: Callable[..., Any], types: tuple[ShType, ...], codes: Sequence[str]) -> Iterator[Fix]:
    """The fixes that ask for a type of the result, with what the whole call then communicates."""
    for code in codes:
        found = _OUT.search(code)
        assert found is not None  # they were chosen by it
        yield _fix_of(code, functools.partial(call, out=found[1]), types)


def _fix_of(code: str, f: Callable[..., Any], types: Sequence[ShType]) -> Fix:
    """A fix with the price of what it makes of a call; of one that sends nothing, what it holds."""
    fix = Fix(code, *priced(f, types))
    if fix.forward or fix.backward:
        return fix
    moves = [applied_by(found.eqn) for found in equations(jax.make_jaxpr(f)(*map(abstract_array, types)))]
    return fix._replace(note=memory_note([(m.src, m.dst) for m in moves if isinstance(m, Reshard)]))


def fixes_of_call(
    call: Callable[..., Any], types: tuple[ShType, ...], most_tried: int, names: Sequence[str] | None = None
) -> tuple[Fix, ...]:
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
        found.append(suggest_fixes.priced_fixes(rule, types, sent, price, most_tried, names))

    jax.eval_shape(search, *map(abstract_array, types))
    return found[0]


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
    if error.operands is None:  # no rule has its fixes: reshards are tried on the whole call
        error.operands = ()
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
        text = target_text(out)
        found.append(_fix_of(f'sh.{name}(..., out="{text}")', lambda *xs, out=out: reshard(across(*xs), out), types))
    return found


def to_state(t: ShType, axes: Sequence[str], state: State) -> ShType:
    """The type with each of the axes replicated or unreduced."""
    for axis in axes:
        t = t.with_axis(axis, state)
    return t


connect_retelling(in_terms_of_the_call)
