"""Translates types to states of the plan search, and back.

Where the axes of two types cut a dim differently, or a part of an axis can move alone, axes are cut into factors. A
dim's index is then a number in mixed radix, with a digit for each part of an axis. An intermediate type may be one of a
reshaped view of the array: on a mesh of parts of axes, named as Shardy does, with a dim cut into its digits. Each
device holds the same elements in the same order.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from shtypes.resharding.costs import CostModel
from shtypes.resharding.space import PACE, PARKED, PENDING, REPLICATED, Places, Problem
from shtypes.resharding.steps import common_prefix, live
from shtypes.types import REPLICATED as REPLICATED_STATES
from shtypes.types import Dim, ShType, State, dtypes
from shtypes.types.mesh import Mesh, part_names

#: A mesh axis and the index of one of its parts, major to minor.
Part: TypeAlias = tuple[str, int]


class DimFactor(NamedTuple):
    """A digit of a dim's index; ``variant`` separates the two cuts of a dim that the ends cut differently."""

    dim: int
    variant: int  # 0: of both ends, or of the source; 1: of the destination, if it cuts the dim differently
    at: int  # its position, major to minor
    size: int


@dataclass(frozen=True)
class Factorization:
    """The digits of the dims of two types, and the search problem.

    From ``f32[6@x]`` to ``f32[6@y]`` with x=2 and y=3, the dim has digits of sizes (2, 3) in variant 0, the first on
    ``x``, and (3, 2) in variant 1, the first on ``y``.
    """

    src: ShType
    dst: ShType
    fixed: tuple[tuple[str, ...], ...]  # the axes of each dim that stay
    parts: tuple[Part, ...]  # the axes, or parts of axes, that move
    factors: Mapping[str, tuple[int, ...]]  # the sizes of the parts of each axis
    digits: tuple[DimFactor, ...]
    unused: tuple[DimFactor, ...]  # digits that neither type uses
    problem: Problem

    def types(self, path: Sequence[Places]) -> list[tuple[ShType, ShType]]:
        """The types before and after each step of a path, which starts at the source."""
        return [self._step_types(a, b) for a, b in itertools.pairwise(self._states(path))]

    def end_type(self, path: Sequence[Places]) -> ShType:
        """The type of a path's last state, of the array before it is reshaped."""
        last = self._states(path)[-1]
        # an axis with parts that are not yet in the destination's state gets their state, and is relabelled
        by_part = sorted(last.states.items(), key=lambda item: item[1] is not self.dst.state(item[0][0]))
        return self._type(last._replace(states=dict(by_part)), {}, set())

    def _states(self, path: Sequence[Places]) -> list[_State]:
        """The layout, and the states of the parts on no dim, for each point of a path.

        A replicated part keeps its axis's state in the source. One that becomes replicated gets the destination's state
        if it stays so, and is otherwise reduced, from which all moves are free.
        """
        layouts = self._layouts(path)
        replicated = [frozenset(p for p, x in zip(self.parts, at, strict=True) if x == REPLICATED) for at in path]
        labels: dict[Part, State] = {p: self.src.state(p[0]) for p in replicated[0]}
        result: list[_State] = []
        for i, (at, layout) in enumerate(zip(path, layouts, strict=True)):
            for part in replicated[i] - replicated[i - 1] if i else ():
                stays = all(part in later for later in replicated[i:])
                labels[part] = self.dst.state(part[0]) if stays else State.REDUCED
            states = {p: State.UNREDUCED for p, x in zip(self.parts, at, strict=True) if x == PENDING}
            result.append(_State(layout, states | {p: labels[p] for p in replicated[i]}))
        return result

    def _layouts(self, path: Sequence[Places]) -> list[dict[DimFactor, Part]]:
        """The part on each digit in each state; parked ones get a digit that makes no hole, if there is one."""
        out: list[dict[DimFactor, Part]] = []
        parked: dict[int, DimFactor] = {}
        for i, at in enumerate(path):
            left = [digit for axis, digit in parked.items() if at[axis] != PARKED]
            parked = {axis: digit for axis, digit in parked.items() if at[axis] == PARKED}
            for axis, place in enumerate(at):
                if place == PARKED and axis not in parked:
                    # in an exchange, the incoming part takes the digit of the outgoing one
                    digit = next((d for d in left if d.size == self.problem.sizes[axis]), None)
                    if digit is None:
                        digit = self._parking_digit(axis, path[i:], list(parked.values()))
                    else:
                        left.remove(digit)
                    parked[axis] = digit
            layout = {self.digits[x]: p for p, x in zip(self.parts, at, strict=True) if x >= 0}
            out.append(layout | {digit: self.parts[axis] for axis, digit in parked.items()})
        return out

    def _parking_digit(self, axis: int, path: Sequence[Places], taken: Sequence[DimFactor]) -> DimFactor:
        size = self.problem.sizes[axis]
        free = [d for d in self.unused if d.size == size and d not in taken]
        during = list(itertools.takewhile(lambda at: PARKED in at, path))

        def holes(digit: DimFactor) -> int:
            before = [k for k, d in enumerate(self.digits) if d.dim == digit.dim]
            free_before = sum(d.dim == digit.dim and d.at < digit.at and d not in taken for d in self.unused)
            return free_before + sum(k not in at for at in during for k in before)

        return min(free, key=holes)

    def _step_types(self, a: _State, b: _State) -> tuple[ShType, ShType]:
        """Two states as types of one view; of the array itself, if they have no holes and do not cut axes."""
        strided = {d for s in (a, b) for d in range(self.src.ndim) if self._has_holes(s, d)}
        split_axes = {axis for s in (a, b) for axis in self._split_axes(s, strided)}
        # both types cut a dim into the same digits
        variants = {d: max(self._variant_of(d, a), self._variant_of(d, b)) for d in strided}
        cuts = {d: self._merged_digits(d, variant, a, b) for d, variant in variants.items()}
        return self._type(a, cuts, split_axes), self._type(b, cuts, split_axes)

    def _type(self, s: _State, cuts: Mapping[int, list[list[DimFactor]]], split_axes: set[str]) -> ShType:
        """A state as a type of a view, with some dims cut into digits and some axes into parts."""
        src, factors = self.src, self.factors
        mesh = src.mesh.cut({axis: n for axis, n in factors.items() if axis in split_axes})

        def name(part: Part) -> str:
            axis, i = part
            return part_names(axis, factors[axis])[i] if axis in split_axes else axis

        def names(parts: Iterable[Part]) -> tuple[str, ...]:
            return tuple(dict.fromkeys(map(name, parts)))

        dims: list[Dim] = []
        for d, dim in enumerate(src.dims):
            unmoved = (*(a for a in dim.axes if src.mesh.shape[a] == 1), *self.fixed[d])
            if d not in cuts:
                dims.append(dim._replace(axes=(*unmoved, *names(self._parts_on(s, d)))))
                continue
            first = src.mesh.product(unmoved)
            sizes = [math.prod(digit.size for digit in group) for group in cuts[d]]
            dims += [Dim(first, unmoved)] if unmoved else []
            for group, size in zip(cuts[d], sizes, strict=True):
                dims.append(Dim(size, names(s.layout[digit] for digit in group if digit in s.layout)))
            dims.append(Dim(dim.size // first // math.prod(sizes)))
        states = src.beside_dims | {name(part): state for part, state in s.states.items()}
        for axis in {a for dim in dims for a in dim.axes} | split_axes:
            states.pop(axis, None)
        return ShType(mesh, src.dtype_name, dims, states)

    def _merged_digits(self, dim: int, variant: int, a: _State, b: _State) -> list[list[DimFactor]]:
        """The digits of a dim for two states, adjacent ones merged that are on no axis in both."""
        groups: list[list[DimFactor]] = []
        empty = False
        for digit in self._digits_of(dim, variant):
            was_empty, empty = empty, digit not in a.layout and digit not in b.layout
            if empty and was_empty:
                groups[-1].append(digit)
            else:
                groups.append([digit])
        return groups[:-1] if empty else groups

    def _has_holes(self, s: _State, dim: int) -> bool:
        on = [d in s.layout for d in self._digits_of(dim, self._variant_of(dim, s))]
        return on != sorted(on, reverse=True)

    def _variant_of(self, dim: int, s: _State) -> int:
        return max((d.variant for d in s.layout if d.dim == dim), default=0)

    def _digits_of(self, dim: int, variant: int) -> list[DimFactor]:
        """The digits of a dim, major to minor, in one of its cuts; unused ones last."""
        of_dim = [d for d in (*self.digits, *self.unused) if d.dim == dim]
        first = min((d.at for d in of_dim if d.variant == 1), default=len(of_dim))
        return [d for d in of_dim if d.at < first or d.variant == variant]

    def _split_axes(self, s: _State, strided: Iterable[int]) -> set[str]:
        """The axes whose parts are not adjacent in a state."""
        out: set[str] = set()
        unsplit: set[str] = set()
        for dim in range(self.src.ndim):
            on = self._parts_on(s, dim)
            k = 0
            while k < len(on):
                axis = on[k][0]
                parts = [(axis, i) for i in range(len(self.factors[axis]))]
                if on[k : k + len(parts)] == parts and (dim not in strided or len(parts) == 1):
                    unsplit.add(axis)
                    k += len(parts)
                else:
                    out.add(axis)
                    k += 1
        for axis, sizes in self.factors.items():
            if axis not in unsplit and axis not in out:
                states = {s.states.get((axis, i)) for i in range(len(sizes))}
                if len(states) > 1:
                    out.add(axis)
        return out

    def _parts_on(self, s: _State, dim: int) -> list[Part]:
        """The parts on a dim, major to minor."""
        return [s.layout[d] for d in self._digits_of(dim, self._variant_of(dim, s)) if d in s.layout]


class _State(NamedTuple):
    layout: dict[DimFactor, Part]
    states: dict[Part, State]


def cuts_of(mesh: Mesh) -> list[Mapping[str, tuple[int, ...]]]:
    """Ways to cut the axes of a mesh into parts, coarsest first: uncut, by the sizes of other axes, into primes.

    Shards can be exchanged where two axes have equal digits. All primes at once make the search too large on a large
    mesh, so there is also a cut of only the largest axes, into the size of a smaller one and the rest.
    """
    sizes = sorted({n for n in mesh.axis_sizes if n > 1}, reverse=True)
    largest, inner = sizes[0] if sizes else 1, next((n for n in sizes[1:] if sizes[0] % n == 0), 1)
    cuts: list[Mapping[str, tuple[int, ...]]] = [{}]
    if inner > 1:
        for cut in dict.fromkeys([(inner, largest // inner), (largest // inner, inner)]):
            cuts.append({a: cut for a, n in mesh.shape.items() if n == largest})
    primes = {a: _primes(n) for a, n in mesh.shape.items() if n > 1 and len(_primes(n)) > 1}
    return cuts if primes in cuts else [*cuts, primes]


def factorization_of(
    src: ShType,
    dst: ShType,
    cut: Mapping[str, tuple[int, ...]] | None = None,
    *,
    copies: bool = False,
    model: CostModel | None = None,
) -> Factorization:
    """The search problem between two types, with axes cut into parts of the sizes ``cut``.

    ``copies``: whether axes over which the value stays replicated share the work of reductions; ``model``: the links of
    the axes, to minimize time instead of bytes.
    """
    mesh = src.mesh
    before = [live(mesh, d.axes) for d in src.dims]
    after = [live(mesh, d.axes) for d in dst.dims]
    fixed = tuple(b[: common_prefix(b, a)] for b, a in zip(before, after, strict=True))
    moving = _moving(src, dst, {a for axes in fixed for a in axes}, copies)
    factors = {a: (cut or {}).get(a, (mesh.shape[a],)) for a in moving}
    parts = tuple((a, i) for a in moving for i in range(len(factors[a])))
    number = {p: i for i, p in enumerate(parts)}
    sizes = tuple(factors[a][i] for a, i in parts)

    digits: list[DimFactor] = []
    alternatives: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    unused: list[DimFactor] = []
    ends = [[PENDING if t.state(a) is State.UNREDUCED else REPLICATED for a, _ in parts] for t in (src, dst)]
    for d, (axes, goal) in enumerate(zip(before, after, strict=True)):
        lists = [[number[a, i] for a in x[len(fixed[d]) :] for i in range(len(factors[a]))] for x in (axes, goal)]
        one, other = ([sizes[p] for p in x] for x in lists)
        same = common_prefix(one, other)
        same_digits = same == min(len(one), len(other))
        if not same_digits:
            # each cut gets the digits that only the other has, so that shards can be exchanged between them
            one, other = (
                _with_digits_of(one, other, rest := src.shape[d] // mesh.product(fixed[d])),
                _with_digits_of(other, one, rest),
            )
        first = len(digits)
        longer = one if not same_digits else max(one, other, key=len)
        digits += [DimFactor(d, 0, k, n) for k, n in enumerate(longer)]
        in_dst = range(len(digits), len(digits) + (0 if same_digits else len(other) - same))
        digits += [DimFactor(d, 1, same + k, other[same + k]) for k in range(len(in_dst))]
        for k, p in enumerate(lists[0]):
            ends[0][p] = first + k
        for k, p in enumerate(lists[1]):
            ends[1][p] = first + k if same_digits or k < same else in_dst[k - same]
        if not same_digits:
            alternatives.append((tuple(range(first + same, first + len(one))), tuple(in_dst)))
        elif src.size:
            rest = src.shape[d] // mesh.product(fixed[d]) // math.prod(longer)
            unused += _unused_digits(d, len(longer), rest, Counter(sizes))
    counts = Counter(digit.size for digit in unused)
    problem = Problem(
        sizes,
        tuple(digit.size for digit in digits),
        tuple(alternatives),
        tuple(sorted((n, min(count, sizes.count(n))) for n, count in counts.items())),
        tuple(ends[0]),
        tuple(ends[1]),
        () if model is None else _pace(model, src, sizes, [a for a, _ in parts], fixed),
    )
    return Factorization(src, dst, fixed, parts, factors, tuple(digits), tuple(unused), problem)


def _pace(
    model: CostModel, t: ShType, sizes: tuple[int, ...], axes: Sequence[str], fixed: tuple[tuple[str, ...], ...]
) -> tuple[tuple[int, int, int], ...]:
    """The time that the links of some axes take, in the units of a search for them."""
    fastest = max(model.link(a).bandwidth for a in t.mesh.axis_names)
    sent = t.size * dtypes.itemsize(t.dtype_name) / t.mesh.product(itertools.chain(*fixed))
    unit = max(sent, 1) / math.prod(sizes) ** 2 / (PACE * fastest)  # in seconds

    def pace(axis: str) -> tuple[int, int, int]:  # bounded, so that the slowest link still fits the integers
        link = model.link(axis)
        latency, launch = (round(min(seconds / unit, 1e18)) for seconds in (link.latency, link.launch))
        return round(min(PACE * fastest / link.bandwidth, 1e12)), latency, launch

    return tuple(map(pace, axes))


def _moving(src: ShType, dst: ShType, stays: set[str], copies: bool) -> tuple[str, ...]:
    """The axes that change, in mesh order: not those that stay pending, varying, or where they shard."""
    changes = {a: (src.state(a), dst.state(a)) for a in live(src.mesh, src.mesh.axis_names) if a not in stays}
    reduces = copies and any(a is State.UNREDUCED and b is not a for a, b in changes.values())

    def moves(a: State, b: State) -> bool:
        return reduces if a in REPLICATED_STATES and b in REPLICATED_STATES else a is not b or a is State.SHARDED

    return tuple(axis for axis, (a, b) in changes.items() if moves(a, b))


def _with_digits_of(sizes: list[int], other: list[int], room: int) -> list[int]:
    """The digits, and those that only the other cut has, as far as they divide the dim."""
    digits = list(sizes)
    for size in (Counter(other) - Counter(sizes)).elements():
        if room % (math.prod(digits) * size) == 0:
            digits.append(size)
    return digits


def _unused_digits(dim: int, at: int, rest: int, sizes: Counter[int]) -> list[DimFactor]:
    """Unused digits of a dim, at most as many of a size as there are axes of it."""
    out: list[DimFactor] = []
    for size, most in sorted(sizes.items(), reverse=True):
        count = 0
        while count < most and rest % size == 0:
            out.append(DimFactor(dim, 0, at + len(out), size))
            rest //= size
            count += 1
    return out


@functools.cache
def _primes(n: int) -> tuple[int, ...]:
    """The prime factors of a size, with multiplicity."""
    factor = next((k for k in range(2, math.isqrt(n) + 1) if n % k == 0), n)
    return (factor, *_primes(n // factor)) if n > factor else (n,)
