"""Loops and branches over typed values: JAX's own, with free joins inserted and typed predicates accepted.

`jax.lax.scan`, `cond`, `switch`, `while_loop` and `fori_loop` take typed values as they are. These forms of them also
fill in the length, cast a carry or a branch to the type that all sides can have for free, and say which types differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax

from shtypes.advice import fixes
from shtypes.array import to_jax
from shtypes.errors import ShardingTypeError
from shtypes.ops.dispatch import is_typed, located
from shtypes.ops.rules import Typing
from shtypes.primitives import move
from shtypes.reshard.join import join
from shtypes.types import ShType, State
from shtypes.where import public


class _TypesDiffer(Exception):  # noqa: N818  # a signal, not an error
    """Leaves the trace of a body whose types differ; ``types`` are the joined ones, leaf by leaf, None for plain."""

    def __init__(self, types: list[ShType | None]) -> None:
        self.types = types


@public
def scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
) -> tuple[Any, Any]:
    """A loop over the leading dim of ``xs`` with a carry, as `jax.lax.scan`.

    A carry that comes back in another type than it went in is cast, before the loop or at the end of each step, where
    that is free in both directions: an accumulator may start as zeros of any replicated type and become unreduced.

    Args:
        f: ``(carry, x) -> (carry, y)``.
        init: The first carry: a tree of typed values and plain arrays.
        xs (length, ...): What the loop runs over; the leading dim of typed values must not be sharded.
        length: The number of steps, where ``xs`` is None.
        reverse: Whether to run from the end.
        unroll: Steps per iteration of the compiled loop.

    Returns:
        The last carry, and the stacked ``y``.

    Raises:
        ShardingTypeError: a leading dim is sharded or of another size; the carry changes to a type that it cannot be
            cast to for free.

    Communicates: what ``f`` does, at each step. Backward, a value from outside that ``f`` casts is reduced at each
    step: cast it before the loop.
    """
    steps = _length(xs, length)

    def run(body: Callable[..., Any], start: Any) -> Any:
        return lax.scan(body, start, xs, steps, reverse=reverse, unroll=unroll)

    last, ys = _joined_loop("scan", f, init, run)
    return last, ys


@public
def map_(f: Callable[[Any], Any], xs: Any, *, batch_size: int | None = None) -> Any:
    """A function of each element of the leading dim, one after the other, as `jax.lax.map`; see `scan`.

    Args:
        f: A function of one element.
        xs (length, ...): A tree of values; the leading dim must not be sharded.
        batch_size: Not supported.

    Returns:
        The stacked results.

    Communicates: what ``f`` does, at each step.
    """
    if batch_size is not None:
        raise ShardingTypeError("`map` takes one element at a time", hints=["sh.vmap inside of it"])
    return scan(lambda carry, x: (carry, f(x)), (), xs)[1]


map_.__name__ = "map"


@public
def while_loop(cond_fun: Callable[[Any], Any], body_fun: Callable[[Any], Any], init_val: Any) -> Any:
    """A loop that runs while a predicate holds, as `jax.lax.while_loop`; the predicate may be typed.

    Args:
        cond_fun: ``carry -> bool``, the same on every device: reduced or invariant, or plain.
        body_fun: ``carry -> carry``.
        init_val: The first carry; joins as in `scan`.

    Raises:
        ShardingTypeError: the predicate is unreduced or varies; the carry changes its type.
    """
    predicate = _plain_result(cond_fun, "the predicate of `while_loop`")

    def body(carry: Any, _: Any) -> tuple[Any, Any]:
        return body_fun(carry), None

    def run(step: Callable[..., Any], start: Any) -> Any:
        return lax.while_loop(predicate, lambda carry: step(carry, None)[0], start)

    return _joined_loop("while_loop", body, init_val, run)


@public
def fori_loop(
    lower: Any, upper: Any, body_fun: Callable[[Any, Any], Any], init_val: Any, *, unroll: int | bool | None = None
) -> Any:
    """A counted loop, as `jax.lax.fori_loop`; the bounds may be typed.

    Args:
        lower: The first count.
        upper: The end, not included.
        body_fun: ``(i, carry) -> carry``; ``i`` is plain.
        init_val: The first carry; joins as in `scan`.
        unroll: As in `jax.lax.fori_loop`.

    Raises:
        ShardingTypeError: a bound is unreduced or varies; the carry changes its type.
    """
    bounds = _plain(lower, "a bound of `fori_loop`"), _plain(upper, "a bound of `fori_loop`")

    def body(carry: Any, i: Any) -> tuple[Any, Any]:
        return body_fun(i, carry), None

    def run(step: Callable[..., Any], start: Any) -> Any:
        return lax.fori_loop(*bounds, lambda i, carry: step(carry, i)[0], start, unroll=unroll)

    return _joined_loop("fori_loop", body, init_val, run)


@public
def cond(pred: Any, true_fun: Callable[..., Any], false_fun: Callable[..., Any], *operands: Any) -> Any:
    """One of two functions of the operands, as `jax.lax.cond`; the predicate may be typed.

    Args:
        pred: A bool scalar, plain or typed; reduced or invariant.
        true_fun: Applied where it holds.
        false_fun: Applied where it does not. Results whose types differ by what is free are cast to one type.
        *operands: Arguments of both.

    Raises:
        ShardingTypeError: the predicate is unreduced or varies; the results have no type in common.
    """
    chosen = _plain(pred, "the predicate of `cond`")
    return _joined_branches(
        "cond", [true_fun, false_fun], lambda branches: lax.cond(chosen, branches[0], branches[1], *operands)
    )


@public
def switch(index: Any, branches: Sequence[Callable[..., Any]], *operands: Any) -> Any:
    """One of several functions of the operands, as `jax.lax.switch`; see `cond`.

    Args:
        index: An integer scalar, plain or typed; out of range, the nearest branch.
        branches: The functions.
        *operands: Their arguments.
    """
    chosen = _plain(index, "the index of `switch`")
    return _joined_branches("switch", list(branches), lambda fns: lax.switch(chosen, fns, *operands))


# joins


def _joined_loop(
    name: str, body: Callable[[Any, Any], tuple[Any, Any]], init: Any, run: Callable[[Callable[..., Any], Any], Any]
) -> Any:
    """Runs a loop, and again with its carry cast to the joined type if the body returns another."""

    def checked(carry: Any, x: Any) -> tuple[Any, Any]:
        out, y = body(carry, x)
        entered: Any = jax.tree.structure(carry)
        if entered != jax.tree.structure(out):
            return out, y  # JAX's own message shows both trees
        wanted, found = _types(carry), _types(out)
        if any(_differ(w, f) for w, f in zip(wanted, found, strict=True)):
            joined = [_join_carry(name, path, w, f) for path, w, f in zip(_paths(carry), wanted, found, strict=True)]
            if joined != wanted:
                raise _TypesDiffer(joined)
            out = _cast(out, wanted)
        return out, y

    while True:  # each round moves the carry up a lattice of four states
        try:
            return run(checked, init)
        except _TypesDiffer as differ:
            init = _cast(init, differ.types)


def _join_carry(name: str, path: str, entered: ShType | None, left: ShType | None) -> ShType | None:
    if not _differ(entered, left):
        return entered
    what = f"the carry{path} of `{name}`"
    if entered is None or left is None:
        typed = entered or left
        raise ShardingTypeError(
            f"{what} is typed on one side only: it starts as {entered or 'a plain array'} and comes back as "
            f"{left or 'a plain array'}",
            hints=[f'start from sh.zeros("{typed}") or sh.from_jax(x)', "end with x.to_jax()"],
        )
    try:
        return join([entered, left])
    except ShardingTypeError:
        raise located(
            ShardingTypeError(
                f"{what} starts as {entered} and comes back as {left}",
                why="the carry has one type at each step, and no cast between these two is free in both directions",
                hints=_carry_hints(entered, left),
            ),
            name,
            [entered, left],
        ) from None


def _carry_hints(entered: ShType, left: ShType) -> list[str]:
    if entered.shape != left.shape or entered.dtype_name != left.dtype_name:
        return []
    varying = [a for a in left.axes(State.VARYING) if entered.state(a) is not State.VARYING]
    if varying:
        axes = ", ".join(f'"{a}"' for a in varying)
        return [f"sh.lax.pvary(init, {axes if len(varying) == 1 else f'({axes})'}) before the loop"]
    return [f'sh.reshard(init, "{left}") before the loop', f'sh.reshard(carry, "{entered}") at the end of the body']


def _joined_branches(name: str, branches: list[Callable[..., Any]], run: Callable[[list[Any]], Any]) -> Any:
    """Applies one of several functions, and again with results cast to the joined types if those differ."""
    wanted: list[ShType | None] | None = None

    def attempt() -> Any:
        seen: dict[int, tuple[Any, list[ShType | None]]] = {}

        def watched(position: int) -> Callable[..., Any]:
            def branch(*operands: Any) -> Any:
                out = branches[position](*operands)
                if wanted is not None:
                    return _cast(out, wanted)
                seen[position] = (jax.tree.structure(out), _types(out))
                if len(seen) == len(branches):
                    joined = _join_results(name, _paths(out), list(seen.values()))
                    if joined is not None:
                        raise _TypesDiffer(joined)
                return out

            return branch

        return run([watched(i) for i in range(len(branches))])

    try:
        return attempt()
    except _TypesDiffer as differ:
        wanted = differ.types
    return attempt()


def _join_results(
    name: str, paths: list[str], found: list[tuple[Any, list[ShType | None]]]
) -> list[ShType | None] | None:
    """The types that the branches' results join in; None where nothing is to be done, or JAX has the better message."""
    trees, types = zip(*found, strict=True)
    if len(set(trees)) > 1 or all(t == types[0] for t in types):
        return None
    joined: list[ShType | None] = []
    for path, leaves in zip(paths, zip(*types, strict=True), strict=True):
        typed = [t for t in leaves if t is not None]
        if typed and len(typed) < len(leaves):
            raise ShardingTypeError(
                f"one branch of `{name}` returns a plain array{path}, another {typed[0]}",
                hints=["sh.from_jax(x) or x.to_jax() in one of them"],
            )
        joined.append(_join_typed(name, path, tuple(typed)) if typed else None)
    return joined


def _join_typed(name: str, path: str, types: tuple[ShType, ...]) -> ShType:
    """The type of one result of all branches; reshards of some of them are tried where there is none."""
    mesh = types[0].mesh
    axes = [a for a in mesh.axis_names if len({(t.state(a), t.dim_of(a)) for t in types if t.mesh is mesh}) > 1]

    def rule(types: tuple[ShType, ...]) -> Typing:
        try:
            return Typing(types, (join(types),))
        except ShardingTypeError as error:
            error.axes = tuple(axes)
            raise

    try:
        return join(types, f"the results{path} of the branches of `{name}`")
    except ShardingTypeError as error:
        error.fixes = fixes(rule, types, [f"result_{i}" for i in range(len(types))]) if axes else ()
        raise located(error, name, types).with_traceback(None) from None


def _types(tree: Any) -> list[ShType | None]:
    """The sharding types of the leaves; None for plain ones."""
    return [jax.typeof(leaf) if is_typed(leaf) else None for leaf in jax.tree.leaves(tree)]


def _paths(tree: Any) -> list[str]:
    return [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]


def _differ(a: ShType | None, b: ShType | None) -> bool:
    return a != b and (a is not None or b is not None)


def _cast(tree: Any, types: Sequence[ShType | None]) -> Any:
    leaves, structure = jax.tree.flatten(tree)
    cast = [x if t is None else move(x, t, inserted=True) for x, t in zip(leaves, types, strict=True)]
    return jax.tree.unflatten(structure, cast)


# what decides where a program goes


def _plain(x: Any, what: str) -> Any:
    """A predicate, an index or a bound as a plain scalar."""
    if not is_typed(x):
        return x
    t = jax.typeof(x)
    if t.ndim:
        raise ShardingTypeError(f"{what} is a scalar, not {t}")
    for axis, state in zip(t.mesh.axis_names, t.states, strict=True):
        if state in (State.UNREDUCED, State.VARYING):
            hints = [f'sh.all_reduce(x, "{axis}") first'] if state is State.UNREDUCED else []
            raise ShardingTypeError(
                f"{what} has type {t}, which is not one value on all devices of mesh axis `{axis}`",
                why="each device would go its own way, and those that communicate would wait for each other",
                hints=hints,
            )
    return to_jax(x)


def _plain_result(fun: Callable[..., Any], what: str) -> Callable[..., Any]:
    return lambda *args: _plain(fun(*args), what)


def _whole_leading(types: tuple[ShType, ...]) -> Typing:
    """What a loop can run over."""
    for t in types:
        if t.dims[0].axes:
            raise ShardingTypeError("the leading dim is sharded", axes=t.dims[0].axes)
    return Typing(types, types)


def _length(xs: Any, length: int | None) -> int | None:
    """The number of steps, from the leading dims of typed leaves; JAX finds it where there are none."""
    for path, leaf in jax.tree_util.tree_flatten_with_path(xs)[0]:
        if not is_typed(leaf):
            continue
        t, what = jax.typeof(leaf), f"`scan` cannot run over xs{jax.tree_util.keystr(path)}"
        if not t.ndim:
            raise ShardingTypeError(f"{what}: {t} has no leading dim")
        if t.dims[0].axes:
            error = ShardingTypeError(
                f"{what}: the leading dim of {t} is sharded over {', '.join(f'`{a}`' for a in t.dims[0].axes)}",
                why="each step would live on some of the devices only",
                fixes=fixes(_whole_leading, (t,), [f"xs{jax.tree_util.keystr(path)}"]),
            )
            raise located(error, "scan", [t])
        if length is not None and t.shape[0] != length:
            raise ShardingTypeError(f"{what} in {length} steps: the leading dim of {t} has size {t.shape[0]}")
        length = t.shape[0]
    return length


__all__ = ["cond", "fori_loop", "scan", "switch", "while_loop"]
