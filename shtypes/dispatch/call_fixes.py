"""Fixes for the operands of the user's call: reshards and ``out=``, typed and priced by the ledger.

An op inside the call may refuse values that the user does not see. So fixes of the call's operands replace its fixes.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import jax

from shtypes._compat.tracing import open_scans, trace_typed
from shtypes.context.user_line import connect_fix_rewriter, line_of
from shtypes.core.call_expressions import argument_names, expressions_of
from shtypes.core.conversion import abstract_array
from shtypes.core.jax_context import complete_when_read, holds_tracers
from shtypes.core.jax_type import as_jax_type
from shtypes.core.operation import applied_by
from shtypes.core.reshard import Reshard
from shtypes.dispatch.apply import finished_type, firsts, is_typed
from shtypes.dispatch.reshard import finished, reshard
from shtypes.errors import Fix, ShardingTypeError
from shtypes.resharding import Price
from shtypes.resharding.moves import all_in_words
from shtypes.rules import Typing, suggest_fixes
from shtypes.rules.candidate_types import price_of
from shtypes.rules.price_fixes import Later, called_names, later_casts, memory_note
from shtypes.rules.suggest_fixes import MAX_FIXES
from shtypes.scopes.check_comm import drop_forbidden_fixes, is_bounded
from shtypes.scopes.comm import in_checkpoint
from shtypes.scopes.scope_rules import speculative_tracing
from shtypes.traced.equations import equations
from shtypes.traced.ledger import priced, priced_before_each, prices_of_program
from shtypes.types import ShType, State
from shtypes.types.policy import replicated
from shtypes.types.target import target_text


def rewrite_fixes(
    error: ShardingTypeError, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Replaces an error's fixes by fixes of the call's operands, and drops those that the scopes forbid."""
    is_innermost = not line_of(error.__traceback__)
    if is_innermost and error.expressions is None:
        error.expressions = expressions_of(str(getattr(fn, "__name__", "")), args, kwargs)
    if error.operands is not None:
        _replace_fixes(error, fn, args, kwargs)
        if is_innermost:
            price_all_steps(error)
    if is_bounded():
        complete_when_read(error, functools.partial(drop_forbidden_fixes, error, in_checkpoint()))


def _replace_fixes(
    error: ShardingTypeError, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    leaves: list[Any] = jax.tree.leaves((args, kwargs))
    tree: Any = jax.tree.structure((args, kwargs))
    places = [i for i, x in enumerate(leaves) if is_typed(x)]
    types = tuple(jax.typeof(leaves[i]) for i in places)
    operand_types, error.operands = error.operands, None
    names = (argument_names(fn, tree, places) if len(places) > 2 else None) or called_names(types)
    if operand_types == types and not error.inner:
        if len(places) > 2:
            complete_when_read(error, functools.partial(_rename, error, names))
        return
    same = firsts([leaves[i] for i in places])
    leaves = [None if is_typed(x) else x for x in leaves]

    def call(*values: Any, **more: Any) -> Any:
        merged = dict(zip(places, map(values.__getitem__, same), strict=True))
        call_args, named = jax.tree.unflatten(tree, [merged.get(i, x) for i, x in enumerate(leaves)])
        return fn(*call_args, **named, **more)

    def complete() -> None:
        has_out = "out" in inspect.signature(fn).parameters
        out_fixes = error.out_fixes() if has_out and error.out_fixes is not None else []
        codes = [_FUNCTION.sub(f"{fn.__name__}(", fix.code, count=1) for fix in out_fixes]
        try:
            with speculative_tracing():
                fixes = [
                    *_out_fixes_of_call(call, types, codes),
                    *fixes_of_call(call, types, _MAX_TRIED, names, same=same),
                ]
            error.fixes = tuple(sorted(fixes, key=lambda f: f.order)[:MAX_FIXES])
            error.names = tuple(names)
        except Exception:  # no other error of the second evaluation concerns the user: no advice
            error.fixes = ()

    error.fixes, error.subjects = (), types
    complete_when_read(error, complete)
    if holds_tracers(leaves):
        _ = error.fixes


def price_all_steps(error: ShardingTypeError) -> None:
    """Prices an error's fixes for all steps of the loops whose bodies are being traced."""
    runs = math.prod(open_scans())

    def complete() -> None:
        error.fixes = tuple(sorted((for_all_runs(fix, runs) for fix in error.fixes), key=lambda fix: fix.order))

    if runs > 1:
        complete_when_read(error, complete)


def for_all_runs(fix: Fix, n: int, later_n: int = 0) -> Fix:
    """A fix of an expression that runs ``n`` times, with what all runs send.

    ``later_n``: how often the value is used, if not as often.
    """
    forward, backward = (all_in_words([words], n) for words in (fix.forward, fix.backward))
    later_n = later_n or n
    return fix._replace(
        forward=forward,
        backward=backward,
        later=all_in_words([fix.later], later_n),
        bytes_forward=n * fix.bytes_forward,
        bytes_backward=n * fix.bytes_backward,
        bytes_later=later_n * fix.bytes_later,
    )


def _rename(error: ShardingTypeError, names: Sequence[str]) -> None:
    """Replaces ``operand_0``, ... in an error's fixes by the names of the arguments."""
    numbered = re.compile(r"(?<=\()operand_(\d+)(?=,)")
    error.fixes = tuple(f._replace(code=numbered.sub(lambda m: names[int(m[1])], f.code)) for f in error.fixes)
    error.names = tuple(names)


#: The number of candidate types for the operands of a call that are tried.
_MAX_TRIED: Final = 44
#: In a fix, the name of the function without its module, and the value of ``out=``.
_FUNCTION: Final = re.compile(r"\w+\(")
_OUT: Final = re.compile(r"\(\.\.\., out=(.*)\)$")


def _out_fixes_of_call(call: Callable[..., Any], types: tuple[ShType, ...], codes: Sequence[str]) -> Iterator[Fix]:
    """The fixes of an inner op that pass ``out=``, for those with which the call types, with the call's price."""
    for code in codes:
        out = _OUT.search(code)
        assert out is not None
        with contextlib.suppress(ShardingTypeError):
            in_out = functools.partial(call, out=ast.literal_eval(out[1]))
            price = priced(in_out, types)
            results = trace_typed(in_out, list(map(as_jax_type, types))).out_avals
            yield _noted(Fix(code, *price, **_later(types, results)._asdict()), in_out, types)


def _noted(fix: Fix, f: Callable[..., Any], types: Sequence[ShType]) -> Fix:
    """A fix; if it is free, with a note on the memory of what ``f`` reshards."""
    if fix.forward or fix.backward:
        return fix
    moves = [applied_by(equation.eqn) for equation in equations(trace_typed(f, list(map(as_jax_type, types))))]
    return fix._replace(note=memory_note([(m.src, m.dst) for m in moves if isinstance(m, Reshard)]))


def fixes_of_call(
    call: Callable[..., Any],
    types: tuple[ShType, ...],
    most_tried: int,
    names: Sequence[str] | None = None,
    fixed: Sequence[int] = (),
    returns: Sequence[bool] | None = None,
    same: Sequence[int] = (),
) -> tuple[Fix, ...]:
    """Reshards of one or two operands with which the call types, cheapest first, but not of operands ``fixed``.

    All candidates are tried in one trace, for speed. In a program that contains its backward pass, ``returns`` lists
    which operands have a cotangent in it.
    """
    fixes: list[tuple[Fix, ...]] = []
    sends: dict[tuple[ShType, ...], tuple[Price, ...]] = {}

    def resharded(goal: tuple[ShType, ...]) -> Callable[..., Any]:
        goals = [t if not same or same[i] == i else None for i, t in enumerate(goal)]
        return lambda *xs: call(*[x if t is None else reshard(x, t) for x, t in zip(xs, goals, strict=True)])

    def inside(goal: tuple[ShType, ...]) -> tuple[Price, ...]:
        if goal not in sends:
            sends[goal] = prices_of_program(trace_typed(call, list(map(as_jax_type, goal))))
        return sends[goal]

    def search(*xs: Any) -> None:
        def rule(goal: tuple[ShType, ...]) -> Typing:
            outs = map(jax.typeof, jax.tree.leaves(resharded(goal)(*xs)))
            return Typing(goal, tuple(t for t in outs if isinstance(t, ShType)))

        def price(goal: tuple[ShType, ...]) -> tuple[str, str, int, int]:
            if returns is None:
                return priced(resharded(goal), types)
            pairs = list(zip(types, goal, returns, strict=True))
            forward = [*(price_of(src, dst) for src, dst, _ in pairs if src != dst), *inside(goal)]
            backward = [price_of(src, _invariant(src, dst)) for src, dst, r in pairs if r and src != dst]
            backward += inside(goal)
            words = all_in_words(p.forward for p in forward), all_in_words(p.backward for p in backward)
            return *words, sum(p.forward_bytes for p in forward), sum(p.backward_bytes for p in backward)

        later = returns is None
        fixes.append(suggest_fixes.priced_fixes(rule, types, inside, price, most_tried, names, fixed, later, same))

    jax.eval_shape(search, *map(abstract_array, types))
    return fixes[0]


def _invariant(src: ShType, dst: ShType) -> ShType:
    """``dst`` with axes that become reduced invariant: a backward pass in the program sums their cotangents itself."""
    return dst.with_axes([a for a in dst.axes(State.REDUCED) if src.state(a) is not State.REDUCED], State.INVARIANT)


def with_out_fixes(
    error: ShardingTypeError,
    name: str,
    op: Callable[..., Any],
    *types: ShType,
    finish: Callable[[Any, Any], Any] = finished,
    chosen: Callable[[Any], Callable[..., Any]] | None = None,
) -> ShardingTypeError:
    """Adds fixes that pass ``out=`` to an error, typed and priced by the ledger.

    ``op(*operands)`` is the op with communication allowed, whose results have their natural types, and
    ``finish(results, out)`` reshards them. ``chosen(out)`` is the op that runs for an ``out``, if not ``op``.
    """

    @functools.cache
    def out_fixes() -> list[Fix]:
        try:
            with speculative_tracing():
                return _out_fixes(name, op, types, finish, chosen)
        except ShardingTypeError:  # `op` does not type for another reason
            return []

    def complete() -> None:
        by_code = {fix.code: fix for fix in (*error.fixes, *out_fixes())}
        error.fixes = tuple(sorted(by_code.values(), key=lambda f: f.order)[:MAX_FIXES])

    if holds_tracers((op, chosen)):
        out_fixes()
    error.out_fixes = out_fixes
    if error.operands is None:  # try reshards of the call's operands too
        error.operands = ()
    complete_when_read(error, complete)
    return error


def _out_fixes(
    name: str,
    op: Callable[..., Any],
    types: Sequence[ShType],
    finish: Callable[[Any, Any], Any],
    chosen: Callable[[Any], Callable[..., Any]] | None,
) -> list[Fix]:
    outs: dict[Any, Sequence[ShType]] = {}

    def finishing(goals: Sequence[Any]) -> list[Callable[..., Any]]:
        return [functools.partial(_finish, finish, out) for out in goals]

    def finishing_all(natural: Sequence[Any]) -> list[Callable[..., Any]]:
        outs.update(_outs(natural, types))
        return finishing([*outs])

    if chosen is None:
        prices = priced_before_each(op, types, finishing_all)
        priced_ops = {out: (op, price) for out, price in zip(outs, prices, strict=True)}
    else:
        finishing_all(trace_typed(op, list(map(as_jax_type, types))).out_avals)
        goals_of: dict[Callable[..., Any], list[Any]] = {}
        for out in outs:
            goals_of.setdefault(chosen(out), []).append(out)
        priced_ops = {}
        for f, goals in goals_of.items():
            last = finishing(goals)
            prices = priced_before_each(f, types, lambda _, last=last: last)  # type: ignore[misc]
            priced_ops |= {out: (f, price) for out, price in zip(goals, prices, strict=True)}
    fixes = []
    for out, results in outs.items():
        f, price = priced_ops[out]
        code = f"({', '.join(map(_quoted, out))})" if isinstance(out, tuple) else _quoted(out)
        fix = Fix(f"sh.{name}(..., out={code})", *price, **_later(types, results)._asdict())
        fixes.append(_noted(fix, _composed(f, *finishing([out])), types))
    return fixes


def _later(types: Sequence[ShType], results: Sequence[ShType]) -> Later:
    """The communication of later ops, which finish sums that only the results have, and cast invariant results."""
    pending = {a for t in types for a in t.axes(State.UNREDUCED)}
    newly_pending = [t.with_axes([a for a in t.axes(State.UNREDUCED) if a in pending], State.REDUCED) for t in results]
    finished = [price_of(t, finished_type(t)) for t in newly_pending]
    casts = later_casts(types, results, results)
    words = [*(p.forward for p in finished), *(p.backward for p in finished), casts.later]
    return Later(all_in_words(words), sum(p.bytes for p in finished) + casts.bytes_later)


def _composed(f: Callable[..., Any], g: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *xs: g(*jax.tree.leaves(f(*xs)))


def _finish(finish: Callable[[Any, Any], Any], out: Any, *results: Any) -> Any:
    return finish(results[0] if len(results) == 1 else results, out)


def _quoted(text: str) -> str:
    return f'"{text}"'


def _outs(natural: Sequence[Any], types: Sequence[ShType]) -> dict[Any, Sequence[ShType]]:
    """The candidates for ``out=``: the types of the results, these with reduced axes, and those of the operands.

    The keys are what to write.
    """
    result_types = [[*natural], [_as_reduced(t, types) for t in natural]]
    result_types += [[t] for t in types if [(x.shape, x.dtype) for x in natural] == [(t.shape, t.dtype)]]
    by_texts = {tuple(map(target_text, outs)): outs for outs in reversed(result_types)}
    return {texts[0] if len(texts) == 1 else texts: outs for texts, outs in reversed(by_texts.items())}


def _as_reduced(t: ShType, types: Sequence[ShType]) -> ShType:
    """A result's type with axes reduced where the policy is reduced and not all operands are invariant."""
    axes = [a for a in t.axes(State.INVARIANT) if any(x.state(a) is not State.INVARIANT for x in types)]
    return t.with_axes(axes, State.REDUCED) if t.differentiable and replicated() is State.REDUCED else t


connect_fix_rewriter(rewrite_fixes)
