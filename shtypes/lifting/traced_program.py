"""A plain function that is traced and evaluated on typed values."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

import jax

from shtypes._compat import JAX_ERRORS, no_trace_is_running, trace_ctx
from shtypes._compat.jaxprs import inner_jaxprs, jaxpr_of
from shtypes._compat.local_axes import local_mesh, traced_type
from shtypes._compat.plain_programs import needed, trace_plain
from shtypes._compat.program_keys import key_of
from shtypes._compat.program_mesh import ArgumentSharding, argument_shardings
from shtypes.caches import PROGRAMS, Bounded, Static
from shtypes.context.eqn_source import tracing_typed
from shtypes.context.signature_errors import is_lazy, lazy_result, name_of
from shtypes.context.user_line import placed, shortened
from shtypes.core.call_expressions import argument_names
from shtypes.core.jax_errors import PlainCode, Refusal
from shtypes.dispatch.apply import is_array, is_typed
from shtypes.errors import ShardingTypeError
from shtypes.evaluation.at_specs import AtSpecs, is_backward
from shtypes.evaluation.interpreter import evaluate_program
from shtypes.evaluation.value_info import aval_of, mesh_of, noting, type_of
from shtypes.lifting.next_values import Next, in_types_before, next_values
from shtypes.lifting.rows.collectives import spec_of
from shtypes.programs.jit import JitFunction
from shtypes.scopes.comm import note_undecided
from shtypes.scopes.scope_rules import allows_implicit, speculative_tracing
from shtypes.traced.dependence import dependences
from shtypes.types import ShType

#: Why the solver did not decide a program whose structure it knows.
_OTHER_CONSTANTS: Final = "with these numbers in it the decisions about programs of its form do not type"


class Traced(NamedTuple):
    """A traced plain function."""

    jaxpr: Any  # without dead code
    consts: Sequence[Any]
    outer_values: Sequence[Any]  # values of enclosing traces in the function's closure: the first inputs
    tree: Any  # the pytree structure of the results


class ProgramSolver(Protocol):
    """Chooses the reshards that `implicit_comm` inserts in a program, for all ops together: `solver.complete`."""

    def undecided(self, traced: Traced, following: Next, arrays: Sequence[Any]) -> str:
        """Why the solver does not handle a program, whose ops then choose one by one; empty if it does."""
        ...

    def evaluate(self, traced: Traced, following: Next, arrays: Sequence[Any]) -> list[Any] | None:
        """The results of the program with the solver's reshards; None if its ops choose one by one."""
        ...


_solver: list[ProgramSolver] = []


def connect_solver(solver: ProgramSolver) -> None:
    """Sets the solver; without one, each op chooses its reshards."""
    _solver[:] = [solver]


class CallArgs(NamedTuple):
    """The flattened arguments of a call."""

    arrays: Sequence[Any]  # the array leaves
    tree: Any
    static: tuple[Static | None, ...]  # the other leaves, with None for each array


class Program:
    """A plain function specialized to one argument structure and its static leaves."""

    def __init__(
        self,
        f: Callable[..., Any],
        tree: Any,
        static: tuple[Static | None, ...],
        at_specs: AtSpecs,
        *,
        completes: bool,
        typed: bool = False,
    ) -> None:
        self.f, self.tree, self.static = f, tree, static
        self._at_specs, self._completes, self._typed = at_specs, completes, typed
        self._compiled: Bounded[JitFunction[..., Any]] = Bounded(PROGRAMS)
        self._forms: Bounded[Any] = Bounded(PROGRAMS)

    def _on_arrays(self, call_args: CallArgs, f: Callable[..., Any]) -> Callable[..., Any]:
        """``f`` as a new function of its array arguments, which JAX traces anew."""
        arrays, tree, static = call_args
        types = tuple(map(type_of, arrays))

        def flat(*arrays: Any) -> Any:
            rest = iter(arrays)
            args, kwargs = jax.tree.unflatten(tree, [next(rest) if s is None else s.value for s in static])
            shardings = {
                id(x): ArgumentSharding(t, spec_of(t)) for x, t in zip(arrays, types, strict=True) if t is not None
            }
            with argument_shardings(shardings), tracing_typed(trace_ctx.trace if self._typed else None):
                results = f(*args, **kwargs)
                return jax.tree_util.tree_map_with_path(self._traceable, results, is_leaf=is_lazy)

        flat.__name__ = flat.__qualname__ = getattr(self.f, "__name__", "f")
        return flat

    def _traceable(self, path: Any, x: Any) -> Any:
        """A result for JAX's tracing, which takes arrays only."""
        if isinstance(x, (jax.Array, jax.core.Tracer)):
            return x
        if is_lazy(x):
            raise placed(lazy_result(name_of(self.f) or "f", x, jax.tree_util.keystr(path)), "lift")
        return _Untraced(x)

    def __call__(self, call_args: CallArgs) -> Any:
        """Evaluates the function; on typed values outside any transformation, as one compiled program.

        Each call traces the function anew. A program that differs from an earlier one only in its numbers and
        constants is compiled when it is called a second time.
        """
        traced = self.traced(call_args)
        return self.run(traced, self.following(traced, call_args) if self._solver_decides() else (), call_args)

    def run(self, traced: Traced, following: Next, call_args: CallArgs) -> Any:
        """Evaluates a traced program."""
        results = jax.tree.unflatten(traced.tree, self._run(traced, following, call_args.arrays))
        return jax.tree.map(lambda x: x.value if _is_untraced(x) else x, results, is_leaf=_is_untraced)

    def _run(self, traced: Traced, following: Next, arrays: Sequence[Any]) -> list[Any]:
        if not arrays or traced.outer_values or not no_trace_is_running() or not all(map(is_typed, arrays)):
            return self._evaluate(traced, following, *arrays)
        key = key_of(traced.jaxpr, traced.consts, Static)
        compiled = self._compiled.get((key, following))
        if compiled is None:
            last = self._forms.get(key.form)
            self._forms.put(key.form, key.values)
            if last is not None and last != key.values:
                return self._evaluate(traced, following, *arrays)
            run = functools.partial(self._evaluate, traced, following)
            compiled = self._compiled.put((key, following), JitFunction(run, None, {}, {}))
        try:
            outs: list[Any] = compiled(*arrays)
            return outs
        except ShardingTypeError:
            return self._evaluate(traced, following, *arrays)  # raises it without the frames of a trace

    def traced(self, call_args: CallArgs) -> Traced:
        """Traces the function for these arguments."""
        code = PlainCode(self.f, ends=not self._typed and local_mesh() is None)  # local mode traces again after errors
        traced = None
        try:
            traced = self._traced(call_args, code)
        except JAX_ERRORS as error:
            refusal = None if self._typed else code.refusal_of(error)
            if refusal is None:
                raise
        else:
            if not (code.ends and code.refusals):
                return traced
            (refusal,) = code.refusals
        raise refusal.as_error(self._types_of(refusal, traced, call_args)) from shortened(refusal.error)

    def _traced(self, call_args: CallArgs, code: PlainCode) -> Traced:
        mesh = mesh_of(call_args.arrays)
        axes = None if mesh is None else (mesh.axis_sizes, mesh.axis_names)
        closed, outer_values, tree = trace_plain(
            self._on_arrays(call_args, code), [aval_of(x) for x in call_args.arrays], axes
        )
        return Traced(*needed(closed), outer_values, tree)

    def _types_of(self, refusal: Refusal, traced: Traced | None, call_args: CallArgs) -> list[Any]:
        """The sharding types of a refused line's operands; JAX's types if the program before it does not type.

        Operands inside a sub-jaxpr have JAX's types too.
        """
        types: Sequence[Any] = ()
        with speculative_tracing(), contextlib.suppress(Exception):
            ended = traced or self._traced(call_args, PlainCode(self.f, ends=True))
            outs = jax.eval_shape(functools.partial(self._evaluate_op_by_op, ended), call_args.arrays)
            types = jax.tree.unflatten(ended.tree, outs)
        pairs = itertools.zip_longest(types, refusal.operands)
        return [t if isinstance(t, ShType) else traced_type(x) for t, x in pairs]

    def following(self, traced: Traced, call_args: CallArgs) -> Next:
        """For each result, the argument whose next value it is."""
        numbers = iter(range(len(call_args.arrays)))
        arguments = jax.tree.unflatten(self.tree, [next(numbers) if s is None else None for s in self.static])
        results = jax.tree.unflatten(traced.tree, range(traced.tree.num_leaves))
        types = [x.type if is_typed(x) else aval_of(x) for x in call_args.arrays]
        reads = dependences(traced.jaxpr, is_backward) if has_backward(traced.jaxpr, bodies=True) else None
        before = len(traced.outer_values)

        def is_gradient(result: int, array: int) -> bool:
            return reads is not None and before + array not in reads[result].operands

        return next_values(arguments, results, types, [v.aval for v in traced.jaxpr.outvars], is_gradient)

    def undecided(self, traced: Traced, following: Next, arrays: Sequence[Any]) -> str:
        """Why the solver does not decide the program; empty if it does."""
        return _solver[0].undecided(traced, following, arrays)

    def _solver_decides(self) -> bool:
        return self._completes and bool(_solver) and allows_implicit()

    def _evaluate(self, traced: Traced, following: Next, *arrays: Any) -> list[Any]:
        if not self._solver_decides():
            return self._evaluate_op_by_op(traced, arrays)
        outs = _solver[0].evaluate(traced, following, arrays)
        if outs is None:
            note_undecided(self.f, self.undecided(traced, following, arrays) or _OTHER_CONSTANTS)
            outs = self._evaluate_op_by_op(traced, arrays)
        return in_types_before(outs, following, arrays)

    def _evaluate_op_by_op(self, traced: Traced, arrays: Sequence[Any]) -> list[Any]:
        at_specs = self._at_specs.fresh_copy()
        at_specs.check(traced.jaxpr)
        try:
            with noting():
                names = functools.partial(self._argument_names, len(traced.outer_values))
                outs = evaluate_program(traced.jaxpr, traced.consts, [*traced.outer_values, *arrays], at_specs, names)
        except ShardingTypeError:
            at_specs.check_fit()  # a type of `at=` that does not fit is the better explanation
            raise
        at_specs.check_fit()
        return outs

    def _argument_names(self, outer_count: int) -> Sequence[str]:
        """The function's names for its array arguments, after empty names for the outer values."""
        arrays = [i for i, s in enumerate(self.static) if s is None]
        return [""] * outer_count + [*(argument_names(self.f, self.tree, arrays) or [""] * len(arrays))]


@jax.tree_util.register_static
class _Untraced(Static):
    """A non-array result, hidden from JAX's tracing."""


def _is_untraced(x: Any) -> bool:
    return isinstance(x, _Untraced)


def flatten_args(args: Any, kwargs: Any) -> CallArgs:
    """The leaves of the arguments of a call: arrays, and what is static."""
    leaves, tree = jax.tree.flatten((args, kwargs))
    static = tuple(None if is_array(x) else Static(x) for x in leaves)
    return CallArgs([x for x, s in zip(leaves, static, strict=True) if s is None], tree, static)


def has_backward(jaxpr: Any, *, bodies: bool = False) -> bool:
    """Whether a program contains the equations of a backward pass, or one of its ``bodies`` does."""
    if any(getattr(each, "name", "") == "transpose" for e in jaxpr.eqns for each in e.source_info.name_stack.stack):
        return True
    run = [e for e in jaxpr.eqns if bodies and not e.primitive.name.startswith("custom")]  # not rules of derivatives
    return any(has_backward(jaxpr_of(body), bodies=True) for eqn in run for body, _ in inner_jaxprs(eqn))
