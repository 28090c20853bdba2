"""`cond` and `switch` on typed values: JAX's, with free joins inserted and typed predicates.

`jax.lax.cond` and `switch` take typed values as they are. These versions also cast the results of branches to a common
type where that is free, and take a predicate that varies over devices.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
from jax import lax

from shtypes._compat.jaxprs import captured, jaxpr_of
from shtypes.context.signature_errors import check_function
from shtypes.context.user_line import public, wrap_jax_errors
from shtypes.control.joins import (
    Leaf,
    TypesDiffer,
    can_reshard,
    cast_leaves,
    fits_for_free,
    leaves_of,
    local_value,
    restart_loop,
    varying_type,
)
from shtypes.control.loops import scalar_of
from shtypes.core.jax_context import suggest_when_read
from shtypes.dispatch.apply import as_operands, is_typed, located
from shtypes.errors import ShardingTypeError
from shtypes.ops.elementwise import less, logical_and, logical_not, not_equal
from shtypes.ops.functions import reshape, where
from shtypes.ops.reinterpret import stop_gradient
from shtypes.resharding import Cost, backward, cost, plan
from shtypes.resharding.join import join
from shtypes.rules import Typing
from shtypes.scopes.check_comm import check_comm
from shtypes.scopes.comm import no_comm
from shtypes.scopes.scope_rules import NoComm, allows_implicit, minimizing
from shtypes.traced.program import leaf_paths
from shtypes.types import ShType, State

T = TypeVar("T")


@public
def cond(pred: Any, true_fun: Callable[..., T], false_fun: Callable[..., T], *operands: Any) -> T:
    """Applies one of two functions to the operands, as `jax.lax.cond`; the predicate may be typed.

    Where the predicate varies, as it does inside `shtypes.vmap` over a sharded dim, each device takes its branch. If
    the functions communicate, forward or backward, both run on all devices, and each selects the results of its branch.

    Args:
        pred: A bool scalar, plain or typed; reduced, invariant or varying.
        true_fun: The branch for True.
        false_fun: The branch for False. Results whose types differ by free casts, and constants, are cast to one type.
        *operands: The arguments of both.

    Raises:
        ShardingTypeError: the predicate is unreduced; the results have no type in common.

    Communicates: what the taken branch does; what both do, where the predicate varies.
    """
    for function in (true_fun, false_fun):
        check_function("cond", function, "a branch")
    if _varies(pred):
        which = scalar_of(pred, "the predicate of `cond`", varying=True)
        holds = which if jax.typeof(which).dtype_name == "bool" else not_equal(which, 0)
        return _per_device("cond", holds, [holds], [true_fun, false_fun], operands)
    return _run_branch("cond", scalar_of(pred, "the predicate of `cond`"), [true_fun, false_fun], operands)


@public
def switch(index: Any, branches: Sequence[Callable[..., T]], *operands: Any) -> T:
    """Applies one of several functions to the operands, as `jax.lax.switch`; see `cond`.

    Args:
        index: An integer scalar, plain or typed; clamped to the range.
        branches: The functions.
        *operands: Their arguments.
    """
    functions = list(branches)
    for function in functions:
        check_function("switch", function, "a branch")
    if not functions:
        raise ShardingTypeError("`switch` needs at least one branch")
    if _varies(index):
        which = scalar_of(index, "the index of `switch`", "integer", varying=True)
        holds = [less(which, i) for i in range(1, len(functions))]
        return _per_device("switch", which, holds, functions, operands)
    return _run_branch("switch", scalar_of(index, "the index of `switch`", "integer"), functions, operands)


def _run_branch(name: str, which: Any, branches: Sequence[Callable[..., T]], operands: tuple[Any, ...]) -> T:
    """Runs the branch that a plain predicate or index chooses."""

    def run(branches: list[Any]) -> T:
        with wrap_jax_errors(name):
            results: T = (
                lax.cond(which, *branches, *operands) if name == "cond" else lax.switch(which, branches, *operands)
            )
        return results

    return _joined_branches(name, branches, run)


# varying predicates


def _varies(pred: Any) -> bool:
    return is_typed(pred) and State.VARYING in jax.typeof(pred).states


def _per_device(
    name: str, which: Any, holds: Sequence[Any], branches: Sequence[Callable[..., T]], operands: tuple[Any, ...]
) -> T:
    """Runs each device's branch on it; or, if they communicate, all branches on all devices, and selects."""
    try:
        with no_comm():
            return _run_own_branch(name, which, branches, operands)
    except ShardingTypeError as error:
        if not isinstance(error.scope, NoComm):
            raise
    return _select_branches(name, holds, branches, operands)


def _run_own_branch(name: str, which: Any, branches: Sequence[Callable[..., T]], operands: tuple[Any, ...]) -> T:
    """Runs each device's branch on it. All results vary."""
    t = jax.typeof(which)

    def varying(branch: Callable[..., T]) -> Callable[..., T]:
        def run(*operands: Any) -> Any:
            out = branch(*operands)
            return cast_leaves(out, [varying_type(x, t) for x in jax.tree.leaves(out)])

        return run

    return _run_branch(name, local_value(which), list(map(varying, branches)), operands)


def _select_branches(
    name: str, holds: Sequence[Any], branches: Sequence[Callable[..., T]], operands: tuple[Any, ...]
) -> T:
    """Runs all branches, and selects each device's results: those of the first whose predicate holds."""
    results, rest = list[T](), None
    for i, branch in enumerate(branches):
        is_taken = holds[i] if i < len(holds) else None
        if rest is not None:
            is_taken = rest if is_taken is None else logical_and(rest, is_taken)
        results.append(_without_untaken_gradients(branch, is_taken, operands))
        if i < len(holds):
            rest = logical_not(holds[i]) if rest is None else logical_and(rest, logical_not(holds[i]))
    _check_alike(name, [jax.tree.structure(result) for result in results])
    chosen = results[-1]
    for is_taken, result in zip(reversed(holds), reversed(results[:-1]), strict=True):
        chosen = jax.tree.map(lambda x, y, is_taken=is_taken: where(is_taken, x, y), result, chosen)
    return chosen


def _without_untaken_gradients(function: Callable[..., Any], is_taken: Any, operands: tuple[Any, ...]) -> Any:
    """Applies a branch without gradients where it is not taken: its derivative may be NaN there."""
    if is_taken is None:
        return function(*operands)
    structures: list[Any] = []

    def flat(*args: Any) -> list[Any]:
        leaves, structure = jax.tree.flatten(function(*args))
        structures.append(structure)
        return leaves

    body = jax.make_jaxpr(flat)(*operands)

    def stopped(x: Any) -> Any:
        if not is_typed(x) or not jax.typeof(x).differentiable:
            return x
        t, mask = jax.typeof(x), jax.typeof(is_taken)
        if any(t.state(a) is not State.VARYING for a in mask.axes(State.VARYING)):
            return x  # it would have another type
        return where(is_taken, x, stop_gradient(x))

    outs = jax.core.eval_jaxpr(
        jaxpr_of(body), [stopped(x) for x in captured(body)], *map(stopped, jax.tree.leaves(operands))
    )
    return jax.tree.unflatten(structures[0], outs)


def selected(which: Any, cases: Sequence[Any]) -> Any:
    """Selects among ``cases`` by ``which`` along the leading dims: a branch under `vmap` of a mapped predicate."""
    (which, *cases), _ = as_operands([which, *cases])
    t, rank = jax.typeof(which), jax.typeof(cases[0]).ndim
    which = reshape(which, (*t.shape, *(1,) * (rank - t.ndim)))
    if t.dtype_name == "bool":
        return where(which, cases[1], cases[0])
    chosen = cases[-1]
    for i in reversed(range(len(cases) - 1)):
        chosen = where(less(which, i + 1), cases[i], chosen)
    return chosen


# joins


def _joined_branches(name: str, branches: Sequence[Callable[..., T]], run: Callable[[list[Any]], T]) -> T:
    """Runs a branch op, and runs it again with results cast to the joined types if those differ."""
    joined_types: list[ShType | None] | None = None

    def attempt() -> T:
        seen: dict[int, tuple[Any, list[Leaf]]] = {}

        def recorded(position: int) -> Callable[..., Any]:
            def branch(*operands: Any) -> Any:
                out = branches[position](*operands)
                if joined_types is not None:
                    return cast_leaves(out, joined_types)
                seen[position] = (jax.tree.structure(out), leaves_of(out))
                if len(seen) == len(branches):
                    joined = _join_results(name, leaf_paths(out), list(seen.values()))
                    if joined is not None:
                        raise TypesDiffer(joined)
                return out

            return branch

        return run([recorded(i) for i in range(len(branches))])

    try:
        return attempt()
    except TypesDiffer as differ:
        if differ.loop is not None:
            raise
        joined_types = differ.types
    return attempt()


def _join_results(
    name: str, paths: list[str], trees_and_leaves: list[tuple[Any, list[Leaf]]]
) -> list[ShType | None] | None:
    """The joined types of the branches' results; None if they are equal."""
    trees, results = zip(*trees_and_leaves, strict=True)
    _check_alike(name, trees)
    if all([r.type for r in each] == [r.type for r in results[0]] for each in results):
        return None
    return [_join_leaf(name, path, leaves) for path, leaves in zip(paths, zip(*results, strict=True), strict=True)]


def _join_leaf(name: str, path: str, leaves: Sequence[Leaf]) -> ShType | None:
    """The joined type of one result of all branches."""
    typed = tuple(leaf.type for leaf in leaves if leaf.type is not None)
    if not typed:
        return None
    if len(typed) == len(leaves):
        with contextlib.suppress(ShardingTypeError):
            return join(typed)
    goals = list(dict.fromkeys(typed))
    for goal in goals:
        if all(leaf.type == goal or fits_for_free(leaf, goal) for leaf in leaves):
            return goal
    for goal in goals:
        for leaf in leaves:
            if leaf.type != goal:
                restart_loop(leaf, goal)
    if len(typed) < len(leaves):
        raise ShardingTypeError(
            f"one branch of `{name}` returns a plain array{path}, another {typed[0]}",
            hints=["sh.from_jax(x) or x.to_jax() in one of them"],
        )
    return _join_typed(name, path, typed)


def _price(types: Sequence[ShType], goal: ShType) -> tuple[Cost, int]:
    """The cost of resharding values of all types to one, and the number of collectives."""
    plans = [plan(t, goal) for t in types]
    reverse = [backward(p) for p in plans]
    sent = cost(sum(p.bytes for p in plans), sum(p.bytes for p in reverse), minimizing())
    return sent, sum(p.launches for p in (*plans, *reverse))


def _check_alike(name: str, trees: Sequence[Any]) -> None:
    other = next((tree for tree in trees if tree != trees[0]), None)
    if other is not None:
        raise ShardingTypeError(
            f"the branches of `{name}` return different structures", why=f"one returns {trees[0]}, another {other}"
        )


def _join_typed(name: str, path: str, types: tuple[ShType, ...]) -> ShType:
    """The joined type of one result of all branches; the error has reshards that give one."""

    def differing(types: Sequence[ShType]) -> tuple[str, ...]:
        mesh = types[0].mesh
        same = [t for t in types if t.mesh is mesh]
        return tuple(a for a in mesh.axis_names if len({(t.state(a), t.dim_of(a)) for t in same}) > 1)

    def rule(types: tuple[ShType, ...]) -> Typing:
        try:
            return Typing(types, (join(types),))
        except ShardingTypeError as error:
            error.axes = differing(types)
            raise

    try:
        return join(types, f"the results{path} of the branches of `{name}`")
    except ShardingTypeError as error:
        if allows_implicit() and all(can_reshard(t, types[0]) for t in types):
            cheapest = min(dict.fromkeys(types), key=lambda goal: _price(types, goal))
            for t in types:
                check_comm(name, t, cheapest, name="result", inserted=True)
            return cheapest
        error.fixes, error.result = (), path
        if differing(types):
            suggest_when_read(error, rule, types, [f"result_{i}" for i in range(len(types))])
        raise located(error, name, types).with_traceback(None) from None
