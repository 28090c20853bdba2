"""`lift`: a plain JAX function as one of typed values."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeVar, cast

import jax
import numpy as np

from shtypes._compat import no_trace_is_running
from shtypes._compat.jaxprs import key_of
from shtypes._compat.local_axes import traced_type
from shtypes._compat.plain_programs import needed, trace_plain
from shtypes._compat.program_mesh import ArgumentSharding, argument_shardings
from shtypes.caches import PROGRAMS, Bounded, Static
from shtypes.context.eqn_source import is_tracing_plain, tracing_typed
from shtypes.context.settings import current_settings
from shtypes.context.signature_errors import check_function, name_of
from shtypes.context.user_line import ARGUMENT_ERRORS, public, refuse, shortened
from shtypes.core.jax_errors import PlainCode, Refused
from shtypes.dispatch.apply import is_typed
from shtypes.errors import ShardingTypeError, short
from shtypes.evaluation.at_specs import AtSpecs
from shtypes.evaluation.interpreter import evaluate_whole
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
from shtypes.scopes.comm import allows_implicit, note_undecided, trying
from shtypes.types import ShType

R = TypeVar("R", bound=Callable[..., Any])

#: The files that fill the table of primitives when they are imported.
_FILLED: Final = (
    *(collectives, control, derivatives, elementwise, lookups, matrices, reductions, shapes),
    *(grouping, order, positions, running, spectra, tall, windows),
    recorded_calls,
)


class Lift(Protocol):
    """The type of `lift`: a function with an attribute ``register``."""

    def __call__(
        self,
        f: Callable[..., Any],
        *,
        at: Mapping[str, Any] | None = None,
        pending: Literal["keep", "finish"] = "keep",
    ) -> Callable[..., Any]:
        """A plain JAX function as one of typed values."""
        ...

    def register(self, primitive: Any) -> Callable[[R], R]:
        """Makes a function the row of a primitive."""
        ...


def register(primitive: Any) -> Callable[[R], R]:
    """Makes a function the row of a primitive: what evaluates it where an operand is typed.

    Args:
        primitive: JAX's primitive, or its name. One that has a row gets another.

    Returns:
        A decorator for the row, a function of the operands and, by keyword, of all parameters of the primitive. It is
        made of ops of typed values, whose rules and derivatives it then has, and gives the result, or a list of them
        for a primitive of several results. Constants among the operands come typed, known numbers as numbers.

    Raises:
        ShardingTypeError: what is registered is no primitive.

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
        for table in (BODIES, CHOICES, WAYS):  # what is said of JAX's own is not of this one
            table.pop(name, None)
        ROWS[name] = functools.partial(_registered, fn)
        return fn

    return add


def _registered(fn: Callable[..., Any], eqn: Any, operands: list[Any]) -> list[Any]:
    """The results of an equation by a row of the user's."""
    try:
        inspect.signature(fn).bind(*operands, **eqn.params)
    except TypeError:
        raise ShardingTypeError(
            f"`{eqn.primitive.name}` has the parameters {', '.join(sorted(eqn.params))}, which its row does not take",
            why="a row is a function of the operands and, by keyword, of all parameters",
        ) from None
    out = fn(*operands, **eqn.params)
    return list(out) if eqn.primitive.multiple_results else [out]


def _with_register(fn: Callable[..., Callable[..., Any]]) -> Lift:
    fn.register = public(register)  # type: ignore[attr-defined]
    return cast("Lift", fn)


class Traced(NamedTuple):
    """A trace of a plain function."""

    jaxpr: Any  # the program, without what nothing uses
    consts: Sequence[Any]  # its constants
    around: Sequence[Any]  # values of traces around it that the function closes over: the program's first arguments
    tree: Any  # the structure of its results


class Whole(Protocol):
    """What decides about a whole program what `implicit_comm` inserts in it: `solver.complete`."""

    def undecided(self, traced: Traced, following: Next, arrays: Sequence[Any]) -> str:
        """Why it does not decide about a program, whose ops then choose for themselves; empty where it does."""
        ...

    def evaluate(self, traced: Traced, following: Next, arrays: Sequence[Any]) -> list[Any] | None:
        """The results of the program as it is decided; None where its ops choose for themselves."""
        ...


_whole: list[Whole] = []


def connect_whole(whole: Whole) -> None:
    """Sets what decides about whole programs; without it, each op chooses for itself."""
    _whole[:] = [whole]


class _Given(NamedTuple):
    """The arguments of a call."""

    arrays: Sequence[Any]  # the arrays among them
    tree: Any  # their structure
    static: tuple[Static | None, ...]  # what is no array, and None in the places of arrays


class _Program:
    """A plain function for arguments of one structure, and with these static leaves."""

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

    def _of_arrays(self, given: _Given, f: Callable[..., Any]) -> Callable[..., Any]:
        """A function as one of its arrays, which JAX has not traced yet: what it closes over may be other by now."""
        arrays, tree, static = given
        types = tuple(map(type_of, arrays))

        def flat(*arrays: Any) -> Any:
            rest = iter(arrays)
            leaves = [next(rest) if s is None else s.value for s in static]
            args, kwargs = jax.tree.unflatten(tree, leaves)
            lies = {id(x): ArgumentSharding(t, spec_of(t)) for x, t in zip(arrays, types, strict=True) if t is not None}
            with argument_shardings(lies), tracing_typed(self._typed):
                return jax.tree.map(lambda x: x if _is_traced(x) else _Untraced(x), f(*args, **kwargs))

        flat.__name__ = flat.__qualname__ = getattr(self.f, "__name__", "f")
        return flat

    def __call__(self, given: _Given) -> Any:
        """The results; of typed values that no transformation looks at, by one compiled program.

        The function is traced in each call, as it runs in each of plain JAX. A program that differs from one before in
        its numbers and constants alone is compiled only when it comes again.
        """
        traced = self.traced(given)
        return self.run(traced, self.following(traced, given) if self._decides() else (), given)

    def run(self, traced: Traced, following: Next, given: _Given) -> Any:
        """The results of a trace."""
        results = jax.tree.unflatten(traced.tree, self._run(traced, following, given.arrays))
        return jax.tree.map(lambda x: x.value if _is_untraced(x) else x, results, is_leaf=_is_untraced)

    def _run(self, traced: Traced, following: Next, arrays: Sequence[Any]) -> list[Any]:
        if not arrays or traced.around or not no_trace_is_running() or not all(map(is_typed, arrays)):
            return self._evaluated(traced, following, *arrays)
        key = key_of(traced.jaxpr, traced.consts, Static)
        compiled = self._compiled.get((key, following))
        if compiled is None:
            last = self._forms.get(key.form)
            self._forms.put(key.form, key.values)
            if last is not None and last != key.values:
                return self._evaluated(traced, following, *arrays)
            run = functools.partial(self._evaluated, traced, following)
            compiled = self._compiled.put((key, following), JitFunction(run, None, {}, {}))
        try:
            outs: list[Any] = compiled(*arrays)
            return outs
        except ShardingTypeError:
            return self._evaluated(traced, following, *arrays)  # which says it without the frames of a trace

    def traced(self, given: _Given) -> Traced:
        """The program for these arrays."""
        code = PlainCode(self.f)
        try:
            return self._traced(given, code)
        except ARGUMENT_ERRORS as error:
            refused = None if self._typed else code.refused(error)
            if refused is None:
                raise
        raise refused.told(self._types_of(refused, given)) from shortened(refused.error)

    def _traced(self, given: _Given, code: Callable[..., Any]) -> Traced:
        mesh = mesh_of(given.arrays)
        axes = None if mesh is None else (mesh.axis_sizes, mesh.axis_names)
        closed, around, tree = trace_plain(self._of_arrays(given, code), [aval_of(x) for x in given.arrays], axes)
        return Traced(*needed(closed), around, tree)

    def _types_of(self, refused: Refused, given: _Given) -> list[Any]:
        """The types of the operands of a line; JAX's where the program before it does not type, or it is in a body."""
        types: Sequence[Any] = ()
        with trying(), contextlib.suppress(Exception):
            traced = self._traced(given, PlainCode(self.f, ends=True))
            outs = jax.eval_shape(functools.partial(self._by_its_ops, traced), given.arrays)
            types = jax.tree.unflatten(traced.tree, outs)
        pairs = itertools.zip_longest(types, refused.operands)
        return [t if isinstance(t, ShType) else traced_type(x) for t, x in pairs]

    def following(self, traced: Traced, given: _Given) -> Next:
        """Which results of a trace are next values of the arrays."""
        numbers = iter(range(len(given.arrays)))
        arguments = jax.tree.unflatten(self.tree, [next(numbers) if s is None else None for s in self.static])
        results = jax.tree.unflatten(traced.tree, range(traced.tree.num_leaves))
        types = [x.type if is_typed(x) else aval_of(x) for x in given.arrays]
        return next_values(arguments, results, types, [v.aval for v in traced.jaxpr.outvars])

    def _decides(self) -> bool:
        return self._completes and bool(_whole) and allows_implicit()

    def _evaluated(self, traced: Traced, following: Next, *arrays: Any) -> list[Any]:
        if not self._decides():
            return self._by_its_ops(traced, arrays)
        outs = _whole[0].evaluate(traced, following, arrays)
        if outs is None:
            note_undecided(self.f, _whole[0].undecided(traced, following, arrays) or _OTHER_NUMBERS)
            outs = self._by_its_ops(traced, arrays)
        return in_types_before(outs, following, arrays, gradients=has_backward(traced.jaxpr))

    def _by_its_ops(self, traced: Traced, arrays: Sequence[Any]) -> list[Any]:
        at_specs = self._at_specs.again()
        at_specs.check(traced.jaxpr)
        try:
            with noting():
                names = functools.partial(self._arguments, len(traced.around))
                outs = evaluate_whole(traced.jaxpr, traced.consts, [*traced.around, *arrays], at_specs, names)
        except ShardingTypeError:
            at_specs.check_fit()  # what was said of a place and did not fit is the nearer reason
            raise
        at_specs.check_fit()
        return outs

    def _arguments(self, around: int) -> Sequence[str]:
        """The names of the array arguments in the function, after ``count`` unnamed ones."""
        tree = jax.tree.unflatten(self.tree, list(range(self.tree.num_leaves)))
        names = [""] * around
        for (where, _), static in zip(jax.tree_util.tree_flatten_with_path(tree)[0], self.static, strict=True):
            if static is None:
                names.append(_argument(self.f, where))
        return names


def _argument(f: Callable[..., Any], where: Any) -> str:
    """A leaf of ``(args, kwargs)`` as the function calls it: ``params['w']``; empty if that is not known."""
    (kind, first), rest = (w.idx if hasattr(w, "idx") else w.key for w in where[:2]), where[2:]
    if kind == 1:
        return f"{first}{jax.tree_util.keystr(rest)}"
    try:
        parameters = list(inspect.signature(f).parameters.values())
    except (TypeError, ValueError):
        return ""
    if first >= len(parameters) or parameters[first].kind is inspect.Parameter.VAR_POSITIONAL:
        return ""
    return f"{parameters[first].name}{jax.tree_util.keystr(rest)}"


def _is_traced(x: Any) -> bool:
    return isinstance(x, (jax.Array, jax.core.Tracer))


@jax.tree_util.register_static
class _Untraced(Static):
    """A result that is no array, which JAX does not see."""


def _is_untraced(x: Any) -> bool:
    return isinstance(x, _Untraced)


def _is_array(x: Any) -> bool:
    return is_typed(x) or isinstance(x, (jax.Array, jax.core.Tracer, np.ndarray, np.generic))


@_with_register
def lift(
    f: Callable[..., Any],
    *,
    at: Mapping[str, Any] | None = None,
    pending: Literal["keep", "finish"] = "keep",
) -> Callable[..., Any]:
    """A plain JAX function as one of typed values.

    The typed leaves of its arguments are traced as plain arrays of their global shape; the program is evaluated with
    the typed ops, one for each primitive. So what is written in `jax.numpy`, Flax, Equinox or optax is typed by the
    rules of this library, and what it communicates is known.

    The program sees the mesh of its arguments (`jax.sharding.get_abstract_mesh`), and `jax.typeof` of an argument says
    how that lies. Annotations are reshards, however they are spelled: `jax.lax.with_sharding_constraint`,
    `jax.reshard`, ``out_sharding=``, the shardings of `jax.jit`, of `jax.sharding.auto_axes` and of `jax.device_put`.

    Scopes that the program opens itself (`no_comm`, `policy`, `jax.enable_x64`, ...) hold for what it computes in them.

    Each call traces ``f``, as each call of a plain function runs it, and sees what ``f`` closes over as it is by then:
    typed values and values of a trace around it too. A call with typed arrays alone runs as one compiled program, which
    is kept; with plain arrays among them the operations run one by one, and see their values.

    Args:
        f: A function of trees of arrays. What is no array in its arguments, it gets as it is.
        at: Reshards from outside, for lines that cannot be edited: for each place of the program, the type of its
            results, as `reshard` takes it (``"[...]"`` finishes what is pending). A place is a path of name scopes, as
            Flax linen, Haiku and `jax.named_scope` write them (``"encoder/Dense_0"``, or any part of one; ``*`` stands
            for any letters), a function (``"MultiHeadAttention.__call__"``), or a line (``"linear.py:422"``). Its
            results are the values that it makes and the rest of the forward pass uses, each time that the program comes
            through it; those whose shape the type does not fit stay.
        pending: ``"keep"`` leaves sums pending until the program says otherwise. ``"finish"`` finishes each where it
            arises: an all-reduce behind each product or sum over a sharded dim, to the replicated state of the policy.

    Returns:
        A function of the same arguments, typed or plain. Results that depend on no typed value are plain.

    Raises:
        ShardingTypeError: (when called) an operation does not type, with the line of ``f``, the function of JAX that
            was called there, and fixes; JAX refuses a line, with the types of its operands; a primitive has no row; a
            place of ``at`` is not in the program, or its type fits none of its results.

    Communicates: what each operation does: nothing, unless the program says so, ``at`` or ``pending`` does, or
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
    places, finish = _checked(at, pending)
    return _lifted(f, places, finish=finish, completes=not places and not finish)


def as_it_is(f: Callable[..., Any]) -> Callable[..., Any]:
    """`lift` of a function about which all is decided: its ops choose for themselves."""
    return _lifted(f, {}, finish=False, completes=False)


def has_backward(jaxpr: Any) -> bool:
    """Whether a program computes gradients itself."""
    stacks = (eqn.source_info.name_stack.stack for eqn in jaxpr.eqns)
    return any(getattr(each, "name", "") == "transpose" for stack in stacks for each in stack)


#: Why a program is not decided that has the form of one that is.
_OTHER_NUMBERS: Final = "with these numbers in it the decisions about programs of its form do not type"
#: That what a function differentiates is decided, and not the function.
_PARTS: Final = "it takes gradients itself"


class Completed:
    """A function of typed values in whose program the solver decides what `implicit_comm` inserts, where it can."""

    def __init__(self, f: Callable[..., Any]) -> None:
        functools.update_wrapper(self, f)
        self.f = f
        self._programs: Bounded[_Program] = Bounded(PROGRAMS)
        self._not: Bounded[str] = Bounded(PROGRAMS)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The results of the function."""
        given = _given(args, kwargs)
        key = (given.tree, given.static)
        if is_tracing_plain() or not any(map(is_typed, given.arrays)):
            return self.f(*args, **kwargs)
        program = self._programs.get(key)
        if program is None:
            specs = AtSpecs("f", {}, finish=False)
            program = _Program(self.f, given.tree, given.static, specs, completes=True, typed=True)
            self._programs.put(key, program)
        known = (*key, current_settings(), tuple([type_of(x) or jax.typeof(x) for x in given.arrays]))
        why = self._not.get(known)
        if why is None:
            try:
                traced = program.traced(given)
                # Gradients of typed values have the types that the law says: what is differentiated is decided alone.
                if has_backward(traced.jaxpr):
                    why = _PARTS
                else:
                    following = program.following(traced, given)
                    why = _whole[0].undecided(traced, following, given.arrays)
                    if not why:
                        return program.run(traced, following, given)
            except Exception as error:  # it wants values or types, which a plain trace has not
                cause = error.__cause__ or error
                said = cause.what if isinstance(cause, ShardingTypeError) else str(cause).partition("\n")[0]
                why = f"it wants values or types while Python runs it ({type(cause).__name__}: {short(said, 160)})"
            self._not.put(known, why)
        if why is not _PARTS:
            note_undecided(self.f, why)
        return self.f(*args, **kwargs)


def _given(args: Any, kwargs: Any) -> _Given:
    leaves, tree = jax.tree.flatten((args, kwargs))
    static = tuple(None if _is_array(x) else Static(x) for x in leaves)
    return _Given([x for x, s in zip(leaves, static, strict=True) if s is None], tree, static)


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
        given = _given(args, kwargs)
        key = (given.tree, given.static)
        program = programs.get(key)
        if program is None:
            specs = AtSpecs(name, places, finish=finish)
            program = programs.put(key, _Program(f, *key, specs, completes=completes))
        try:
            # Of this call: what is equal need not be the same, and a program is traced in each call.
            return program(given)
        except ShardingTypeError as error:
            raise error.with_traceback(None) from error.__cause__
        except ARGUMENT_ERRORS as error:
            refuse(error, f, args, kwargs, name_of(f) or name)
            raise

    return lifted


def _checked(at: Any, pending: Any) -> tuple[dict[str, Any], bool]:
    if at is not None and not (isinstance(at, Mapping) and all(isinstance(place, str) and place for place in at)):
        raise ShardingTypeError(
            "`at` of `lift` is no mapping from places to types", hints=['at={"MultiHeadAttention.__call__": "[...]"}']
        )
    if pending not in ("keep", "finish"):
        raise ShardingTypeError(f"`pending` of `lift` is {pending!r}", hints=['pending="keep"', 'pending="finish"'])
    return dict(at or {}), pending == "finish"


connect_lift(lift)

__all__ = ["lift"]
