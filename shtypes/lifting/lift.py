"""`lift`: converts a plain JAX function to one of typed values."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeVar, cast

import jax

from shtypes._compat import JAX_ERRORS, no_trace_is_running
from shtypes._compat.jaxprs import key_of
from shtypes._compat.local_axes import local_mesh, traced_type
from shtypes._compat.plain_programs import needed, trace_plain
from shtypes._compat.program_mesh import ArgumentSharding, argument_shardings
from shtypes.caches import PROGRAMS, Bounded, Static
from shtypes.context.eqn_source import is_tracing_plain, tracing_typed
from shtypes.context.settings import current_settings
from shtypes.context.signature_errors import check_function, is_lazy, lazy_result, name_of
from shtypes.context.user_line import placed, public, refuse, shortened
from shtypes.core.call_expressions import argument_names
from shtypes.core.jax_errors import PlainCode, Refusal
from shtypes.dispatch.apply import is_array, is_typed
from shtypes.errors import ShardingTypeError, short
from shtypes.evaluation.at_specs import AtSpecs
from shtypes.evaluation.interpreter import evaluate_program
from shtypes.evaluation.rows import elementwise, lookups, matrices, shapes
from shtypes.evaluation.table import BODIES, CHOICES, ROWS, WAYS
from shtypes.evaluation.value_info import aval_of, mesh_of, noting, type_of
from shtypes.lifting import recorded_calls
from shtypes.lifting.next_values import Next, in_types_before, next_values
from shtypes.lifting.recorded_calls import recorded
from shtypes.lifting.rows import collectives, control, derivatives, reductions
from shtypes.lifting.rows.collectives import spec_of
from shtypes.lifting.ways import grouping, order, positions, running, spectra, windows
from shtypes.lifting.ways import matrices as tall
from shtypes.local_mode.shard_map import connect_lift
from shtypes.programs.jit import JitFunction
from shtypes.scopes.comm import allows_implicit, note_undecided, speculative_tracing
from shtypes.types import ShType

R = TypeVar("R", bound=Callable[..., Any])

#: The modules that add rows to the table of primitives on import.
_ROW_MODULES: Final = (
    *(collectives, control, derivatives, elementwise, lookups, matrices, reductions, shapes),
    *(grouping, order, positions, running, spectra, tall, windows),
    recorded_calls,
)


class Lift(Protocol):
    """The type of `lift`: a function with a ``register`` attribute."""

    def __call__(
        self,
        f: Callable[..., Any],
        *,
        at: Mapping[str, Any] | None = None,
        pending: Literal["keep", "finish"] = "keep",
    ) -> Callable[..., Any]:
        """Converts a plain JAX function to one of typed values."""
        ...

    def register(self, primitive: Any) -> Callable[[R], R]:
        """Registers a function as the row of a primitive."""
        ...


def register(primitive: Any) -> Callable[[R], R]:
    """Registers a function as the row of a primitive, which evaluates it where an operand is typed.

    Args:
        primitive: JAX's primitive, or its name. An existing row is replaced.

    Returns:
        A decorator for the row: a function of the operands and, by keyword, of all parameters of the primitive. It
        calls ops of typed values, whose typing and derivative rules apply, and returns the result, or a list of
        results for a primitive with several. Constant operands are typed; concrete scalars are Python numbers.

    Raises:
        ShardingTypeError: ``primitive`` is neither a primitive nor a name.

    Examples:
        >>> import shtypes as sh
        >>> @sh.lift.register("my_scale")
        ... def scale(x, *, factor):
        ...     return x * factor
    """
    name = primitive if isinstance(primitive, str) else getattr(primitive, "name", None)
    if not isinstance(name, str) or not name:
        raise ShardingTypeError(
            f"`lift.register` takes a primitive of JAX or its name, and was given `{primitive!r}`",
            hints=['@sh.lift.register("my_primitive")'],
        )

    def add(fn: R) -> R:
        check_function("lift.register", fn)
        for table in (BODIES, CHOICES, WAYS):  # the entries of the row that is replaced
            table.pop(name, None)
        ROWS[name] = functools.partial(_registered, fn)
        return fn

    return add


def _registered(fn: Callable[..., Any], eqn: Any, operands: list[Any]) -> list[Any]:
    """Evaluates an equation with a row that the user registered."""
    try:
        inspect.signature(fn).bind(*operands, **eqn.params)
    except TypeError:
        raise ShardingTypeError(
            f"`{eqn.primitive.name}` has the parameters {', '.join(sorted(eqn.params))}, which its row does not take",
            why="a row is a function of the operands and, by keyword, of all parameters",
        ) from None
    out = fn(*operands, **eqn.params)
    return list(out) if eqn.primitive.multiple_results else [out]


def _add_register(fn: Callable[..., Callable[..., Any]]) -> Lift:
    fn.register = public(register)  # type: ignore[attr-defined]
    return cast("Lift", fn)


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
    """Sets the solver; without one, each op chooses its own reshards."""
    _solver[:] = [solver]


class CallArgs(NamedTuple):
    """The flattened arguments of a call."""

    arrays: Sequence[Any]  # the array leaves
    tree: Any
    static: tuple[Static | None, ...]  # the other leaves, with None for each array


class _Program:
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
            leaves = [next(rest) if s is None else s.value for s in static]
            args, kwargs = jax.tree.unflatten(tree, leaves)
            shardings = {
                id(x): ArgumentSharding(t, spec_of(t)) for x, t in zip(arrays, types, strict=True) if t is not None
            }
            with argument_shardings(shardings), tracing_typed(self._typed):
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
        return next_values(arguments, results, types, [v.aval for v in traced.jaxpr.outvars])

    def _solver_decides(self) -> bool:
        return self._completes and bool(_solver) and allows_implicit()

    def _evaluate(self, traced: Traced, following: Next, *arrays: Any) -> list[Any]:
        if not self._solver_decides():
            return self._evaluate_op_by_op(traced, arrays)
        outs = _solver[0].evaluate(traced, following, arrays)
        if outs is None:
            note_undecided(self.f, _solver[0].undecided(traced, following, arrays) or _OTHER_CONSTANTS)
            outs = self._evaluate_op_by_op(traced, arrays)
        return in_types_before(outs, following, arrays, gradients=has_backward(traced.jaxpr))

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


@_add_register
def lift(
    f: Callable[..., Any],
    *,
    at: Mapping[str, Any] | None = None,
    pending: Literal["keep", "finish"] = "keep",
) -> Callable[..., Any]:
    """Converts a plain JAX function to one of typed values.

    Typed leaves of the arguments are traced as plain arrays of their global shape; the program is then evaluated with
    one typed op per primitive. So code written in `jax.numpy`, Flax, Equinox or optax is typed by the rules of this
    library, and its communication is known.

    The program sees the mesh of its arguments (`jax.sharding.get_abstract_mesh`), and `jax.typeof` of an argument has
    its sharding. Sharding annotations are reshards: `jax.lax.with_sharding_constraint`, `jax.reshard`,
    ``out_sharding=``, the shardings of `jax.jit`, `jax.sharding.auto_axes` and `jax.device_put`.

    Scopes that the program opens (`no_comm`, `policy`, `jax.enable_x64`, ...) apply to what it computes in them.

    Each call traces ``f`` anew and sees the current values of its closure, which may be typed or traced. A call with
    typed arrays only runs as one compiled and cached program; with plain arrays among them the operations run one by
    one, and see their values.

    Args:
        f: A function of pytrees of arrays. Leaves that are no arrays are passed unchanged.
        at: Reshards for lines that cannot be edited: a mapping from places of the program to the types of their
            results, as `reshard` takes them (``"[...]"`` finishes pending sums). A place is a path of name scopes, as
            Flax linen, Haiku and `jax.named_scope` write them (``"encoder/Dense_0"``, or any part of one; ``*`` matches
            any letters), a function (``"MultiHeadAttention.__call__"``), or a line (``"linear.py:422"``). Its results
            are the values that it computes and the rest of the forward pass uses, on each run through the place;
            results whose shape the type does not fit are unchanged.
        pending: ``"keep"`` leaves sums pending. ``"finish"`` adds an all-reduce, to the replicated state of the policy,
            after each product or sum over a sharded dim.

    Returns:
        A function of the same arguments, typed or plain. Results that depend on no typed value are plain.

    Raises:
        ShardingTypeError: (when called) an operation does not type, with the line of ``f``, the JAX function called
            there, and fixes; JAX refuses a line, with the types of its operands; a primitive has no row; a place of
            ``at`` is not in the program, or its type fits none of its results.

    Communicates: as each operation does: nothing, unless the program, ``at`` or ``pending`` reshards, or
    `implicit_comm` allows it.

    Transpose: that of the typed ops, and of the reshards of ``at`` and ``pending``.

    Examples:
        >>> import jax.numpy as jnp
        >>> import shtypes as sh
        >>> def layer(x, w):
        ...     return jnp.tanh(x @ w)
        >>> with sh.use_mesh(sh.make_mesh({"dp": 2})):
        ...     sh.lift(layer)(sh.ones("f32[4@dp, 8]"), sh.ones("f32[8, 8]")).type
        f32[4@dp,8]
    """
    check_function("lift", f)
    places, finish = _checked_options(at, pending)
    return _lifted(f, places, finish=finish, completes=not places and not finish)


def lift_op_by_op(f: Callable[..., Any]) -> Callable[..., Any]:
    """`lift` without the solver: under `implicit_comm` each op chooses its own reshards."""
    return _lifted(f, {}, finish=False, completes=False)


def has_backward(jaxpr: Any) -> bool:
    """Whether a program contains the equations of a backward pass."""
    stacks = (eqn.source_info.name_stack.stack for eqn in jaxpr.eqns)
    return any(getattr(each, "name", "") == "transpose" for stack in stacks for each in stack)


#: Why the solver did not decide a program whose structure it knows.
_OTHER_CONSTANTS: Final = "with these numbers in it the decisions about programs of its form do not type"
#: Why the solver does not decide a function that differentiates: the functions in it are decided one by one.
_TAKES_GRADIENTS: Final = "it takes gradients itself"


class Completed:
    """A function of typed values whose `implicit_comm` reshards the solver chooses, where it can trace the function."""

    def __init__(self, f: Callable[..., Any]) -> None:
        functools.update_wrapper(self, f)
        self.f = f
        self._programs: Bounded[_Program] = Bounded(PROGRAMS)
        self._undecided: Bounded[str] = Bounded(PROGRAMS)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The results of the function."""
        call_args = _flatten_args(args, kwargs)
        key = (call_args.tree, call_args.static)
        if is_tracing_plain() or not any(map(is_typed, call_args.arrays)):
            return self.f(*args, **kwargs)
        program = self._programs.get(key)
        if program is None:
            specs = AtSpecs("f", {}, finish=False)
            program = _Program(self.f, call_args.tree, call_args.static, specs, completes=True, typed=True)
            self._programs.put(key, program)
        typed_key = (*key, current_settings(), tuple([type_of(x) or jax.typeof(x) for x in call_args.arrays]))
        why = self._undecided.get(typed_key)
        if why is None:
            try:
                traced = program.traced(call_args)
                # Gradients have cotangent types, which are fixed: only the differentiated function is solved.
                if has_backward(traced.jaxpr):
                    why = _TAKES_GRADIENTS
                else:
                    following = program.following(traced, call_args)
                    why = _solver[0].undecided(traced, following, call_args.arrays)
                    if not why:
                        return program.run(traced, following, call_args)
            except Exception as error:  # it reads values or types, which a plain trace does not have
                cause = error.__cause__ or error
                message = cause.what if isinstance(cause, ShardingTypeError) else str(cause).partition("\n")[0]
                why = f"it wants values or types while Python runs it ({type(cause).__name__}: {short(message, 160)})"
            self._undecided.put(typed_key, why)
        if why is not _TAKES_GRADIENTS:
            note_undecided(self.f, why)
        return self.f(*args, **kwargs)


def _flatten_args(args: Any, kwargs: Any) -> CallArgs:
    leaves, tree = jax.tree.flatten((args, kwargs))
    static = tuple(None if is_array(x) else Static(x) for x in leaves)
    return CallArgs([x for x, s in zip(leaves, static, strict=True) if s is None], tree, static)


def _lifted(f: Callable[..., Any], places: dict[str, Any], *, finish: bool, completes: bool) -> Callable[..., Any]:
    programs: Bounded[_Program] = Bounded(PROGRAMS)
    name = getattr(f, "__name__", "f")
    name = name if name.isidentifier() else "f"

    @functools.wraps(f)
    def lifted(*args: Any, **kwargs: Any) -> Any:
        if is_tracing_plain():
            if places or finish:
                return recorded(lifted, args, kwargs, plain=f)
            with tracing_typed(False):
                return f(*args, **kwargs)
        call_args = _flatten_args(args, kwargs)
        key = (call_args.tree, call_args.static)
        program = programs.get(key)
        if program is None:
            specs = AtSpecs(name, places, finish=finish)
            program = programs.put(key, _Program(f, *key, specs, completes=completes))
        try:
            return program(call_args)
        except ShardingTypeError as error:
            raise error.with_traceback(None) from error.__cause__
        except JAX_ERRORS as error:
            refuse(error, f, args, kwargs, name_of(f) or name)
            raise

    return lifted


def _checked_options(at: Any, pending: Any) -> tuple[dict[str, Any], bool]:
    if at is not None and not (isinstance(at, Mapping) and all(isinstance(place, str) and place for place in at)):
        raise ShardingTypeError(
            "`at` of `lift` is no mapping from places to types", hints=['at={"MultiHeadAttention.__call__": "[...]"}']
        )
    if pending not in ("keep", "finish"):
        raise ShardingTypeError(f"`pending` of `lift` is {pending!r}", hints=['pending="keep"', 'pending="finish"'])
    return dict(at or {}), pending == "finish"


connect_lift(lift)
