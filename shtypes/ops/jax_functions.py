"""Functions of JAX as functions of typed values: JAX traces them, and the table of primitives types their equations.

A row of `OPS` names the function; its signature and documentation are JAX's. A call is typed as one op. If it is local,
it runs as one operation on shards; else its equations are evaluated one by one.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any, Final

import jax

from shtypes import rules
from shtypes._compat import SHARDING_ERRORS, trace_context
from shtypes._compat.plain_programs import needed, trace_plain
from shtypes._compat.tracing import trace_typed
from shtypes.caches import PROGRAMS, Bounded, Static
from shtypes.context.settings import current_settings
from shtypes.context.signature_errors import jax_error
from shtypes.context.user_line import line_of
from shtypes.core.jax_type import as_jax_type
from shtypes.core.local import local_all
from shtypes.dispatch.apply import (
    as_operands,
    finish_once,
    firsts,
    is_array,
    located,
    match_constants,
    of_distinct,
    typed_operands,
)
from shtypes.dispatch.call_fixes import with_out_fixes
from shtypes.errors import ShardingTypeError
from shtypes.evaluation.value_info import aval_of
from shtypes.ops.call_ways import Gathered, InWay, Way, best_way, has_ways, in_way, reshard_all, traced_in_way
from shtypes.ops.static_arguments import OPERANDS, argument_of, listing_name, static_value
from shtypes.ops.traced_calls import Trace, TypedCall, evaluate_equations, typed_call
from shtypes.rules import messages
from shtypes.rules.candidate_types import price_of
from shtypes.scopes.check_comm import check_now
from shtypes.scopes.comm import CommScope, under_rules
from shtypes.scopes.scope_rules import (
    FinishesSums,
    Implicit,
    allows_implicit,
    objective,
    rules_in_force,
)
from shtypes.types import ShType, State
from shtypes.types.policy import replicated

#: Parameters that set a size that would otherwise depend on values, as a fix writes them.
_SIZES: Final = {
    **{name: f"{name}=" for name in ("size", "length", "total_repeat_length", "num_segments")},
    **{name: f"{name}=False" for name in ("strip_zeros", "trim_leading_zeros")},
}
#: What to use in place of an index with a mask.
_MASKED: Final = (
    "sh.where(mask, new, x) changes the elements that a mask selects",
    "sh.where(mask, x, 0) keeps the shape",
)


class JaxFunction:
    """A function of JAX, as the user names it, that takes typed values; ``takes_out``: whether it has ``out=``."""

    def __init__(self, name: str, fn: Callable[..., Any], *, takes_out: bool = True) -> None:
        self.name, self.fn, self._takes_out = name, fn, takes_out
        self._traces: Bounded[Trace | ShardingTypeError] = Bounded(PROGRAMS)
        self._calls: Bounded[TypedCall] = Bounded(PROGRAMS)
        self._refused: Bounded[tuple[str, ...]] = Bounded(PROGRAMS)  # the axes at fault
        self._ways: Bounded[tuple[Way]] = Bounded(PROGRAMS)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The results for typed and plain arguments."""
        leaves, tree = jax.tree.flatten((args, kwargs))
        refused: ShardingTypeError | None = None
        for is_operand in OPERANDS:
            static = tuple([None if is_operand(i, x) else Static(static_value(x)) for i, x in enumerate(leaves)])
            values, constants = as_operands([x for x, s in zip(leaves, static, strict=True) if s is None])
            key = (tree, static, tuple([(x.type.shape, x.type.dtype) for x in values]), trace_context())
            trace = self._traces.get(key)
            if trace is None:
                trace = self._traced(leaves, tree, static, values)
                if not isinstance(trace, ShardingTypeError) and trace.closes_over:
                    shifted = frozenset(len(trace.closed_over) + i for i in constants)
                    return trace.unflatten(evaluate_equations(trace, shifted, *trace.closed_over, *values))
                self._traces.put(key, trace)
            if isinstance(trace, ShardingTypeError):
                refused = refused or trace
                continue
            return trace.unflatten(self._applied(key, trace, values, constants))
        assert refused is not None
        raise ShardingTypeError(refused.what, why=refused.why, hints=refused.hints)

    def into(self, out: Any, *args: Any, **kwargs: Any) -> Any:
        """The results, resharded to the types of ``out=`` if there is one: then the call may communicate."""
        if out is None:
            return self(*args, **kwargs)
        with CommScope(Implicit(out=out if isinstance(out, Hashable) else None)):
            results = self(*args, **kwargs)
        return reshard_all(results, out)

    def _traced(
        self, leaves: Sequence[Any], tree: Any, static: Sequence[Static | None], values: Sequence[Any]
    ) -> Trace | ShardingTypeError:
        """The trace of a call; an error if it needs the values of traced arguments."""
        out: tuple[Any, list[Static | None]] = None, []

        def flat(*arrays: Any) -> Any:
            nonlocal out
            rest = iter(arrays)
            args, kwargs = jax.tree.unflatten(tree, [next(rest) if s is None else argument_of(s) for s in static])
            results, structure = jax.tree.flatten(self.fn(*args, **kwargs))
            out = structure, [None if is_array(y) else Static(y) for y in results]
            return [y for y in results if is_array(y)]

        flat.__name__ = flat.__qualname__ = self.name
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", FutureWarning)  # what a future release refuses
                closed, closed_over, _ = trace_plain(flat, [aval_of(x) for x in values])
        except FutureWarning as error:
            raise ShardingTypeError(f"`{self.name}` does not take these arguments", why=str(error)) from None
        except SHARDING_ERRORS as error:
            raise ValueError(str(error)) from None
        except RuntimeError as error:  # `cov` raises numpy's
            if type(error) is not RuntimeError or line_of(error.__traceback__):
                raise
            raise jax_error(self.name, "does not take these arguments", error) from None
        except (jax.errors.ConcretizationTypeError, jax.errors.NonConcreteBooleanIndexError) as error:
            refusal = jax_error(self.name, "must know the values of an argument before it runs", error)
            sizes = tuple(_SIZES[p] for p in inspect.signature(self.fn).parameters if p in _SIZES)
            refusal.hints = _MASKED if isinstance(error, jax.errors.NonConcreteBooleanIndexError) else sizes
            return refusal
        return Trace(*needed(closed), *out, closed_over)

    def _applied(self, key: Any, trace: Trace, values: Sequence[Any], constants: frozenset[int]) -> list[Any]:
        run_equations: Callable[..., list[Any]] = functools.partial(evaluate_equations, trace, constants)

        def call(types: tuple[ShType, ...]) -> TypedCall:
            return self._typed_unless_refused(key, trace, types, constants)

        def rule(types: tuple[ShType, ...]) -> rules.Typing:
            return call(types).typing

        values = match_constants(values, constants)
        types = tuple([x.type for x in values])
        out = objective().out
        if out is not None and self._may_gather(key, trace, types, {id(x): x.type for x in values}.values()):
            way = self._way_of(key, run_equations, values, out)
            if isinstance(way, Gathered):
                values = list(map(way.of, values))
                types = tuple([x.type for x in values])
        try:
            self._typed(key, trace, types, constants)
        except ShardingTypeError as error:
            run_equations = under_rules(None, run_equations, FinishesSums())
            if allows_implicit():
                finished_once = self._finish_pending(key, trace, values)
                if any(x is not y for x, y in zip(values, finished_once, strict=True)):
                    return self._applied(key, trace, finished_once, constants)
                return self._communicating(key, trace, run_equations, values)
            raise self._refusal(error, call, values, run_equations, trace, key).with_traceback(None) from None
        operands, typing = typed_operands(self.name, rule, values)
        local = call(tuple([x.type for x in operands])).local
        if local is None:
            return run_equations(*operands)
        if local.fn is None:
            return [operands[i] for i in local.passed]
        results = local_all(local.fn, *operands, out=typing.results)
        if rules_in_force():
            check_now()
        return results

    def _finish_pending(self, key: Any, trace: Trace, values: Sequence[Any]) -> list[Any]:
        """Finishes the pending operands in which the call is nonlinear, once for all of its equations."""
        gathered = [x.type.with_axes(x.type.axes(State.SHARDED), replicated()) for x in values]
        reduced = [t.with_axes(t.axes(State.UNREDUCED), replicated()) for t in gathered]

        def is_linear(i: int) -> bool:
            return self._typed_or_none(key, trace, (*reduced[:i], gathered[i], *reduced[i + 1 :])) is not None

        pending = [gathered[i] != reduced[i] and not is_linear(i) for i in range(len(values))]
        return [finish_once(self.name, x) if p else x for x, p in zip(values, pending, strict=True)]

    def _communicating(
        self, key: Any, trace: Trace, run_equations: Callable[..., list[Any]], values: Sequence[Any]
    ) -> list[Any]:
        """The results, equation by equation; for an ``out=``, in the way that sends least with the reshard to it."""
        out = objective().out
        if out is None or not has_ways(trace.jaxpr):
            return run_equations(*values)
        return in_way(run_equations, self._way_of(key, run_equations, values, out))(*values)

    def _way_of(self, key: Any, run_equations: Callable[..., list[Any]], values: Sequence[Any], out: Any) -> Way:
        """The way of a call; an operand that is passed twice is sent once."""
        same = firsts(values)
        types = [values[i].type for i in sorted({*same})]
        traced = functools.partial(traced_in_way, of_distinct(run_equations, same), types)
        return self._way((key, *same), types, out, traced)

    def _way(self, key: Any, types: Sequence[ShType], out: Any, traced: Callable[[Way], InWay]) -> Way:
        """The best way of a call with operands of these types, cached."""
        full = (key, current_settings(), out, *[t.serial for t in types])
        (chosen,) = self._ways.get_or_create(full, lambda: (best_way(types, out, traced),))
        return chosen

    def _may_gather(self, key: Any, trace: Trace, types: tuple[ShType, ...], distinct: Collection[ShType]) -> bool:
        """Whether gathers of operands may send less than of results: these are larger, or casts send backward."""
        if sum(v.aval.size for v in trace.jaxpr.outvars) > sum(t.size for t in distinct):
            return True
        invariant = any(t.axes(State.INVARIANT) for t in types)
        call = self._typed_or_none(key, trace, types) if invariant else None
        casts = () if call is None else zip(types, call.typing.operands, strict=True)
        return any(price_of(src, dst).backward_bytes for src, dst in casts if src != dst)

    def _typed_or_none(self, key: Any, trace: Trace, types: tuple[ShType, ...]) -> TypedCall | None:
        """The typing of a call without constants; None if it is refused."""
        try:
            return self._typed_unless_refused(key, trace, types, frozenset())
        except ShardingTypeError:
            return None

    def _typed_unless_refused(
        self, key: Any, trace: Trace, types: tuple[ShType, ...], constants: frozenset[int]
    ) -> TypedCall:
        """Like `_typed`; types that were refused before are refused in few words, as a search tries them again."""
        axes = self._refused.get((key, constants, *[t.serial for t in types]))
        if axes is not None:
            raise ShardingTypeError(f"`{self.name}` does not type", axes=axes)
        return self._typed(key, trace, types, constants)

    def _typed(self, key: Any, trace: Trace, types: tuple[ShType, ...], constants: frozenset[int]) -> TypedCall:
        """The typing of a call, cached for the operands' types and those to which they are cast."""
        full = (key, constants, *[t.serial for t in types])
        call = self._calls.get(full)
        if call is None:
            text = listing_name(self.name, *key[:2])
            try:
                call = self._calls.put(full, typed_call(self.name, text, trace, types, constants))
            except ShardingTypeError as error:
                self._refused.put(full, error.axes)
                raise
            if call.local is not None:
                self._calls.put((key, constants, *[t.serial for t in call.typing.operands]), call)
        return call

    def _refusal(
        self,
        error: ShardingTypeError,
        call: Callable[[tuple[ShType, ...]], TypedCall],
        values: Sequence[Any],
        run_equations: Callable[..., list[Any]],
        trace: Trace,
        key: Any,
    ) -> ShardingTypeError:
        """The error of a call that does not type, with its fixes, and with those that add ``out=``."""
        types = tuple([x.type for x in values])
        refusal = messages.of_call(error, self.name, types)
        refusal.same = firsts(values)
        located(refusal, self.name, types, lambda types: call(types).typing, lambda types: call(types).inside())
        return self.with_out_fixes(refusal, key, trace, types, run_equations) if self._takes_out else refusal

    def with_out_fixes(
        self,
        error: ShardingTypeError,
        key: Any,
        trace: Trace,
        types: tuple[ShType, ...],
        run_equations: Callable[..., list[Any]],
    ) -> ShardingTypeError:
        """Adds fixes that pass ``out=`` to the error of a call."""
        same = error.same or range(len(types))
        firsts_of = sorted({*same})
        distinct = [types[i] for i in firsts_of]

        @functools.cache
        def finished_in_way(way: Way) -> Callable[..., Any]:
            def results(*operands: Any) -> Any:
                with CommScope(Implicit()):
                    return in_way(run_equations, way)(*self._finish_pending(key, trace, operands))

            return of_distinct(results, same)

        @functools.cache
        def finished_types() -> Any:
            finished = of_distinct(lambda *xs: self._finish_pending(key, trace, xs), same)
            with CommScope(Implicit()):
                return trace_typed(finished, list(map(as_jax_type, distinct))).out_avals

        def finished_distinct() -> list[Any]:
            return [finished_types()[i] for i in firsts_of]

        @functools.cache
        def traced(way: Way) -> InWay:
            return traced_in_way(of_distinct(run_equations, same), finished_distinct(), way)

        @functools.cache
        def kinds() -> tuple[type, ...]:
            """The kinds of ways in which the call may run instead of as it is."""
            finished = tuple(finished_types())
            if has_ways(trace.jaxpr) and self._typed_or_none(key, trace, finished) is None:
                return int, Gathered
            return (Gathered,) * self._may_gather(key, trace, finished, finished)

        def chosen(out: Any) -> Callable[..., Any]:
            if not kinds():
                return finished_in_way(None)
            with CommScope(Implicit(out=out)):
                way = self._way((key, *same), finished_distinct(), out, traced)
            return finished_in_way(way if isinstance(way, kinds()) else None)

        return with_out_fixes(error, self.name, finished_in_way(None), *distinct, finish=reshard_all, chosen=chosen)
