"""Which types of a program's result need no communication, found by running the program on one device.

The oracle knows nothing of rules or ops. It changes single elements of the operands and sees which elements of the
result depend on them, and which pairs of changes do not add up. From that alone it follows who could compute what:

- A device can compute its slice of a sharded result if nothing outside its own pieces of the operands moves it.
- Devices can compute terms of an unreduced result if no two pieces that different devices hold interact.
- A replicated result needs that nothing moves it which not all devices hold.

A *piece* is a slice of a sharded operand or one device's term of an unreduced one. The backward pass is judged in the
same way: the gradient of each operand is a function of the operands and of the result's cotangent, and has a type too.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shtypes.types import dtypes
from tests.meaning import Array, Layout, layouts
from tests.peers.programs import Everything, Program

#: The state of a gradient for each state of a value: what sets R apart from I (tests/meaning.py derives it).
COTANGENT = {"S": "S", "R": "U", "I": "I", "U": "R"}
_POINTS = 9
_SMALL = 1e-6  # a cast to f32 rounds by less, a change moves by more


class Structure(NamedTuple):
    """What a function's results depend on, element by element; operands are laid out flat, one after the other.

    Attributes:
        moves: ``[i, r]``: whether element ``i`` of the operands moves element ``r`` of the results.
        together: ``[i, k, r]``: whether changes of ``i`` and ``k`` do not add up in ``r``.
        out_shape: The shape of the program's result.
        summable: Whether the result may be a sum: no boolean.
    """

    moves: Array
    together: Array
    out_shape: tuple[int, ...]
    summable: bool


class _Exact(Everything):
    """Without the rounding of a cast to a narrower float."""

    @staticmethod
    def astype(x: Any, dtype: Any, **kwargs: Any) -> Any:
        to = dtypes.to_numpy(dtypes.from_any(dtype))
        both_float = jnp.issubdtype(x.dtype, jnp.floating) and jnp.issubdtype(to, jnp.floating)
        return x if both_float else x.astype(to)


EXACT = _Exact()


@functools.cache
def structure(program: Program) -> Structure:
    """The structure of a program's value and gradients, as one function of its operands and of a cotangent.

    Found by differences between random points, in double precision.
    """
    with jax.enable_x64(True):
        arrays = [jnp.asarray(_wide(x)) for x in program.arrays]
        f = functools.partial(program.fn, EXACT)
        out = jax.eval_shape(f, *arrays)
        differentiated = program.differentiated
        if differentiated:
            arrays.append(jnp.asarray(np.ones(out.shape, out.dtype)))
        highs = [v.high for v in program.operands] + [0]

        def results(*given: Any) -> Any:
            if not differentiated:
                return _flat(f(*given))

            def of_floats(*floats: Any) -> Any:
                merged = list(given[:-1])
                for i, x in zip(differentiated, floats, strict=True):
                    merged[i] = x
                return f(*merged)

            value, back = jax.vjp(of_floats, *[given[i] for i in differentiated])
            return jnp.concatenate([_flat(x) for x in (value, *back(given[-1].astype(value.dtype)))])

        moves, together = _differences(results, arrays, highs)
    return Structure(moves, together, tuple(out.shape), out.dtype != bool)


def _wide(x: Any) -> Any:
    if np.iscomplexobj(x):
        return np.asarray(x, np.complex128)
    return np.asarray(x, np.float64) if jnp.issubdtype(x.dtype, jnp.floating) else x


def _flat(x: Any) -> Any:
    x = jnp.ravel(x)
    return x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(jnp.float64)


def _differences(f: Any, arrays: Sequence[Any], highs: Sequence[int]) -> tuple[Array, Array]:
    total = sum(x.size for x in arrays)
    lower = np.stack(np.tril_indices(total), 1)
    alone = np.arange(total)
    none = np.full(total, -1)
    jobs = np.concatenate([[[-1, -1]], np.stack([alone, none], 1), np.stack([none, alone], 1), lower])

    def changed(point: Any, first: Any, second: Any, job: Any) -> Any:
        """The results with one element of the operands changed, or two, or one twice."""
        given, start = [], 0
        for x, d, e, high in zip(point, first, second, highs, strict=False):
            at = (jnp.arange(x.size) + start).reshape(x.shape)
            start += x.size
            one, two = at == job[0], at == job[1]
            if x.dtype == bool:
                given.append(x ^ one ^ two)
            else:
                moved = x + jnp.where(one, d, 0).astype(x.dtype) + jnp.where(two, e, 0).astype(x.dtype)
                given.append(moved % high if high else moved)
        return f(*given)

    run = jax.jit(jax.vmap(changed, (None, None, None, 0)), compiler_options={"xla_backend_optimization_level": 0})
    moves: Any = False
    together: Any = False
    for seed in range(_POINTS):
        point, first, second = (_point(arrays, highs, 3 * seed + n, seed % 3 if n == 0 else 0) for n in range(3))
        found = np.asarray(run(point, first, second, jobs))
        found = np.where(np.isfinite(found), found, np.nan)  # which moves nothing
        base, ones, twos, both = (
            found[0],
            found[1 : total + 1],
            found[total + 1 : 2 * total + 1],
            found[2 * total + 1 :],
        )
        scale = float(np.nanmax(np.abs(found), initial=1.0))
        moves = moves | (np.abs(ones - base) > _SMALL * scale) | (np.abs(twos - base) > _SMALL * scale)
        rest = both - ones[lower[:, 0]] - twos[lower[:, 1]] + base
        cross = np.zeros((total, total, base.size), bool)
        cross[lower[:, 0], lower[:, 1]] = np.abs(rest) > _SMALL * scale
        together = together | cross | cross.transpose(1, 0, 2)
    return moves, together


def _point(arrays: Sequence[Any], highs: Sequence[int], seed: int, kind: int) -> list[Any]:
    """Values, or changes of values. Points of kind 1 have ties, those of kind 2 are negative but for a few."""
    rng = np.random.default_rng(seed)
    out: list[Any] = []
    for x, high in zip(arrays, highs, strict=False):
        if jnp.issubdtype(x.dtype, jnp.integer):
            sampled = rng.integers(0, high or 9, x.shape)
            out.append(jnp.asarray((sampled + seed) % high if high else sampled - 4, x.dtype))
        elif x.dtype == bool:
            out.append(jnp.asarray(rng.random(x.shape) < (0.5, 0.04, 0.96)[kind]))
        else:
            sampled = rng.integers(-1, 2, x.shape) if kind == 1 else rng.standard_normal(x.shape) - kind
            out.append(
                jnp.asarray(sampled + 1j * rng.standard_normal(x.shape) if np.iscomplexobj(x) else sampled, x.dtype)
            )
    return out


# who could compute what

_ALL, _TERM = -1, -2  # a piece that every device holds; a term of a pending sum


def _places(layout: Layout) -> Array:
    """``[axis, element]``: which device along an axis holds an element, if not all do."""
    count = math.prod(layout.shape)
    where = np.indices(layout.shape).reshape(len(layout.shape), count)
    out = np.full((len(layout.mesh), count), _ALL)
    for axis in layout.axes("U"):
        out[axis] = _TERM
    for d, axes in enumerate(layout.on):
        step = layout.shape[d]
        rest = where[d]
        for axis in axes:
            step //= layout.mesh[axis]
            out[axis], rest = rest // step, rest % step
    return out


def cotangent(layout: Layout) -> Layout:
    """The layout of gradients."""
    return layout._replace(letters="".join(COTANGENT[c] for c in layout.letters))


def _local(part: Structure, rows: slice, given: Sequence[Layout], result: Layout) -> bool:
    """Whether devices that hold operands like this can compute some results, ``rows``, of this layout."""
    held = np.concatenate([_places(layout) for layout in given], 1)
    wanted = _places(result)
    count = held.shape[1]
    outside = np.zeros((count, wanted.shape[1]), bool)
    apart = np.zeros((count, count), bool)
    for axis, letter in enumerate(result.letters):
        own = held[axis]
        if letter == "U":
            differ = (own[:, None] != own) | (own[:, None] == _TERM)
            apart |= differ & (own[:, None] != _ALL) & (own != _ALL)
        elif letter == "S":
            outside |= (own[:, None] != _ALL) & (own[:, None] != wanted[axis])
        else:
            outside |= (own != _ALL)[:, None]
    if (part.moves[:count, rows] & outside).any():
        return False
    return not apart.any() or not part.together[:count, :count, rows][apart].any()


def forward_is_local(program: Program, given: Sequence[Layout], result: Layout) -> bool:
    """Whether the result can be computed in this layout without communication."""
    part = structure(program)
    return _local(part, slice(0, math.prod(part.out_shape)), given, result)


def backward_is_local(program: Program, given: Sequence[Layout], result: Layout) -> bool:
    """Whether every gradient can be computed in the layout that its operand asks for, from the result's cotangent."""
    part = structure(program)
    start = math.prod(part.out_shape)
    for i in program.differentiated:
        rows = slice(start, start + math.prod(given[i].shape))
        if not _local(part, rows, [*given, cotangent(result)], cotangent(given[i])):
            return False
        start = rows.stop
    return True


def free_results(program: Program, given: Sequence[Layout]) -> list[Layout]:
    """The layouts of the result that need no communication in either direction."""
    part = structure(program)
    states = "SRIU" if part.summable else "SRI"  # nothing adds up to a boolean
    return [
        r
        for r in layouts(given[0].mesh, part.out_shape, states)
        if forward_is_local(program, given, r) and backward_is_local(program, given, r)
    ]


def is_right(program: Program, given: Sequence[Layout], result: Layout) -> bool:
    """Whether a result of this layout is right, if gradients of invariant operands may be reduced by communicating."""
    reduced = [t._replace(letters=t.letters.replace("I", "R")) for t in given]
    return forward_is_local(program, given, result) and backward_is_local(program, reduced, result)
