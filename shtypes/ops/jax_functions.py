"""Functions of JAX as functions of typed values: JAX traces them, and the table of primitives types their equations.

A row of `OPS` names the function; its signature and documentation are JAX's. A call is typed as one op. If it is local,
it runs as one operation on shards; else its equations are evaluated one by one.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
import sys
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import jax
import numpy as np

from shtypes import rules
from shtypes._compat import trace_context
from shtypes._compat.jaxprs import depends_smoothly, inner_jaxprs, jaxpr_of
from shtypes._compat.plain_programs import needed, trace_plain
from shtypes._compat.tracing import trace_typed
from shtypes.caches import PROGRAMS, Bounded, Static
from shtypes.context.settings import current_settings
from shtypes.context.signature_errors import jax_error, refuse_unknown
from shtypes.context.user_line import line_of, placed
from shtypes.core.array import Array, wrap
from shtypes.core.eager_cache import published
from shtypes.core.jax_type import HiShType, as_jax_type
from shtypes.core.local import local_all
from shtypes.dispatch.apply import as_operands, dtype_name, is_array, is_typed, located, match_constants, typed_operands
from shtypes.dispatch.call_fixes import with_out_fixes
from shtypes.dispatch.reshard import finished
from shtypes.errors import ShardingTypeError, how_many
from shtypes.evaluation.interpreter import evaluate_jax_function
from shtypes.evaluation.table import WAYS
from shtypes.evaluation.value_info import aval_of, note_constant, noting, typed_constant
from shtypes.ops.rows import Op
from shtypes.ops.shard_programs import NotLocalError, ShardProgram, shard_program
from shtypes.resharding import Price, cost
from shtypes.rules import messages
from shtypes.scopes.check_comm import check_now
from shtypes.scopes.comm import (
    CommScope,
    FinishesSums,
    Implicit,
    allows_implicit,
    noting_ways,
    objective,
    rules_in_force,
    speculative_tracing,
    under_rules,
    without_scopes,
)
from shtypes.traced.ledger import prices_of_program, sent_by_program
from shtypes.types import ShType, State, dtypes
from shtypes.types.mesh import current_mesh

#: Parameters that set a size that would otherwise depend on values, as a fix writes them.
_SIZES: Final = {
    **{name: f"{name}=" for name in ("size", "length", "total_repeat_length", "num_segments")},
    **{name: f"{name}=False" for name in ("strip_zeros", "trim_leading_zeros")},
}
#: Parameters that are dtypes, which may also be short names such as "bf16".
_DTYPES: Final = frozenset({"dtype", "new_dtype", "out_dtype", "preferred_element_type"})


class Trace(NamedTuple):
    """JAX's trace of a function, for arguments of these shapes.

    Attributes:
        jaxpr: The program, of the arrays among the arguments.
        consts: Its constants.
        tree: The structure of its results.
        static: For each result None, or the number that JAX returns as Python's, such as the ``lower`` of `cho_factor`.
        closed_over: Values of enclosing traces that functions among the arguments close over: its first operands.
    """

    jaxpr: Any
    consts: Sequence[Any]
    tree: Any
    static: Sequence[Static | None]
    closed_over: Sequence[Any] = ()

    def unflatten(self, arrays: Sequence[Any]) -> Any:
        """The results of a call, from those that are arrays."""
        rest = iter(arrays)
        return jax.tree.unflatten(self.tree, [next(rest) if s is None else s.value for s in self.static])

    @property
    def closes_over(self) -> bool:
        """Whether functions among the arguments close over values, which may differ in the next call."""
        return bool(self.closed_over) or any(map(is_typed, self.consts))


class TypedCall(NamedTuple):
    """A call on operands of some types.

    Attributes:
        typing: The types to which the operands are cast, and those of the results.
        local: The program of each device, if the call is local.
        inside: Returns the prices of its other communication; only for errors.
    """

    typing: rules.Typing
    local: ShardProgram | None
    inside: Callable[[], tuple[Price, ...]] = tuple


class JaxFunction:
    """A function of JAX, as the user names it, that takes typed values; ``takes_out``: whether it has ``out=``."""

    def __init__(self, name: str, fn: Callable[..., Any], *, takes_out: bool = True) -> None:
        self.name, self.fn, self._takes_out = name, fn, takes_out
        self._traces: Bounded[Trace | ShardingTypeError] = Bounded(PROGRAMS)
        self._calls: Bounded[TypedCall] = Bounded(PROGRAMS)
        self._refused: Bounded[tuple[str, ...]] = Bounded(PROGRAMS)  # the axes at fault
        self._ways: Bounded[tuple[int | None]] = Bounded(PROGRAMS)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The results for typed and plain arguments."""
        leaves, tree = jax.tree.flatten((args, kwargs))
        refused: ShardingTypeError | None = None
        for choose in (_is_array, _is_typed_or_traced, _is_first_or_inexact):  # others are static: JAX reads them
            static = tuple([None if choose(i, x) else Static(_static_value(x)) for i, x in enumerate(leaves)])
            values, constants = as_operands([x for x, s in zip(leaves, static, strict=True) if s is None])
            key = (tree, static, tuple([(x.type.shape, x.type.dtype) for x in values]), trace_context())
            trace = self._traces.get(key)
            if trace is None:
                trace = self._traced(leaves, tree, static, values)
                if not isinstance(trace, ShardingTypeError) and trace.closes_over:
                    shifted = frozenset(len(trace.closed_over) + i for i in constants)
                    return trace.unflatten(_run_equations(trace, shifted, *trace.closed_over, *values))
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
            args, kwargs = jax.tree.unflatten(tree, [next(rest) if s is None else _argument(s) for s in static])
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
        except RuntimeError as error:  # `cov` raises numpy's
            if type(error) is not RuntimeError or line_of(error.__traceback__):
                raise
            raise jax_error(self.name, "does not take these arguments", error) from None
        except (jax.errors.ConcretizationTypeError, jax.errors.NonConcreteBooleanIndexError) as error:
            told = jax_error(self.name, "must know the values of an argument before it runs", error)
            told.hints = tuple(_SIZES[p] for p in inspect.signature(self.fn).parameters if p in _SIZES)
            return told
        return Trace(*needed(closed), *out, closed_over)

    def _applied(self, key: Any, trace: Trace, values: Sequence[Any], constants: frozenset[int]) -> list[Any]:
        run_equations: Callable[..., list[Any]] = functools.partial(_run_equations, trace, constants)

        def call(types: tuple[ShType, ...]) -> TypedCall:
            axes = self._refused.get((key, constants, *[t.serial for t in types]))
            if axes is not None:  # a search tries the same candidates for operands of other types
                raise ShardingTypeError(f"`{self.name}` does not type", axes=axes)
            return self._typed(key, trace, types, constants)

        def rule(types: tuple[ShType, ...]) -> rules.Typing:
            return call(types).typing

        values = match_constants(values, constants)
        types = tuple([x.type for x in values])
        try:
            self._typed(key, trace, types, constants)
        except ShardingTypeError as error:
            run_equations = under_rules(None, run_equations, FinishesSums())
            if allows_implicit():
                return self._communicating(key, trace, run_equations, values)
            raise self._refusal(error, call, types, run_equations, trace, key).with_traceback(None) from None
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

    def _communicating(
        self, key: Any, trace: Trace, run_equations: Callable[..., list[Any]], values: Sequence[Any]
    ) -> list[Any]:
        """The results, equation by equation; for an ``out=``, in the way that sends least with the reshard to it."""
        out = objective().out
        if out is None or not has_ways(trace.jaxpr):
            return run_equations(*values)
        types = [x.type for x in values]
        way = self._way(key, trace, types, out, functools.partial(_traced_in_way, run_equations, types))
        return _in_way(run_equations, way)(*values)

    def _way(
        self, key: Any, trace: Trace, types: Sequence[ShType], out: Any, traced: Callable[[int | None], _InWay]
    ) -> int | None:
        """The way that sends least with the reshard to an ``out=``, but not more forward than a gather."""

        def sent(in_way: _InWay) -> tuple[int, int]:
            if in_way.results is None:
                return in_way.sent
            try:
                with speculative_tracing():
                    last = trace_typed(lambda *xs: reshard_all(xs, out), in_way.results)
            except ShardingTypeError:
                return sys.maxsize, sys.maxsize
            forward, backward = sent_by_program(last)
            return in_way.sent[0] + forward, in_way.sent[1] + backward

        def choose() -> tuple[int | None]:
            ways: dict[int | None, tuple[int, int]] = {}
            untried: set[int | None] = {None}
            while untried:  # a way may lead to equations that have others
                way = min(untried, key=lambda way: -2 if way is None else way)
                in_way = traced(way)
                ways[way] = sent(in_way)
                untried = (untried | in_way.ways) - ways.keys()
            gather = ways.get(-1, ways[None])[0]
            return (min(ways, key=lambda way: (ways[way][0] > gather, cost(*ways[way], objective().minimize))),)

        full = (key, current_settings(), out, *[t.serial for t in types])
        (chosen,) = self._ways.get_or_create(full, choose)
        return chosen

    def _typed(self, key: Any, trace: Trace, types: tuple[ShType, ...], constants: frozenset[int]) -> TypedCall:
        """The typing of a call, cached for the operands' types and those to which they are cast."""
        full = (key, constants, *[t.serial for t in types])
        call = self._calls.get(full)
        if call is None:
            listing_name = _listing_name(self.name, *key[:2])
            try:
                call = self._calls.put(full, _typed_call(self.name, listing_name, trace, types, constants))
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
        types: tuple[ShType, ...],
        run_equations: Callable[..., list[Any]],
        trace: Trace,
        key: Any,
    ) -> ShardingTypeError:
        """The error of a call that does not type, with its fixes, and with those that add ``out=``."""
        refusal = messages.of_call(error, self.name, types)
        located(refusal, self.name, types, lambda types: call(types).typing, lambda types: call(types).inside())
        if not self._takes_out:
            return refusal

        @functools.cache
        def in_way(way: int | None) -> Callable[..., Any]:
            def results(*operands: Any) -> Any:
                with CommScope(Implicit()):
                    return _in_way(run_equations, way)(*operands)

            return results

        traced = functools.cache(functools.partial(_traced_in_way, run_equations, types))

        def chosen(out: Any) -> Callable[..., Any]:
            with CommScope(Implicit(out=out)):
                return in_way(self._way(key, trace, types, out, traced))

        ways = chosen if has_ways(trace.jaxpr) else None
        return with_out_fixes(refusal, self.name, in_way(None), *types, finish=reshard_all, chosen=ways)


def reshard_all(results: Any, out: Any) -> Any:
    """Reshards the results of a call to the types of ``out=``: one for all, or a tuple with one for each."""
    leaves, tree = jax.tree.flatten(results)
    count = sum(map(is_array, leaves))
    outs = list(out) if isinstance(out, (tuple, list)) and not hasattr(out, "_fields") else [out] * count
    if len(outs) != count:
        raise ShardingTypeError(f"`out=` has {how_many(len(outs), 'type')}, and the call {how_many(count, 'result')}")
    types = iter(outs)
    return jax.tree.unflatten(tree, [finished(x, next(types)) if is_array(x) else x for x in leaves])


def _in_way(run_equations: Callable[..., list[Any]], way: int | None) -> Callable[..., list[Any]]:
    """The function with the requested way of each primitive that has it, and without the call's ``out=``."""
    return under_rules(None, run_equations, replace(objective(), out=None, way=way))


class _InWay(NamedTuple):
    """The program of a call in one way.

    Attributes:
        sent: The bytes that it sends, forward and backward.
        results: The types of its results; None where it does not type.
        ways: The ways of the equations in it.
    """

    sent: tuple[int, int]
    results: Sequence[Any] | None
    ways: set[int]


def _traced_in_way(run_equations: Callable[..., list[Any]], types: Sequence[ShType], way: int | None) -> _InWay:
    """The traced program of a call in a way."""
    with speculative_tracing(), noting_ways() as ways:
        try:
            program = trace_typed(_in_way(run_equations, way), list(map(as_jax_type, types)))
        except ShardingTypeError:
            return _InWay((sys.maxsize, sys.maxsize), None, ways)
        return _InWay(sent_by_program(program), program.out_avals, ways)


@functools.lru_cache(maxsize=PROGRAMS)
def has_ways(jaxpr: Any) -> bool:
    """Whether a primitive of a program has ways across shards."""
    return any(
        eqn.primitive.name in WAYS or any(has_ways(jaxpr_of(body)) for body, _ in inner_jaxprs(eqn))
        for eqn in jaxpr.eqns
    )


def _is_array(place: int, x: Any) -> bool:
    return is_array(x)


def _is_typed_or_traced(place: int, x: Any) -> bool:
    """Whether an argument is an array that is not on the host."""
    return is_typed(x) or isinstance(x, jax.core.Tracer)


def _is_first_or_inexact(place: int, x: Any) -> bool:
    """Whether an argument is an array whose values functions never read: the first, or one of floats."""
    if not _is_typed_or_traced(place, x):
        return False
    return not place or isinstance(x, jax.core.Tracer) or x.type.differentiable or not _is_replicated(x)


def _is_replicated(x: Any) -> bool:
    """Whether each device has the full value, so that reading it sends nothing."""
    return x.data is not None and {*x.type.states} <= {State.REDUCED, State.INVARIANT}


class _HostArray:
    """A copy of an array whose values a function reads; hashes and compares by value."""

    __slots__ = ("_key", "value")

    def __init__(self, x: Any) -> None:
        self.value = np.array(x)
        self._key = self.value.dtype, self.value.shape, self.value.tobytes()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _HostArray) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


def _static_value(x: Any) -> Any:
    """A static argument; an array by its values."""
    return _HostArray(x) if is_array(x) else x


def _argument(static: Static) -> Any:
    return static.value.value if isinstance(static.value, _HostArray) else static.value


def _listing_name(name: str, tree: Any, static: Sequence[Static | None]) -> str:
    """A call as in listings: with its static arguments, those by keyword with their names."""
    args, kwargs = jax.tree.unflatten(tree, [None if s is None else _InListing(s.value) for s in static])
    parts = [_static_text(x) for x in args] + [f"{k}={text}" for k, x in kwargs.items() if (text := _static_text(x))]
    return f"{name}[{', '.join(filter(None, parts))}]" if any(parts) else name


class _InListing(NamedTuple):
    value: Any


def _static_text(x: Any) -> str:
    """A static argument as in listings; empty for arrays, and for objects without a short form."""
    if isinstance(x, _InListing):
        if isinstance(x.value, slice):
            parts = ["" if part is None else str(part) for part in (x.value.start, x.value.stop, x.value.step)]
            return ":".join(parts if x.value.step is not None else parts[:2])
        plain = isinstance(x.value, (int, float, str, complex)) and x.value is not False
        return "..." if x.value is Ellipsis else str(x.value) if plain else ""
    if not isinstance(x, (tuple, list)):
        return ""
    parts = ["_" if part is None else _static_text(part) for part in x]
    return f"({', '.join(parts)})" if all(parts) and {*parts} != {"_"} else ""


def _run_equations(trace: Trace, constants: frozenset[int], *operands: Any) -> list[Any]:
    """The results of a call, equation by equation; abstract values for abstract operands."""

    def run(*operands: Any) -> list[Any]:
        with noting():
            for i in constants:
                note_constant(operands[i])
            return _evaluate(trace, operands)

    if any(type(x) is Array and x.data is None for x in operands):  # the constants of the program would have data
        return [wrap(t, None) for t in trace_typed(run, list(map(jax.typeof, operands))).out_avals]
    return run(*operands)


def _evaluate(trace: Trace, operands: Sequence[Any]) -> list[Any]:
    """The results of a call, equation by equation; those that depend on no operand are constants."""
    mesh = operands[0].type.mesh if operands else current_mesh()
    outs = evaluate_jax_function(trace.jaxpr, trace.consts, operands)
    return [x if is_typed(x) else typed_constant(jax.numpy.asarray(x), mesh) for x in outs]


def _typed_call(
    name: str, listing_name: str, trace: Trace, types: Sequence[ShType], constants: frozenset[int]
) -> TypedCall:
    """Types a call on operands of these types, with the program of each device if it is local."""
    refused: list[ShardingTypeError] = []

    def run(*operands: Any) -> Any:
        for i in constants:
            note_constant(operands[i])
        try:
            return _evaluate(trace, operands)
        except ShardingTypeError as error:  # JAX would rewrite its traceback, at ten times the cost of the evaluation
            refused.append(error)

    with without_scopes():
        closed = trace_typed(run, list(map(as_jax_type, types)))
    if refused:
        raise _blame_call(refused[0], name, types)
    results = tuple(closed.out_avals)
    try:
        local = shard_program(listing_name, closed) if all(type(t) is HiShType for t in results) else None
    except NotLocalError:
        local = None
    zero_derivative = _zero_derivative(trace.jaxpr)
    if local is None:
        inside = functools.cache(functools.partial(prices_of_program, closed))
        return TypedCall(rules.Typing(tuple(types), results, zero_derivative), None, inside)
    return TypedCall(rules.Typing(local.operands, results, zero_derivative), local)


@functools.lru_cache(maxsize=PROGRAMS)
def _zero_derivative(jaxpr: Any) -> frozenset[int]:
    """The arguments of a program by which its derivative is zero."""
    return frozenset(i for i in range(len(jaxpr.invars)) if not any(depends_smoothly(jaxpr, [i])))


def _blame_call(error: ShardingTypeError, name: str, types: Sequence[ShType]) -> ShardingTypeError:
    """An error inside a call, as one of the call; if a primitive of another name raised it, ``where`` names that."""
    inner = re.split(r": |, by ", error.where.partition("\n")[0])[-1]
    error.operands = error.subjects = error.out_fixes = None
    error.fixes, error.where, error.placed = (), "", False
    if not error.what.startswith(f"`{name}`") and inner:
        operands = f"({', '.join(map(str, types))})"
        called, _, applied = inner.partition("(")
        if f"({applied}" == operands and not name.endswith(
            f".{called}"
        ):  # what is said of its operands is of the call's
            error.what = error.what.replace(f"`{called}`", f"`{name}`", 1)
        placed(error, f"{name}{operands}, by {inner}")
    return error.with_traceback(None)


def _pad(array: Any, pad_width: Any, mode: Any = "constant", **kwargs: Any) -> Any:
    """As `jax.numpy.pad`, or, with a padding value and what is before, after and between elements, `jax.lax.pad`."""
    if isinstance(mode, str) or callable(mode):
        return jax.numpy.pad(array, pad_width, mode, **kwargs)
    return jax.lax.pad(array, jax.numpy.asarray(pad_width, array.dtype), mode, **kwargs)


def _compress(condition: Any, a: Any, axis: Any = None, *, size: Any = None, fill_value: Any = 0) -> Any:
    """As `jax.numpy.compress`; a constant condition needs no size where JAX traces, too."""
    if size is not None or isinstance(condition, jax.core.Tracer):
        return jax.numpy.compress(condition, a, axis, size=size, fill_value=fill_value)
    return jax.numpy.take(a, np.flatnonzero(condition), axis)


def _polyval(p: Any, x: Any, *, unroll: int = 16) -> Any:
    """As `jax.numpy.polyval`, by products and sums: in the coefficients it is linear."""
    p, x = jax.numpy.asarray(p), jax.numpy.asarray(x)
    y = jax.numpy.zeros(np.broadcast_shapes(p.shape[1:], x.shape), jax.numpy.result_type(p, x))
    for i in range(p.shape[0]):
        y = y * x + p[i]
    return y


def _with_default(fn: Callable[..., Any], **defaults: Any) -> Callable[..., Any]:
    """A function of JAX with other defaults, where JAX refuses its defaults."""
    parameters = [p.replace(default=defaults.get(p.name, p.default)) for p in inspect.signature(fn).parameters.values()]
    signature = inspect.signature(fn).replace(parameters=parameters)

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return fn(*bound.args, **bound.kwargs)

    call.__signature__ = signature  # type: ignore[attr-defined]  # what `inspect` reads
    return call


#: Rows whose function is not JAX's alone.
_NATIVE: Final[Mapping[str, Callable[..., Any]]] = {
    "compress": _compress,
    "fill_diagonal": _with_default(jax.numpy.fill_diagonal, inplace=False),
    "pad": _pad,
    "place": _with_default(jax.numpy.place, inplace=False),
    "polyval": _polyval,
    "put": _with_default(jax.numpy.put, inplace=False),
    "put_along_axis": _with_default(jax.numpy.put_along_axis, inplace=False),
    "ravel_multi_index": _with_default(jax.numpy.ravel_multi_index, mode="clip"),
}
_DOC: Final = """{first}

    `{path}` of typed values. {typed}
    """


def native_of(op: Op) -> Callable[..., Any] | None:
    """The function of JAX that a row names; None if the installed release lacks it."""
    module, _, attr = op.jax.rpartition(".")
    return _NATIVE.get(op.name) or getattr(importlib.import_module(module), attr, None)


def function_of(op: Op) -> Callable[..., Any]:
    """The public function that a row describes."""
    name = op.name.rpartition(".")[2]
    native = native_of(op)
    if native is None:
        return _missing_function(op, name)
    inner = JaxFunction(op.name, native)
    signature = with_out(inspect.signature(native))
    open_ended = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in signature.parameters.values())
    names = [] if open_ended else [*signature.parameters]

    def call(*args: Any, **kwargs: Any) -> Any:
        if names:
            refuse_unknown(name, kwargs, names)
        bound = signature.bind(*args, **kwargs)
        for parameter in _DTYPES & bound.arguments.keys():
            if isinstance(dtype := bound.arguments[parameter], str):
                bound.arguments[parameter] = dtypes.to_numpy(dtype_name(dtype))
        out = bound.arguments.pop("out", None)
        return inner.into(out, *bound.args, **bound.kwargs)

    doc = _DOC.format(first=(inspect.getdoc(native) or "").partition("\n")[0], path=op.jax, typed="")
    return published(call, name, doc, signature)


def _missing_function(op: Op, name: str) -> Callable[..., Any]:
    """A function that raises: the installed release of JAX lacks it."""

    def call(*args: Any, out: Any = None, **kwargs: Any) -> Any:
        raise ShardingTypeError(f"the installed JAX has no `{op.jax}`", hints=["a newer release of JAX"])

    doc = f"`{op.jax}` of typed values, for releases of JAX that have it."
    return published(call, name, doc, inspect.signature(call))


def with_out(signature: inspect.Signature) -> inspect.Signature:
    """A signature with ``out``: in JAX's position if it has one, else by keyword."""
    out = inspect.Parameter("out", inspect.Parameter.KEYWORD_ONLY, default=None)
    if "out" in signature.parameters:
        replaced = [out.replace(kind=p.kind) if p.name == "out" else p for p in signature.parameters.values()]
        return signature.replace(parameters=replaced)
    parameters = list(signature.parameters.values())
    at = len(parameters) - sum(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
    return signature.replace(parameters=[*parameters[:at], out, *parameters[at:]])
