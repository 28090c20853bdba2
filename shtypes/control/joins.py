"""Joined types in control flow: of loop carries and their initial values, and of branches' results."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shtypes._compat.tracing import arguments_of
from shtypes.context.signature_errors import kind_of
from shtypes.context.user_line import wrap_jax_errors
from shtypes.core.conversion import from_jax, to_jax
from shtypes.core.local import local
from shtypes.core.reshard import move
from shtypes.core.shard_fn import ShardFn
from shtypes.dispatch.apply import constant, constant_of, is_number, is_typed, located
from shtypes.errors import ShardingTypeError
from shtypes.resharding.join import join
from shtypes.rules.messages import axes_code
from shtypes.scopes.check_comm import check_comm
from shtypes.scopes.scope_rules import allows_implicit, rules_in_force, speculative_tracing
from shtypes.traced.program import leaf_paths
from shtypes.types import REPLICATED, ShType, State, dtypes


class TypesDiffer(Exception):  # noqa: N818  # a signal, not an error
    """Ends the trace of a body whose types differ; ``types`` are the joined ones, leaf by leaf, None for plain.

    ``loop`` is the enclosing loop to restart; None for the one that is being traced.
    """

    def __init__(self, types: list[ShType | None], loop: OpenLoop | None = None) -> None:
        self.types, self.loop = types, loop


class OpenLoop:
    """A loop whose body is being traced: the leaves of its carry in the body, and of its initial carry."""

    def __init__(self, carry: list[Any], starts: list[Any]) -> None:
        self.carry, self.starts = carry, starts


class _Thread(threading.local):
    """The loops whose bodies this thread is tracing, outermost first."""

    def __init__(self) -> None:
        self.loops: list[OpenLoop] = []


_thread: Final = _Thread()


@contextlib.contextmanager
def tracing_body(loop: OpenLoop) -> Iterator[None]:
    """Context manager around the trace of a loop's body."""
    _thread.loops.append(loop)
    try:
        yield
    finally:
        _thread.loops.pop()
        loop.carry = []  # their trace has ended


class Leaf(NamedTuple):
    """The facts about a value that joins need, without the value, whose trace may have ended.

    Attributes:
        constant: Whether it has no gradient, so that its casts from a replicated state are free.
        carries: The carry leaves of enclosing loops that it depends on; empty if it depends on anything else.
        shape: The shape of a plain value; None if no typed value could have it.
        dtype: The dtype of a plain value; None if weak.
    """

    type: ShType | None
    constant: bool
    carries: Sequence[Any]
    shape: tuple[int, ...] | None = None
    dtype: Any = None


def leaves_of(tree: Any) -> list[Leaf]:
    """`Leaf` for each leaf of a pytree."""
    return [_leaf(x) for x in jax.tree.leaves(tree)]


def _leaf(x: Any) -> Leaf:
    sources = arguments_of(x) or []
    carried = {id(leaf) for loop in _thread.loops for leaf in loop.carry}
    leaf = Leaf(
        x.type if is_typed(x) else None, is_constant(x), sources if carried.issuperset(map(id, sources)) else ()
    )
    if leaf.type is not None or not (hasattr(x, "dtype") or is_number(x)) or _is_key(x):
        return leaf
    weak = is_number(x) or getattr(x, "weak_type", False)
    return leaf._replace(shape=jnp.shape(x), dtype=None if weak else np.dtype(x.dtype))


def restart_loop(x: Leaf, t: ShType) -> None:
    """Restarts an enclosing loop with a carry that gives ``x``, which depends only on it, the type ``t`` for free.

    Those carry leaves start in ``t`` where they can, or else vary where it does.
    """
    for loop in reversed(_thread.loops):
        places = {id(leaf): i for i, leaf in enumerate(loop.carry)}
        if not x.carries or any(id(v) not in places for v in x.carries):
            continue
        types = leaf_types(loop.carry)
        for i in (places[id(v)] for v in x.carries):
            first = types[i]
            varying = None if first is None else first.with_axes(t.axes(State.VARYING), State.VARYING)
            for goal in (t, varying):
                if goal is not None and goal != types[i] and fits_for_free(_leaf(loop.starts[i]), goal):
                    types[i] = goal
                    break
        if types != leaf_types(loop.carry):
            raise TypesDiffer(types, loop)


def leaf_types(tree: Any) -> list[ShType | None]:
    """The sharding types of the leaves; None for plain ones."""
    return [jax.typeof(leaf) if is_typed(leaf) else None for leaf in jax.tree.leaves(tree)]


def types_differ(a: ShType | None, b: ShType | None) -> bool:
    """Whether two leaves' types differ; None is plain."""
    return a != b and (a is not None or b is not None)


def can_reshard(src: ShType, dst: ShType) -> bool:
    """Whether `implicit_comm` may reshard between two types."""
    same = src.mesh is dst.mesh and src.shape == dst.shape and src.dtype_name == dst.dtype_name
    return same and State.VARYING not in (*src.states, *dst.states)


def is_constant(x: Any) -> bool:
    """Whether a value has no gradient, so that its casts from a replicated state are free."""
    return arguments_of(x) == [] or (is_typed(x) and not x.type.differentiable)


def fits_for_free(x: Leaf, t: ShType) -> bool:
    """Whether a constant, replicated or plain, can be cast to a type for free."""
    if not x.constant:
        return False
    src = x.type
    if src is None:
        return x.shape == t.shape and x.dtype in (None, t.dtype)
    if src.mesh is not t.mesh or src.shape != t.shape or src.dtype_name != t.dtype_name:
        return False
    extends = all(d.axes == e.axes[: len(d.axes)] for d, e in zip(src.dims, t.dims, strict=True))
    return extends and all(s in REPLICATED or s is o for s, o in zip(src.states, t.states, strict=True))


def _is_key(x: Any) -> bool:
    return hasattr(x, "dtype") and bool(jnp.issubdtype(x.dtype, jax.dtypes.extended))


def cast_leaves(tree: Any, types: Sequence[ShType | None]) -> Any:
    """Casts the leaves to these types; None leaves one unchanged."""
    leaves, structure = jax.tree.flatten(tree)
    return jax.tree.unflatten(structure, [x if t is None else _cast(x, t) for x, t in zip(leaves, types, strict=True)])


def _cast(x: Any, t: ShType) -> Any:
    if not is_typed(x):
        x = jnp.asarray(x, t.dtype)
        if not isinstance(x, jax.core.Tracer):
            x = constant(x, t.mesh)
        else:
            x = constant_of(x, t.mesh) if is_constant(x) else from_jax(x, mesh=t.mesh)
    return x if x.type == t else move(x, t, inserted=True, constant=is_constant(x))


# loops


def joined_loop(
    name: str, body: Callable[[Any, Any], tuple[Any, Any]], init: Any, run: Callable[[Callable[..., Any], Any], Any]
) -> Any:
    """Runs a loop, and reruns it with its carry cast to the joined type if the body returns another."""

    def checked(carry: Any, x: Any) -> tuple[Any, Any]:
        loop = OpenLoop(jax.tree.leaves(carry), jax.tree.leaves(init))
        opened.append(loop)
        with tracing_body(loop):
            result: Any = body(carry, x)
        if not isinstance(result, tuple) or len(result) != 2:
            kind = f"a tuple of {len(result)}" if isinstance(result, tuple) else kind_of(result)
            raise ShardingTypeError(f"the body of `{name}` returns (carry, y), not {kind}")
        out, y = result
        entered: Any = jax.tree.structure(carry)
        if entered != jax.tree.structure(out):
            raise ShardingTypeError(
                f"the carry of `{name}` comes back as another structure",
                why=f"it starts as {entered} and comes back as {jax.tree.structure(out)}",
            )
        entry_types, exit_types = leaf_types(carry), leaf_types(out)
        if any(types_differ(a, b) for a, b in zip(entry_types, exit_types, strict=True)):
            ends = zip(leaf_paths(carry), entry_types, jax.tree.leaves(out), loop.starts, strict=True)
            joined = [_join_carry(name, *end) for end in ends]
            if joined != entry_types:
                raise TypesDiffer(joined)
            out = cast_leaves(out, entry_types)
        return out, y

    opened: list[OpenLoop] = []  # one for each trace of the body

    def attempt() -> Any:
        with wrap_jax_errors(name):
            return run(checked, init)

    while True:  # each round moves the carry up a lattice of four states
        try:
            try:
                return attempt()
            except ShardingTypeError:
                if not rules_in_force():
                    raise
                # the error may come from the carry's first type, not the joined one
                with speculative_tracing(), contextlib.suppress(ShardingTypeError):
                    jax.make_jaxpr(lambda: (attempt(), ())[1])()
                raise
        except TypesDiffer as differ:
            if differ.loop is not None and not any(differ.loop is loop for loop in opened):
                raise
            init = cast_leaves(init, differ.types)


def _join_carry(name: str, path: str, entered: ShType | None, out: Any, start: Any) -> ShType | None:
    """The joined type of a carry leaf: ``entered`` at the start of a step, ``out`` at its end, ``start`` initially."""
    (left,) = leaf_types(out)
    if not types_differ(entered, left):
        return entered
    what = f"the carry{path} of `{name}`"
    if left is None and entered is not None and fits_for_free(_leaf(out), entered):
        return entered
    if entered is None and left is not None and fits_for_free(_leaf(start), left):
        return left
    if entered is None or left is None:
        typed = entered or left
        if left is not None:
            restart_loop(_leaf(start), left)
        raise ShardingTypeError(
            f"{what} is typed on one side only: it starts as {entered or 'a plain array'} and comes back as "
            f"{left or 'a plain array'}",
            hints=[f'start from sh.zeros("{typed}") or sh.from_jax(x)', "end with x.to_jax()"],
        )
    try:
        return join([entered, left])
    except ShardingTypeError:
        if fits_for_free(_leaf(start), left):
            return left
        if fits_for_free(_leaf(out), entered):
            return entered
        restart_loop(_leaf(start), left)
        if allows_implicit() and can_reshard(left, entered):
            check_comm(name, left, entered, name="carry", inserted=True)
            return entered  # resharded at the end of each step
        raise located(
            ShardingTypeError(
                f"{what} starts as {entered} and comes back as {left}",
                why=f"the carry has one type at each step, and {_why_not_cast(entered, left)}",
                hints=_carry_hints(entered, left),
            ),
            name,
            [entered, left],
        ) from None


def _why_not_cast(entered: ShType, left: ShType) -> str:
    if entered.shape != left.shape or entered.dtype_name != left.dtype_name:
        return f"nothing that is inserted changes a {'shape' if entered.shape != left.shape else 'dtype'}"
    return "no cast between these two is free in both directions"


def _carry_hints(entered: ShType, left: ShType) -> list[str]:
    if entered.shape != left.shape:
        return []
    if entered.dtype_name != left.dtype_name:
        before, after = f'init.astype("{left.dtype_name}")', f'carry.astype("{entered.dtype_name}")'
        return [f"{before} before the loop", f"{after} at the end of the body"]
    varying = [a for a in left.axes(State.VARYING) if entered.state(a) is not State.VARYING]
    if varying:
        return [f"sh.lax.pvary(init, {axes_code(varying)}) before the loop"]
    return [f'sh.reshard(init, "{left}") before the loop', f'sh.reshard(carry, "{entered}") at the end of the body']


# varying predicates: devices take different branches, where none waits for another


@dataclass(frozen=True)
class _LocalValue(ShardFn):
    """The value that a device holds, for its control flow."""

    compared = False

    def __str__(self) -> str:
        return "own"

    def __call__(self, x: Any) -> Any:
        return x


def local_value(x: Any) -> Any:
    """A varying scalar as a plain one that each device branches on; whatever depends on it varies too."""
    t: ShType = jax.typeof(x)
    return to_jax(local(_LocalValue(), x, out=t.with_axes(t.axes(State.VARYING), State.INVARIANT)))


def varying_type(x: Any, as_: ShType) -> ShType:
    """The type of a value, typed or plain, made varying along the axes along which another type varies."""
    axes = as_.axes(State.VARYING)
    if is_typed(x):
        t: ShType = jax.typeof(x)
        return t.with_axes([a for a in axes if t.state(a) in REPLICATED], State.VARYING)
    states = {a: State.VARYING if a in axes else State.REDUCED for a in as_.mesh.axis_names}
    return ShType(as_.mesh, dtypes.from_numpy(jnp.result_type(x)), list(jnp.shape(x)), states)
