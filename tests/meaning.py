"""The meaning oracle: what families of shards denote, and which typings of an op are right. numpy only.

It knows the five states by their meanings alone and reads no table of the library: everything that the tables say is
found again by giving each device explicit whole numbers, running the op on the shards, and asking what the results
denote. Arithmetic is exact: int64, and derivatives by symmetric differences of functions that are at most quadratic.

A *family* is an array whose first dims are the mesh: ``family[i, j]`` is what device (i, j) holds.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]
LETTERS = "SRIUV"


class NoMeaningError(Exception):
    """A family denotes nothing: devices that must agree do not, or the shards have the wrong shape."""


class Layout(NamedTuple):
    """How an array lies on a mesh.

    Attributes:
        mesh: The sizes of the mesh axes.
        shape: The global shape, but for varying axes, over which it is already local.
        on: For each dim the mesh axes that shard it, major to minor.
        letters: The state of each mesh axis.
    """

    mesh: tuple[int, ...]
    shape: tuple[int, ...]
    on: tuple[tuple[int, ...], ...]
    letters: str

    @property
    def local_shape(self) -> tuple[int, ...]:
        return tuple(n // math.prod(self.mesh[a] for a in axes) for n, axes in zip(self.shape, self.on, strict=True))

    def axes(self, letters: str) -> tuple[int, ...]:
        return tuple(a for a, letter in enumerate(self.letters) if letter in letters)

    def start(self, device: tuple[int, ...]) -> tuple[int, ...]:
        """Where a device's part begins in each dim."""
        out = []
        for size, axes in zip(self.shape, self.on, strict=True):
            index, step = 0, size
            for a in axes:
                step //= self.mesh[a]
                index += device[a] * step
            out.append(index)
        return tuple(out)

    def part(self, device: tuple[int, ...]) -> tuple[slice, ...]:
        """Which part of the global array a device holds."""
        return tuple(slice(i, i + n) for i, n in zip(self.start(device), self.local_shape, strict=True))

    def __str__(self) -> str:
        dims = ",".join(f"{n}" + (f"@{axes}" if axes else "") for n, axes in zip(self.shape, self.on, strict=True))
        return f"[{dims}]{self.letters}"


def layouts(mesh: tuple[int, ...], shape: tuple[int, ...], letters: str = LETTERS) -> list[Layout]:
    """Every layout of a shape, with every order of axes on a dim."""
    return list(_layouts(mesh, shape, letters))


@functools.cache
def _layouts(mesh: tuple[int, ...], shape: tuple[int, ...], letters: str) -> tuple[Layout, ...]:
    found: dict[Layout, None] = {}
    for order in itertools.permutations(range(len(mesh))):
        places = [p for p in (*range(len(shape)), *letters.replace("S", "")) if isinstance(p, str) or "S" in letters]
        for chosen in itertools.product(places, repeat=len(mesh)):
            on: list[tuple[int, ...]] = [()] * len(shape)
            word = [""] * len(mesh)
            for axis, place in zip(order, chosen, strict=True):
                word[axis] = place if isinstance(place, str) else "S"
                if isinstance(place, int):
                    on[place] = (*on[place], axis)
            if all(n % math.prod(mesh[a] for a in axes) == 0 for n, axes in zip(shape, on, strict=True)):
                found[Layout(mesh, shape, tuple(on), "".join(word))] = None
    return tuple(found)


def devices(mesh: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    return itertools.product(*map(range, mesh))


def denote(layout: Layout, family: Array) -> Array:
    """The value that a family denotes: concatenate, take any, sum; a varying axis stays as a leading dim.

    Raises:
        NoMeaningError: the family is not one of this layout.
    """
    if family.shape != (*layout.mesh, *layout.local_shape):
        raise NoMeaningError(f"shards of shape {family.shape[len(layout.mesh) :]}, not {layout.local_shape}")
    same = layout.axes("RI")
    for a in same:
        if (family != family.take([0], axis=a)).any():
            raise NoMeaningError("devices that must hold the same value do not")
    varying = layout.axes("V")
    total = np.zeros((*(layout.mesh[a] for a in varying), *layout.shape), family.dtype)
    for device in devices(layout.mesh):
        if all(device[a] == 0 for a in same):
            index: tuple[Any, ...] = (*(device[a] for a in varying), *layout.part(device))
            total[index] += family[device]
    return total


def some_family(layout: Layout, rng: np.random.Generator) -> Array:
    """A family of this layout: as different as its states allow."""
    sizes = [1 if letter in "RI" else n for n, letter in zip(layout.mesh, layout.letters, strict=True)]
    sampled = rng.integers(-30, 31, (*sizes, *layout.local_shape))
    return np.broadcast_to(sampled, (*layout.mesh, *layout.local_shape)).copy()


# ops


class Site(NamedTuple):
    """Where an op is applied: on one device, or (as the op is meant) to whole arrays.

    Attributes:
        out_shape: The shape to be made, for ops that ask for one.
        starts: Where each operand's part begins in each of its dims.
    """

    out_shape: tuple[int, ...]
    starts: tuple[tuple[int, ...], ...]


class Op(NamedTuple):
    """An op to be typed.

    Attributes:
        name: Its name; ops are told apart by it.
        shapes: The operands' shapes.
        out_shape: The result's shape.
        apply: The op, on shards and on whole arrays; at most quadratic in each element of each operand.
        constants: The operands that have no gradient.
    """

    name: str
    shapes: tuple[tuple[int, ...], ...]
    out_shape: tuple[int, ...]
    apply: Callable[[Sequence[Array], Site], Array]
    constants: frozenset[int] = frozenset()


def vjp(op: Op, operands: Sequence[Array], site: Site, index: int, ct: Array) -> Array:
    """The gradient of ``<op(operands), ct>`` with respect to one operand, exactly."""
    gradient = np.zeros_like(operands[index])
    args = list(operands)
    for i in np.ndindex(gradient.shape):
        step = np.zeros_like(gradient)
        step[i] = 1
        args[index] = operands[index] + step
        above = op.apply(args, site)
        args[index] = operands[index] - step
        gradient[i] = ((above - op.apply(args, site)) * ct).sum() // 2
    return gradient


def cotangent_of(layout: Layout, cotangents: str) -> Layout:
    """The layout of gradients, for a word that gives the state of the gradient for each state in `LETTERS`."""
    return layout._replace(letters="".join(cotangents[LETTERS.index(letter)] for letter in layout.letters))


def is_sound(op: Op, given: tuple[Layout, ...], result: Layout, cotangents: str) -> bool:
    """Whether the op on shards computes what the op means, and its transpose on shards the true gradient."""
    varying = result.axes("V")
    if any(layout.axes("V") != varying for layout in given):
        return False  # a value and a family do not meet: the value must become a family first
    rng = np.random.default_rng(1)
    families = [some_family(layout, rng) for layout in given]
    try:
        return _forward_agrees(op, given, result, families) and _transpose_agrees(
            op, given, result, families, cotangents, some_family(cotangent_of(result, cotangents), rng)
        )
    except (NoMeaningError, ValueError, IndexError):  # the last two are numpy's: shards that do not fit each other
        return False


def _site(given: tuple[Layout, ...], result: Layout, device: tuple[int, ...]) -> Site:
    return Site(result.local_shape, tuple(layout.start(device) for layout in given))


def _whole(given: tuple[Layout, ...], result: Layout) -> Site:
    return Site(result.shape, tuple((0,) * len(layout.shape) for layout in given))


def _forward_agrees(op: Op, given: tuple[Layout, ...], result: Layout, families: Sequence[Array]) -> bool:
    mesh, out = result.mesh, np.zeros((*result.mesh, *result.local_shape), np.int64)
    for device in devices(mesh):
        shard = op.apply([f[device] for f in families], _site(given, result, device))
        if shard.shape != result.local_shape:
            return False
        out[device] = shard
    values = [denote(layout, f) for layout, f in zip(given, families, strict=True)]
    members = itertools.product(*(range(mesh[a]) for a in result.axes("V")))
    meant = denote(result, out)
    return all(np.array_equal(meant[m], op.apply([v[m] for v in values], _whole(given, result))) for m in members)


def _transpose_agrees(
    op: Op, given: tuple[Layout, ...], result: Layout, families: Sequence[Array], cotangents: str, ct: Array
) -> bool:
    mesh = result.mesh
    values = [denote(layout, f) for layout, f in zip(given, families, strict=True)]
    ct_value = denote(cotangent_of(result, cotangents), ct)
    members = list(itertools.product(*(range(mesh[a]) for a in result.axes("V"))))
    for i, layout in enumerate(given):
        if i in op.constants:
            continue
        gradients = np.zeros_like(families[i])
        for device in devices(mesh):
            shards = [f[device] for f in families]
            gradients[device] = vjp(op, shards, _site(given, result, device), i, ct[device])
        meant = denote(cotangent_of(layout, cotangents), gradients)
        for m in members:
            true = vjp(op, [v[m] for v in values], _whole(given, result), i, ct_value[m])
            if not np.array_equal(meant[m], true):
                return False
    return True


@functools.cache
def sound_results(op: Op, given: tuple[Layout, ...]) -> frozenset[Layout]:
    """Every layout of the result that is right for operands that lie like this."""
    mesh = given[0].mesh
    return frozenset(r for r in layouts(mesh, op.out_shape) if is_sound(op, given, r, cotangents()))


# gradients


def _contract(equation: str) -> Callable[[Sequence[Array], Site], Array]:
    return lambda operands, site: np.asarray(np.einsum(equation, *operands))


@functools.cache
def cotangents() -> str:
    """The state of the gradient for each state in `LETTERS`, derived.

    What distinguishes R from I is what their gradients are, so that is said here and nothing else: the gradient of I
    is a replicated value (already summed), and R may be used with a sharded operand without communication (its gradient
    is left pending). The gradient's gradient lies like the value. The rest follows from ops that are right forwards.
    """
    sharded, varying = Layout((2,), (4,), ((0,),), "S"), Layout((2,), (4,), ((),), "V")
    reduced, unreduced = Layout((2,), (), (), "R"), Layout((2,), (), (), "U")
    multiply = Op("multiply", ((4,), (4,)), (4,), _contract("i,i->i"))
    scale = Op("scale", ((4,), ()), (4,), _contract("i,->i"))
    total = Op("total", ((4,),), (), _contract("i->"))
    witnesses = [
        (multiply, (sharded, sharded), sharded),
        (scale, (sharded, reduced), sharded),
        (total, (sharded,), unreduced),
        (multiply, (varying, varying), varying),
    ]
    found = []
    for word in map("".join, itertools.product(LETTERS, repeat=len(LETTERS))):
        involutive = all(word[LETTERS.index(word[i])] == letter for i, letter in enumerate(LETTERS))
        # Only a sharded gradient has the shape of a sharded value.
        said = involutive and word[0] == "S" and word[LETTERS.index("I")] in "RI"
        if said and all(is_sound(op, given, result, word) for op, given, result in witnesses):
            found.append(word)
    (only,) = found
    return only


# casts


class Cast(NamedTuple):
    """A layout that an operand may be cast to, and what the cast costs."""

    layout: Layout
    dear: int  # moves whose transpose communicates
    free: int


def casts(layout: Layout, others: Sequence[Layout], constant: bool) -> list[Cast]:
    """What an op may make of an operand without being asked: replicated axes change state, forward without sending.

    A cast follows another operand: it goes to a state that one of them has. So R with I stays replicated, although
    I to U, which is free both ways, would be right for linear ops: that pending sum has no reason. Nor R to I, free
    both ways too: an R operand keeps its type. Both are left out on purpose. A new axis on a dim is the minor-most.
    """
    found = {Cast(layout, 0, 0): None}
    for order in itertools.permutations(layout.axes("RI")):
        out = [Cast(layout, 0, 0)]
        for axis in order:
            letter = layout.letters[axis]
            for cast in list(out):
                for to in _places(layout, letter, {other.letters[axis] for other in others}):
                    moved = _with_axis(cast.layout, axis, to)
                    if moved is not None:
                        dear = not constant and grade(letter, "S" if isinstance(to, int) else to) != "free"
                        out.append(Cast(moved, cast.dear + dear, cast.free + (not dear)))
        found.update(dict.fromkeys(out))
    return list(found)


def _places(layout: Layout, letter: str, seen: set[str]) -> list[int | str]:
    dims = range(len(layout.shape)) if "S" in seen else ()
    # A factor beside a sharded or unreduced one needs its gradient left pending, so R may always be asked of I.
    return [*dims, *(to for to in "UV" if to in seen), *("R" if letter == "I" else "")]


def _with_axis(layout: Layout, axis: int, to: int | str) -> Layout | None:
    letters = layout.letters[:axis] + ("S" if isinstance(to, int) else to) + layout.letters[axis + 1 :]
    if isinstance(to, str):
        return layout._replace(letters=letters)
    if layout.local_shape[to] % layout.mesh[axis]:
        return None
    on = tuple((*axes, axis) if d == to else axes for d, axes in enumerate(layout.on))
    return layout._replace(on=on, letters=letters)


class Answer(NamedTuple):
    """A right typing: what each operand is cast to, and how the result lies."""

    operands: tuple[Layout, ...]
    result: Layout


@functools.cache
def answers(op: Op, given: tuple[Layout, ...]) -> frozenset[Answer]:
    """The right typings with the cheapest casts: the fewest that communicate backward, then the fewest at all."""
    choices = [casts(t, [*given[:i], *given[i + 1 :]], i in op.constants) for i, t in enumerate(given)]
    by_cost: dict[tuple[int, int], list[tuple[Layout, ...]]] = {}
    for chosen in itertools.product(*choices):
        cost = sum(c.dear for c in chosen), sum(c.free for c in chosen)
        by_cost.setdefault(cost, []).append(tuple(c.layout for c in chosen))
    for cost in sorted(by_cost):
        found = {Answer(operands, r) for operands in by_cost[cost] for r in sound_results(op, operands)}
        if found:
            return frozenset(found)
    return frozenset()


# moves


def _identity(value: Array, layout: Layout, device: tuple[int, ...]) -> Array:
    return value


def _mask(value: Array, layout: Layout, device: tuple[int, ...]) -> Array:
    return value if device == (0,) else np.zeros_like(value)


def _slice(value: Array, layout: Layout, device: tuple[int, ...]) -> Array:
    return value[layout.part(device)]


def _place(value: Array, layout: Layout, device: tuple[int, ...]) -> Array:
    out = np.zeros(layout.shape, value.dtype)
    width, start = value.shape[0], device[0] * value.shape[0]
    out[start : start + width] = value
    return out


#: Everything that a device can do alone, as a function of its shard, the layout to be made and its place.
LOCAL_MOVES: dict[str, Callable[[Array, Layout, tuple[int, ...]], Array]] = {
    "relabel": _identity,
    "mask": _mask,
    "slice": _slice,
    "place": _place,
}


def _all_to_all(family: Array, layout: Layout) -> Array:
    """Each device keeps its columns of its rows and gets its columns of the others' rows."""
    n = len(family)
    return np.stack([np.concatenate([np.split(rows, n, axis=1)[k] for rows in family]) for k in range(n)])


def _everywhere(value: Array, n: int) -> Array:
    return np.broadcast_to(value, (n, *value.shape))


#: What collectives make of a family over one axis, and how often each sends (n - 1)/n of the whole array around a ring.
COLLECTIVES: dict[str, tuple[Callable[[Array, Layout], Array], int]] = {
    "all-gather": (lambda family, _: _everywhere(np.concatenate(family), len(family)), 1),
    "all-to-all": (_all_to_all, 1),
    "reduce-scatter": (lambda family, _: np.stack(np.split(family.sum(0), len(family))), 1),
    "all-reduce": (lambda family, _: _everywhere(family.sum(0), len(family)), 2),  # a reduce-scatter and an all-gather
}


def _dim0(letter: str, dim: int = 0) -> Layout:
    on = tuple((0,) if letter == "S" and d == dim else () for d in range(2))
    return Layout((2,), (4, 4), on, letter)


@functools.cache
def local_move(src: str, dst: str) -> str | None:
    """The local move from one state to another that keeps the denoted value, or None; ``S`` is sharded on dim 0."""
    a, b = _dim0(src), _dim0(dst)
    family = some_family(a, np.random.default_rng(2))
    for name, move in LOCAL_MOVES.items():
        try:
            moved = np.stack([move(family[device], b, device) for device in devices(a.mesh)])
            if np.array_equal(denote(b, moved), denote(a, family)):
                return name
        except (NoMeaningError, ValueError, IndexError):
            continue
    return None


@functools.cache
def collective(src: str, dst: str) -> tuple[str, int]:
    """The collective that keeps the denoted value and sends least, and its rounds; S to S goes to another dim."""
    a, b = _dim0(src), _dim0(dst, 1 if src == dst else 0)
    family = some_family(a, np.random.default_rng(4))
    found = []
    for name, (move, rounds) in COLLECTIVES.items():
        try:
            if np.array_equal(denote(b, move(family, b)), denote(a, family)):
                found.append((rounds, name))
        except (NoMeaningError, ValueError):
            continue
    rounds, name = min(found)
    return name, rounds


def reinterpretation(src: str, dst: str) -> str | None:
    """The grade of keeping the shards and changing what they denote, from or to varying; None where it is no function.

    It is one if every family of the first state is one of the second, and families that denote the same still do.
    The transpose keeps the shards of the gradient: free if these are families of the gradient's state for sure.
    """
    if (src == "V") == (dst == "V") or not _keeps_shards(src, dst):
        return None
    back = tuple(cotangents()[LETTERS.index(letter)] for letter in (dst, src))
    return "free" if _keeps_shards(*back) else "free forward"


def _keeps_shards(src: str, dst: str) -> bool:
    """Whether every family of ``src``, unchanged, is one of ``dst`` and denotes something that its value decides."""
    rng = np.random.default_rng(3)
    sharded = "S" in (src, dst)
    # A dim that is global where it is sharded is local where it varies.
    a, b = (
        Layout((2,), (4 if letter == "S" or not sharded else 2, 3), ((0,) if letter == "S" else (), ()), letter)
        for letter in (src, dst)
    )
    family = some_family(a, rng)
    try:
        denote(b, family)
    except NoMeaningError:
        return False
    if src == "U":  # another split of the same sum
        other = family + np.stack([np.ones_like(family[0]), -np.ones_like(family[0])])
        return np.array_equal(denote(b, other), denote(b, family))
    return True


def grade(src: str, dst: str) -> str | None:
    """``free``, ``free forward`` or ``communicating``; None where there is no such move."""
    if "V" in (src, dst):
        return reinterpretation(src, dst)
    if src == dst or local_move(src, dst) is None:  # sharded to sharded is another dim
        return "communicating"
    back = tuple(cotangents()[LETTERS.index(letter)] for letter in (dst, src))
    return "free" if local_move(*back) is not None else "free forward"
