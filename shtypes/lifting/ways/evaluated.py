"""Evaluates programs on shards of a dim, with sizes in between that the devices do not divide.

A moved value is a table of where its elements come from, so moves of moves are one; operands of arithmetic, and
results, are materialized by one permute for each distance. The last shards may have padding.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from shtypes._compat.jaxprs import captured, jaxpr_of
from shtypes._compat.plain_programs import bind_plain, results_of
from shtypes.caches import Static
from shtypes.dispatch.apply import is_typed
from shtypes.errors import ShardingTypeError
from shtypes.lifting.ways.choice import CALLS
from shtypes.lifting.ways.moved import Layout, Moved, Results, on_results
from shtypes.lifting.ways.moving import (
    LINEAR,
    MOVES,
    RESHAPES,
    at_sizes,
    beside,
    carried_dims,
    dims_moved,
    keeps_dims,
    origin_of,
    without_empty_parts,
)
from shtypes.lifting.ways.per_element import RULED, with_rule
from shtypes.lifting.ways.windows import CONV, places, result_dims, window_dims, windows_of_moved
from shtypes.ops.arranged import Shard, arranged, arranged_together, elements_sent, in_table, together
from shtypes.ops.shards import (
    Axes,
    all_gather,
    as_sharded,
    as_unreduced,
    axis_index,
    axis_size,
    bound,
    of_device,
    part,
    psum,
    type_of,
)
from shtypes.types import dtypes


def _as_list(eqn: Any, y: Any) -> list[Any]:
    return list(y) if eqn.primitive.multiple_results else [y]


class Evaluation:
    """Evaluates a program on shards of a dim.

    Args:
        dim: The dim, the same in all values.
        axes: The axes that shard it.
        x (...): Any value on the mesh.
    """

    def __init__(self, dim: int, axes: Axes, x: Any) -> None:
        self.dim, self.axes, self.n, self.device = dim, axes, axis_size(x, axes), axis_index(x, axes)
        self._sent: dict[tuple[int, Layout], tuple[Any, Any]] = {}  # materialized values, by id
        self._results: dict[int, tuple[Results, Moved]] = {}  # computed windows, by id

    def run(self, closed: Any, args: Sequence[Any]) -> list[Any]:
        """Evaluates a program."""
        return results_of(without_empty_parts(jaxpr_of(closed)), captured(closed), args, self._equation)

    def _equation(self, eqn: Any, xs: list[Any]) -> Sequence[Any]:
        name = eqn.primitive.name
        if name in CALLS:
            return self.run(eqn.params["jaxpr"], xs)
        if not any(v.aval.size for v in eqn.outvars):
            return [np.zeros(v.aval.shape, v.aval.dtype) for v in eqn.outvars]
        if not any(isinstance(x, (Shard, Moved)) for x in xs):
            return _as_list(eqn, bound(eqn)(*xs)) if any(map(is_typed, xs)) else bind_plain(eqn, xs)
        if name in MOVES and keeps_dims(eqn):
            return self._moved(eqn, xs)
        if window_dims(eqn):
            return [self._windowed(eqn, xs)]
        if (carried := carried_dims(eqn)) is not None and name != "reduce_sum" and self.dim not in carried:
            if not all(map(self._are_few, xs)):
                raise ShardingTypeError(f"`{name}` of what is moved along dim {self.dim}")
            return [bound(eqn)(*map(self._complete, xs))]
        if name in (*RESHAPES, "reduce_sum", "transpose"):
            repeats = eqn.outvars[0].aval.size > eqn.invars[0].aval.size
            if beside(eqn, self.dim, eqn.invars[0].aval.shape) is None or (
                repeats and self._are_few(xs[0])
            ):  # as an edge, sent once
                return [bound(eqn)(*map(self._complete, xs))]
            return self._of_sources(eqn, xs, functools.partial(beside, eqn, self.dim))
        if name in LINEAR and self._alike(xs):
            return self._of_sources(eqn, xs, lambda _: {})
        if name == "add_any" and (joined := _joined(list(map(self._as_moved, xs)))):
            return [joined]
        size = eqn.outvars[0].aval.shape[self.dim]
        spreads = [not getattr(x, "ndim", 1) or self._size(x) != size for x in xs]  # is broadcast along the dim
        along = [x for x, s in zip(xs, spreads, strict=True) if not s]
        layout = self._layout(size, along)
        if layout == Layout.even(size, self.n):
            self.place_together(along)
        blocks = [self._complete(x) if s else self._placed(x, layout) for x, s in zip(xs, spreads, strict=True)]
        if size % self.n:  # the padding must not add to gradients of what is broadcast
            like = next(x for x, s in zip(blocks, spreads, strict=True) if not s)
            pairs = zip(blocks, spreads, strict=True)
            blocks = [self._spread(x, like, layout) if s and is_typed(x) else x for x, s in pairs]
        y = with_rule(eqn)(*blocks) if name == RULED else bound(eqn)(*blocks)
        return [layout.moved(each) for each in _as_list(eqn, y)]

    def _spread(self, number: Any, like: Any, layout: Layout) -> Any:
        """Broadcasts a differentiable value along the dim to the shape of a shard, zero in the padding."""
        if not type_of(number).differentiable:
            return number
        return _numbers(like, number, self.device, Static((layout.places() >= 0).tobytes()), self.n, self.dim)

    def _complete(self, x: Any) -> Any:
        """Gathers a value, such as an edge that is repeated."""
        if not isinstance(x, (Shard, Moved)):
            return x
        if self._are_few(x) and (terms := self._terms(x)) is not None:
            return psum(terms, self.axes)
        return part(all_gather(self.block(x), self.axes, self.dim), 0, x.size, self.dim)

    def _are_few(self, x: Any) -> bool:
        """Whether a sum over the devices of a value's elements along the dim sends less than a gather."""
        return 2 * self._size(x) <= self.n

    def _moved(self, eqn: Any, xs: Sequence[Any]) -> Sequence[Shard | Moved]:
        """Applies a move to the tables of its operands; moves along other dims to their sources."""
        if dims_moved(eqn) - {self.dim}:
            joins = eqn.primitive.name in ("concatenate", "split")
            done = self._of_sources(
                eqn, xs, lambda block: {} if joins else at_sizes(eqn, block, {self.dim: block[self.dim]})
            )
            if joins:
                return done
            xs = [*done, *xs[1:]]
        sources, origins = _in_common(list(map(self._as_moved, xs)))
        origin = origin_of(eqn, self.dim)
        starts = np.cumsum([0, *map(len, origins)])[:-1]
        origin = np.concatenate(origins)[starts[origin[:, 0]] + origin[:, 1]]
        ends = np.cumsum([v.aval.shape[self.dim] for v in eqn.outvars])[:-1]
        return [Moved(tuple(sources), each) for each in np.split(origin, ends)]

    def _windowed(self, eqn: Any, xs: Sequence[Any]) -> Any:
        """Windows of moved values, whose results may be moved before they are computed."""
        sums = eqn.primitive.name == CONV and isinstance(xs[1], (Shard, Moved))
        if self.dim not in (window_dims if sums else result_dims)(eqn):
            raise ShardingTypeError(f"`{eqn.primitive.name}` has its results along another dim than {self.dim}")
        return self.windows(eqn, xs, [place.operand for place in places(eqn)].index(self.dim))

    def windows(self, eqn: Any, xs: Sequence[Any], nth: int) -> Any:
        """Some windows of moved values."""
        kernel = eqn.primitive.name == CONV and not isinstance(xs[1], (Shard, Moved))
        moved = [x if kernel and i else self._as_moved(x) for i, x in enumerate(xs)]
        y = windows_of_moved(eqn, moved, nth, self.axes, self.device, self.block)
        return Moved.of(y, y.size) if isinstance(y, Results) else y

    def compute(self, xs: Sequence[Any]) -> None:
        """Computes the windows of values, each on the device where most of its results are asked for."""
        for x in sorted((x for x in xs if isinstance(x, Moved)), key=_uncomputed, reverse=True):
            self._computed(x, in_blocks=True)

    def _computed(self, moved: Moved, *, in_blocks: bool = False) -> Moved:
        """A moved value of windows with their results, each on a device that has them in the moved value, if it can.

        That is if they are in even blocks: of other sizes they are for results alone.
        """
        sources, origin, in_blocks = list(moved.sources), moved.origin.copy(), in_blocks or moved.size % self.n == 0
        for k, y in enumerate(moved.sources):
            if isinstance(y, Results):
                at = np.flatnonzero(origin[:, 0] == k)
                places = origin[at, 1]
                if id(y) not in self._results:
                    asked = (places, at // -(-moved.size // self.n)) if in_blocks else (places[:0], at[:0])
                    self._results[id(y)] = y, y.asked(*asked)
                _, done = self._results[id(y)]
                sources[k], origin[at, 1] = done.sources[0], done.origin[places, 1]
        return Moved(tuple(sources), origin)

    def _alike(self, xs: Sequence[Any]) -> list[Moved]:
        """Values that are moved along the dim, all in the same way; none if they are not."""
        moved = [self._as_moved(x) for x in xs if isinstance(x, (Shard, Moved))]
        return moved if len(moved) == len(xs) and all(map(moved[0].is_alike, moved)) else []

    def _of_sources(self, eqn: Any, xs: Sequence[Any], params_of: Callable[[Sequence[int]], Any]) -> list[Any]:
        """Applies what does with each element along the dim the same to the sources of operands that are moved alike.

        Args:
            eqn: The equation.
            xs: Its operands; the first is along the dim, and but for the number of a pad all.
            params_of: Its parameters on a source, by the shape of that.
        """
        count = 1 if eqn.primitive.name == "pad" else len(xs)
        widens = eqn.outvars[0].aval.size > eqn.invars[0].aval.size

        def on(*blocks: Any) -> list[Any]:
            params = params_of(type_of(blocks[0]).shape)
            return _as_list(eqn, bound(eqn, call=True, **(params or {}))(*blocks, *xs[count:]))

        moved = self._alike(xs[:count])
        if not moved:
            layout = self._layout(self._size(xs[0]), xs[:count])
            moved = [self._as_moved(layout.moved(self._placed(x, layout))) for x in xs[:count]]
        done: list[list[Any]] = []
        for of_each in zip(*[x.sources for x in moved], strict=True):
            if eqn.primitive.name == "pad" and isinstance(x := of_each[0], Shard) and widens:
                done.append([x._replace(widen=_after(x.widen, on))])
            elif isinstance(of_each[0], Results):
                done.append(on_results(on, of_each, len(eqn.outvars)))
            else:
                done.append([Shard(y, of_each[0].size) for y in on(*[x.whole for x in of_each])])
        return [Moved(each, moved[0].origin) for each in zip(*done, strict=True)]

    def _as_moved(self, x: Any) -> Moved:
        return x if isinstance(x, Moved) else Moved.of(x, self._size(x))

    def _size(self, x: Any) -> int:
        if isinstance(x, (Shard, Moved)):
            return x.size
        shape = type_of(x).shape if is_typed(x) else np.shape(x)
        return int(shape[self.dim]) if shape else 1

    def _layout(self, size: int, xs: Sequence[Any]) -> Layout:
        """Where elements lie best: of a little more than a multiple of the devices as most of a value does."""
        even = Layout.even(size, self.n)
        if size < self.n or not size % self.n or 2 * (size % self.n) > self.n:
            return even
        moved = [self._computed(x) for x in sorted(map(self._as_moved, xs), key=_uncomputed, reverse=True)]
        devices = [np.full(size, -1) for _ in moved]
        for x, of_x in zip(moved, devices, strict=True):
            for k, y in enumerate(x.sources):
                if isinstance(y, Shard):
                    at = x.origin[:, 0] == k
                    of_x[at] = x.origin[at, 1] // type_of(y.x).shape[self.dim]
        most = max(devices, key=lambda of_x: int((of_x >= 0).sum()))
        layout = Layout((0, *(int(min(np.flatnonzero(most == d), default=size)) for d in range(1, self.n))), size)
        return layout if layout.is_balanced else even

    def _placed(self, x: Any, layout: Layout) -> Any:
        """Materializes a value, once: each device has its elements in a layout, and zeros beyond."""
        key = id(x), layout
        if key not in self._sent:
            moved = self._computed(self._as_moved(x))
            origin = np.pad(moved.origin, ((0, 1), (0, 0)), constant_values=-1)[layout.places()]
            self._sent[key] = x, arranged(self.device, moved.sources, origin, self.dim, self.axes)
        return self._sent[key][1]

    def place_together(self, xs: Sequence[Any]) -> None:
        """Materializes values with the dims of one as one where that sends less, as parts of a split, or terms."""
        alike: dict[Any, list[Any]] = {}
        for x in xs:
            if isinstance(x, (Shard, Moved)) and x.size % self.n == 0:
                moved = self._computed(self._as_moved(x))
                of = [y for y in moved.sources if isinstance(y, Shard) or getattr(y, "ndim", 0) > 0]
                plain = [type_of(y.x) for y in of if isinstance(y, Shard) and not y.widen]
                shapes = {tuple(m for d, m in enumerate(t.shape) if d != self.dim) for t in plain}
                if len(plain) == len(of) and len(shapes) == 1:
                    alike.setdefault((*shapes, plain[0].dtype_name), []).append((x, moved))
        for pairs in alike.values():
            sources, origins = _in_common([moved for _, moved in pairs])
            apart = (elements_sent(x.sources, x.origin, self.dim, self.n) for _, x in pairs)
            if elements_sent(sources, together(origins, self.n), self.dim, self.n) < sum(apart):
                done = arranged_together(self.device, sources, origins, self.dim, self.axes)
                for (x, _), y in zip(pairs, done, strict=True):
                    self._sent[id(x), Layout.even(x.size, self.n)] = x, y

    def block(self, x: Any) -> Any:
        """Materializes a value as even blocks, with zeros beyond its end."""
        return self._placed(x, Layout.even(self._size(x), self.n))

    def result(self, x: Any, *, pending: bool = True) -> Any:
        """A result as a typed value: sharded, or where the devices do not divide it, a ``pending`` sum, or complete."""
        if not isinstance(x, (Shard, Moved)):
            return x
        if x.size % self.n == 0:
            return as_sharded(self.block(x), self.dim, self.axes)
        terms = self._terms(x) if pending else None
        return self._complete(x) if terms is None else as_unreduced(terms, self.axes)

    def _terms(self, x: Shard | Moved) -> Any:
        """A value of which each device has the elements of its shards, else zeros; None of what cannot be summed."""
        sources, origin = self._computed(self._as_moved(x))
        shards = {k: type_of(y.x) for k, y in enumerate(sources) if isinstance(y, Shard)}
        if not all(dtypes.summable(t.dtype_name) for t in shards.values()):
            return None
        sizes = np.array([shards[k].shape[self.dim] if k in shards else sys.maxsize for k in range(len(sources))])
        is_own = origin[:, 1] // sizes[origin[:, 0]] == np.arange(self.n)[:, None]
        zero = len(sources), 0  # the one that changes no sum
        origin = np.where(is_own[..., None], origin, zero).reshape(-1, 2)
        return arranged(self.device, (*sources, -0.0), origin, self.dim, self.axes)


def _in_common(values: Sequence[Moved]) -> tuple[list[Any], list[np.ndarray]]:
    """The sources of several values, and where in these the elements of each come from."""
    sources: list[Any] = []
    origins = []
    for x in values:
        numbers = [
            next((k for k, y in enumerate(sources) if y is z), len(sources) + i) for i, z in enumerate(x.sources)
        ]
        sources += x.sources
        origins.append(np.stack([np.array(numbers)[x.origin[:, 0]], x.origin[:, 1]], -1))
    return sources, origins


def _joined(values: Sequence[Moved]) -> Moved | None:
    """The sum of values, as gradients of the parts of a split, where no place of more than one is not a zero."""
    sources, origins = _in_common(values)
    zeros = [k for k, y in enumerate(sources) if isinstance(y, (float, np.generic, np.ndarray)) and not np.any(y)]
    is_some = np.stack([~np.isin(origin[:, 0], zeros) for origin in origins])
    nth = is_some.argmax(0)
    return None if np.any(is_some.sum(0) > 1) else Moved(tuple(sources), np.stack(origins)[nth, np.arange(len(nth))])


def _after(first: Callable[[Any], Any] | None, on: Callable[[Any], Sequence[Any]]) -> Callable[[Any], Any]:
    """What a function makes of what another makes of a block."""
    return lambda block: on(block if first is None else first(block))[0]


def _uncomputed(moved: Moved) -> int:
    """Of how many elements windows are not computed yet."""
    return int(np.isin(moved.origin[:, 0], [k for k, y in enumerate(moved.sources) if isinstance(y, Results)]).sum())


@of_device("fill")
def _numbers(like: Any, value: Any, device: Any, table: Static, n: int, dim: int) -> Any:
    """Broadcasts a value where the device's row of a table of bools is true; zero elsewhere."""
    where = in_table(table, device, n, like.ndim, dim)
    return jnp.broadcast_to(jnp.where(where, value, jnp.zeros((), value.dtype)), like.shape)
