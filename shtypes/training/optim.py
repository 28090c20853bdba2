"""Optimizers on typed pytrees: `optax`'s gradient transformations, with state typed like the parameters."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar, get_args

import jax
import numpy as np

from shtypes.context.user_line import placed, public
from shtypes.core.array import Array
from shtypes.core.combined_collectives import move_together, sent_together
from shtypes.dispatch.apply import finished_type, is_typed
from shtypes.errors import Fix, ShardingTypeError, quoted
from shtypes.evaluation.source_fixes import IMPLICIT_HINT
from shtypes.lifting.lift import lift as lifted
from shtypes.scopes.comm import finishing_scalars
from shtypes.scopes.scope_rules import has_comm_scope
from shtypes.training import states
from shtypes.types import ShType, State

Pending = Literal["refuse", "finish"]
Tree = Any


class Transformation(Protocol):
    """An `optax` gradient transformation: a named tuple of two functions."""

    @property
    def init(self) -> Callable[..., Any]:
        """Maps the parameters to the first state."""

    @property
    def update(self) -> Callable[..., Any]:
        """Maps gradients, state and parameters to updates and the next state."""

    def _replace(self, **changes: Any) -> Any: ...


T = TypeVar("T", bound=Transformation)


@public
def lift(tx: T, *, pending: Pending = "refuse", types: states.Layout = None, at: Mapping[str, Any] | None = None) -> T:
    """A gradient transformation, such as `optax.adamw(1e-3)`, of typed pytrees.

    It computes on global arrays, in any layout of the parameters: norms are over all parameters, means over global
    arrays. The result has the class of ``tx``, and composes with others of typed pytrees, as in `optax.chain`. Lift the
    result of optax's wrappers, such as `optax.MultiSteps` or `optax.masked`, not their argument. On pytrees without a
    typed value it is ``tx``.

    ``init(params)`` returns a typed state. An array per parameter has the parameter's type, with the array's dtype;
    counts, other numbers and keys are replicated over the mesh, as checkpoints and compiled steps with donated state
    need. Another array is sharded like the parameter whose path is in its path, in the dims that both have, such as a
    history of it or a factored moment; else it is replicated. ``update(grads, state, params)`` returns updates of the
    parameters' types, and a state of the same types as before: a compiled step is traced once, and a loop carries it.
    Untyped parts of the state, such as a hyperparameter that was set or what a first step adds, are typed as by
    ``init``.

    Args:
        tx: A named tuple with ``init`` and ``update``. For an `optax.MultiSteps`, its `gradient_transformation()`.
        pending: What ``update`` does with gradients that are pending sums, as those of replicated parameters are after
            a sharded batch: ``"refuse"`` them, or ``"finish"`` them first, in one collective for each set of axes and
            dtype, through a buffer of their size.
        types: The types in which the transformation works and its state lives, if not the parameters': a pytree
            of types or strings with the structure of the parameters, or a function from a parameter's type to one.
            Where they are sharded over an axis over which parameters are replicated, gradients are reduce-scattered,
            and updates all-gathered: each device keeps and updates its part of the state (ZeRO). Needs ``params`` in
            ``update``.
        at: Reshards at lines of the transformation, as in `shtypes.lift`; the fixes of an error name them.

    Returns:
        A transformation of the class of ``tx``.

    Raises:
        ShardingTypeError: ``tx`` is not a transformation; (when called) gradients are pending and refused, with the
            price of finishing them; a step of the transformation does not type, such as a factored moment of a sharded
            matrix, for which `implicit_comm` around the call allows communication; a part of the state has another
            shape or a wider dtype than before; types do not fit the parameters.

    Communicates: an all-reduce of a scalar for each norm of sharded arrays, one for a global norm, and for each other
    reduction to one element, such as whether all are finite; and what ``pending`` and ``types`` need.
    Transpose: that of each operation.

    Examples:
        >>> import optax
        >>> import shtypes as sh
        >>> optimizer = sh.optim.lift(optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3)))
        >>> with sh.use_mesh(sh.make_mesh({"dp": 2})):
        ...     params = {"w": sh.ones("f32[4@dp, 8]")}
        ...     state = optimizer.init(params)
        ...     updates, state = optimizer.update(params, state, params)
        ...     params = sh.optim.apply_updates(params, updates)
        >>> sh.tree.types(state[1][0].mu)
        {'w': f32[4@dp,8]}
    """
    if pending not in get_args(Pending):
        raise ShardingTypeError(
            f"`optim.lift` refuses pending gradients or finishes them, not {pending!r:.60}",
            hints=['pending="refuse"', 'pending="finish"'],
        )
    _check(tx)
    of_params, of_grads = lifted(tx.init), lifted(tx.update, at=at)

    def init(params: Tree) -> Tree:
        if not _any_typed(params):
            return tx.init(params)
        weights = states.in_types(params, states.layout_of(types, params))
        with finishing_scalars():
            return states.first_state(of_params(weights), weights)

    def update(updates: Tree, state: Tree, params: Tree = None, **extra: Any) -> tuple[Tree, Tree]:
        if not _any_typed((updates, state, params)):
            return tx.update(updates, state, params, **extra)  # type: ignore[no-any-return]
        if types is not None and params is None:
            raise ShardingTypeError(
                "`update` needs the parameters, whose types its updates have",
                why="the transformation works in `types` of its own",
                hints=["optimizer.update(grads, state, params)"],
            )
        layout = None if types is None else states.layout_of(types, params)
        weights = params if layout is None else states.in_types(params, layout)
        shapes = jax.tree.map(np.shape, updates)
        like_grads = {  # the gradients of a line search
            name: x
            for name, x in extra.items()
            if states.same_structure(x, updates) and jax.tree.map(np.shape, x) == shapes
        }
        grads, like_grads = _finish_sums((updates, like_grads), weights, pending, everywhere=layout is not None)
        extra |= like_grads
        typed_tree = next(tree for tree in (weights, grads, state) if _any_typed(tree))
        state = states.typed_state(state, typed_tree)
        with finishing_scalars():
            steps, new = of_grads(grads, state, weights, **extra)
            new = states.like_state(new, state, typed_tree)
        steps = states.like_values(steps, grads if params is None else weights)
        if layout is not None:
            steps = states.in_types(steps, states.layout_of(None, params))
        return steps, new

    transformation: T = tx._replace(init=_with_user_line(init, tx.init), update=_with_user_line(update, tx.update))
    return transformation


@public
def apply_updates(params: Tree, updates: Tree) -> Tree:
    """Adds updates to parameters, in the parameters' types and dtypes: `optax.apply_updates` of typed pytrees.

    Args:
        params: The parameters; may contain None.
        updates: The result of ``update``; None leaves its parameter unchanged.

    Returns:
        The new parameters.

    Raises:
        ShardingTypeError: an update does not have its parameter's type, nor for free, such as a pending sum.

    Communicates: nothing.
    """

    def added(p: Any, u: Any) -> Any:
        return p if p is None or u is None else (p + states.like_value(u, p)).astype(p.dtype)

    return jax.tree.map(added, params, updates, is_leaf=lambda x: x is None)


def _with_user_line(fn: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps ``fn`` so that its errors name the user's line; those of the plain program already do."""

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return fn(*args, **kwargs)
        except ShardingTypeError as error:
            raise placed(_with_fixes_of_lift(error, fn.__name__, plain), fn.__name__) from None

    return call


def _with_fixes_of_lift(error: ShardingTypeError, called: str, plain: Callable[..., Any]) -> ShardingTypeError:
    """Replaces an error's fixes for a lifted function with fixes for the transformation, in place."""
    lifts = f"sh.lift({getattr(plain, '__name__', 'f')}, "
    limited = has_comm_scope()

    def complete() -> None:
        hints = tuple(hint for hint in error.hints if hint != IMPLICIT_HINT)
        moves = hints != error.hints or any(lifts in f.code or f.code.startswith("sh.reshard(") for f in error.fixes)
        fixes = [fix for fix in error.fixes if called == "update" or lifts not in fix.code]  # `at` is for `update`
        error.fixes = tuple(fix._replace(code=fix.code.replace(lifts, "sh.optim.lift(tx, ")) for fix in fixes)
        if moves and not limited:
            error.hints = (*hints, f"sh.implicit_comm() around `{called}` allows it")

    error.defer(complete)
    return error


def _check(tx: Any) -> None:
    if all(callable(getattr(tx, part, None)) for part in ("init", "update", "_replace")):
        return
    other = callable(getattr(tx, "gradient_transformation", None))
    raise ShardingTypeError(
        f"`optim.lift` takes a named tuple of `init` and `update`, not {tx.__class__.__name__}",
        hints=["tx.gradient_transformation()" if other else "optax.adamw(1e-3)"],
    )


def _any_typed(tree: Tree) -> bool:
    return any(isinstance(x, Array) for x in jax.tree.leaves(tree))


# gradients that are pending sums


def _finish_sums(grads: tuple[Tree, dict[str, Tree]], weights: Tree, pending: Pending, *, everywhere: bool) -> Any:
    """Reshards the gradients, and pytrees like them, for the transformation: pending sums only, or all."""
    leaves, structure = jax.tree.flatten_with_path(grads)
    values = [x for _, x in leaves]
    types = [x.type if is_typed(x) else None for x in values]
    goals = _goal_types(types, None if weights is None else jax.tree.leaves(weights) * (1 + len(grads[1])))
    first = {id(x): i for i, x in reversed(list(enumerate(values)))}  # a repeated value is resharded once
    first_uses = [i for i, x in enumerate(values) if types[i] is not None and first[id(x)] == i]
    sums = [i for i in first_uses if types[i].axes(State.UNREDUCED)]  # type: ignore[union-attr]
    if sums and pending == "refuse":
        raise _pending_error(
            [(jax.tree_util.keystr(leaves[i][0][1:]), types[i], goals[i]) for i in sums], len(first_uses)
        )
    moving = [i for i in first_uses if (everywhere or i in sums) and types[i] != goals[i]]
    moved = dict(zip(moving, move_together([values[i] for i in moving], [goals[i] for i in moving]), strict=True))
    return jax.tree.unflatten(structure, [moved.get(first[id(x)], x) for x in values])


def _goal_types(types: Sequence[ShType | None], weights: Sequence[Any] | None) -> list[Any]:
    """For each gradient its parameter's type with the gradient's dtype, or else its type without pending sums."""
    if weights is None or len(weights) != len(types):
        weights = [None] * len(types)
    goals: list[Any] = []
    for t, p in zip(types, weights, strict=True):
        if t is None:
            goals.append(None)
        elif is_typed(p) and p.type.shape == t.shape:
            goals.append(p.type.replace(dtype=t.dtype_name))
        else:
            goals.append(finished_type(t))
    return goals


def _pending_error(sums: Sequence[tuple[str, Any, Any]], count: int) -> ShardingTypeError:
    path, first, _ = sums[0]
    axes = tuple(dict.fromkeys(a for _, t, _ in sums for a in t.axes(State.UNREDUCED)))
    forth = sent_together([t for _, t, _ in sums], [w for _, _, w in sums])
    back = sent_together([w.cotangent() for _, _, w in sums], [t.cotangent() for _, t, _ in sums])

    def words(sent: Sequence[Any]) -> str:
        return " and ".join(dict.fromkeys(f"{s.kind.value} over {quoted(s.axes)}" for s in sent))

    forward, backward = (sum(s.bytes for s in sent) for sent in (forth, back))
    subject = f"the gradient at {path or 'the root'} is" if len(sums) == 1 else f"{len(sums)} of {count} gradients are"
    example = "" if len(sums) == 1 else f"; the one at {path} is {first}"
    return ShardingTypeError(
        f"`update` takes finished gradients, and {subject} pending over mesh axis {quoted(axes)}",
        where=f"update({first})" if len(sums) == 1 else f"update({', '.join(str(t) for _, t, _ in sums[:3])})",
        why="each device holds one term of the sum, and an optimizer's step is not linear in it" + example,
        fixes=[Fix('sh.optim.lift(tx, pending="finish")', words(forth), words(back), forward, backward)],
        hints=[
            'sh.optim.lift(tx, pending="finish", types=...) with types sharded over '
            f"{quoted(axes)}: a reduce-scatter, and a state that is sharded too"
        ],
        axes=axes,
    )


__all__ = ["apply_updates", "lift"]


def __dir__() -> list[str]:
    return __all__
