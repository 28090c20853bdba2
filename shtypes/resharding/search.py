"""A* search for the cheapest sequence of collectives between two states of `space`."""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from fractions import Fraction
from typing import Final, NamedTuple

from shtypes.resharding.moves import Kind
from shtypes.resharding.space import BYTES, LAUNCH, Places, Problem, SearchSpace


class Path(NamedTuple):
    """The kind of each step and the places after it."""

    steps: tuple[tuple[Kind, Places], ...]
    cost: int


#: The maximum number of moves in an exact search, before greedier ones.
LIMIT: Final = 8_000


@functools.lru_cache(maxsize=16384)
def search(problem: Problem, limit: Fraction | None = None, launches: int = 0) -> Path | None:
    """The cheapest path: fewest bytes, then collectives, then steps.

    No intermediate state takes more memory per device than the larger end, unless there is no other path. None if no
    path is cheaper than one of ``limit`` bytes (a fraction of the array) and as many ``launches``.
    """
    space = SearchSpace(problem)
    bound = None
    if limit is not None:
        least = limit * space.total
        bound = math.ceil(least) * BYTES + (launches * LAUNCH if least.denominator == 1 else 0)
    cap: int | None = max(space.local(problem.src), space.local(problem.dst))
    path, exact = _best_first(space, cap, bound, 1, LIMIT)
    if exact:
        return path or (None if bound is not None else _best_first(space, None, None, 4, None)[0])
    for greedy in (4, 2):
        better, _ = _best_first(space, cap, bound, greedy, LIMIT)
        if better is not None:
            path, bound = better, better.cost
    return path or (None if limit is not None else _best_first(space, None, None, 4, None)[0])


def search_alike(problem: Problem, limit: Fraction | None = None, launches: int = 0) -> Path | None:
    """`search`, of one of the problems that differ only in the numbers of axes and digits: of as good paths any."""
    _, _, either, _, src, dst, pace = problem
    axes = sorted(range(len(src)), key=lambda a: (problem.sizes[a], min(src[a], 0), min(dst[a], 0), src[a] == dst[a]))
    ends = [[at[a] for a in axes] for at in (src, dst)]
    digits = dict.fromkeys([x for x in itertools.chain(*ends) if x >= 0]) | dict.fromkeys(range(len(problem.digits)))
    numbers, names = {x: k for k, x in enumerate(digits)}, [*digits]
    one = problem._replace(
        sizes=tuple([problem.sizes[a] for a in axes]),
        digits=tuple([problem.digits[x] for x in names]),
        either=tuple([tuple([tuple([numbers[x] for x in cut]) for cut in both]) for both in either]),  # type: ignore[misc]
        src=tuple([numbers.get(x, x) for x in ends[0]]),
        dst=tuple([numbers.get(x, x) for x in ends[1]]),
        pace=tuple([pace[a] for a in axes]) if pace else (),
    )
    if (path := search(one, limit, launches)) is None:
        return None
    places = [dict(zip(axes, at, strict=True)) for _, at in path.steps]
    steps = [tuple([names[x] if x >= 0 else x for _, x in sorted(at.items())]) for at in places]
    return Path(tuple((kind, at) for (kind, _), at in zip(path.steps, steps, strict=True)), path.cost)


def least_sent(problem: Problem) -> Fraction:
    """A lower bound of the bytes that a device sends in any plan, as a fraction of the array."""
    space = SearchSpace(problem)
    return Fraction(space.bound(problem.src), space.total)


def sent(path: Path, problem: Problem) -> Fraction:
    """The bytes that a device sends on a path, as a fraction of the array."""
    return Fraction(path.cost // BYTES, SearchSpace(problem).total)


def launches(path: Path) -> int:
    """The number of collectives on a path."""
    return path.cost % BYTES // LAUNCH


def _best_first(
    space: SearchSpace, cap: int | None, below: int | None, greedy: int, limit: int | None
) -> tuple[Path | None, bool]:
    """A* with an admissible bound, or an inflated one that ends sooner; also returns whether it was exhaustive."""
    src, dst = space.problem.src, space.problem.dst
    tickets = itertools.count()
    cost: dict[Places, int] = {src: 0}
    came: dict[Places, tuple[Kind, Places]] = {}
    bounds: dict[Places, int] = {src: space.least(src)}
    if below is not None and bounds[src] >= below:
        return None, True
    heap = [(greedy * bounds[src], next(tickets), src)]
    done: set[Places] = set()
    looked = 0
    while heap:
        _, _, state = heapq.heappop(heap)
        if state in done:
            continue
        if state == dst:
            return Path(_walked(came, src, dst), cost[dst]), True
        done.add(state)
        if limit is not None and looked > limit:
            return None, False
        spent = cost[state]
        for kind, after, price in space.moves(state):
            looked += 1
            if after in done or (cap is not None and space.local(after) > cap):
                continue
            new = spent + price + space.touched(kind, state, after)
            old = cost.get(after)
            if old is not None and new >= old:
                continue
            bound = bounds.get(after)
            if bound is None:
                bound = bounds[after] = space.least(after)
            if below is not None and new + bound >= below:
                continue
            cost[after] = new
            came[after] = kind, state
            heapq.heappush(heap, (new + greedy * bound, next(tickets), after))
    return None, True


def _walked(came: dict[Places, tuple[Kind, Places]], src: Places, dst: Places) -> tuple[tuple[Kind, Places], ...]:
    out: list[tuple[Kind, Places]] = []
    while dst != src:
        kind, before = came[dst]
        out.append((kind, dst))
        dst = before
    return tuple(reversed(out))
