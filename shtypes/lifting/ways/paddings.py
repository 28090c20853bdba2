"""Merges pads of what windows read, and crops of their results, into the padding of the windows.

``conv(jnp.pad(x, ...), padding="VALID")`` and ``conv(x, padding=[(3, 3)])[:, :-3]`` have sizes in between that no
devices divide. So has ``jnp.pad(x, 64).reshape(-1, 64)``, as attention to neighbouring blocks is written, and not
``jnp.pad(x.reshape(-1, 64), 1)``: whole blocks are padded after they are split, and cropped before they are merged.
"""

from __future__ import annotations

import collections
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from jax import lax

from shtypes._compat.in_force import set_at
from shtypes._compat.jaxprs import is_literal, jaxpr_of, literal_value, variables, with_equations
from shtypes._compat.plain_programs import bind_in_program
from shtypes.evaluation.rows.families import ints
from shtypes.evaluation.undo_ravel import keeps_order, used
from shtypes.lifting.ways.choice import CALLS
from shtypes.lifting.ways.moving import cuts_of, is_mark, kind_of, moves_alone, padding_of
from shtypes.lifting.ways.programs import equations_of, opened
from shtypes.lifting.ways.windows import CONV, REDUCE_WINDOWS, SCATTER, fill_of, places

#: The primitives by which dims are split, merged and turned, and dims of size 1 come and go.
_RESHAPES: Final = ("reshape", "squeeze", "broadcast_in_dim", "reduce_sum", "transpose")
#: Windows whose operands may be padded.
_PADDED: Final = (CONV, *REDUCE_WINDOWS)
#: The low and high padding of a dim, and the gap between its elements.
_Pad = tuple[int, int, int]


class _Read(NamedTuple):
    """The dims of an operand along which windows move, in the order of the parameters, of which one dilates them."""

    dims: Sequence[int]
    dilation: str
    sign: int = 1  # of the padding by that of the operand


def _reads(eqn: Any) -> list[_Read]:
    """How windows read operands that may be padded: what pads a kernel shortens the padding."""
    if eqn.primitive.name == CONV:
        numbers = eqn.params["dimension_numbers"]
        return [_Read(numbers.lhs_spec[2:], "lhs_dilation"), _Read(numbers.rhs_spec[2:], "rhs_dilation", -1)]
    return [_Read(range(eqn.outvars[0].aval.ndim), "base_dilation")] if eqn.primitive.name in _PADDED else []


@functools.lru_cache(maxsize=256)
def _has_windows(jaxpr: Any) -> bool:
    calls = (jaxpr_of(e.params["jaxpr"]) for e in jaxpr.eqns if e.primitive.name in CALLS)
    return any(map(places, jaxpr.eqns)) or any(map(_has_windows, calls))


def _pads(eqn: Any) -> bool:
    """Whether an equation pads or crops, or is a call that moves elements by that alone."""
    if moves_alone(eqn):
        return all(_pads(e) for e in jaxpr_of(eqn.params["jaxpr"]).eqns if kind_of(e))
    return any(map(any, (padding_of(eqn) or {}).values()))


def _with_windows_beside_pads(jaxpr: Any) -> Any:
    """Opens calls with windows of which an operand is padded or a result is cropped, as `jnp.convolve` and a slice."""
    near = {v for e in filter(_pads, jaxpr.eqns) for v in (*variables(e.invars), *e.outvars)}
    calls = [e for e in jaxpr.eqns if e.primitive.name in CALLS and _has_windows(jaxpr_of(e.params["jaxpr"]))]
    beside = {id(e) for e in calls if not near.isdisjoint((*variables(e.invars), *e.outvars))}
    of_others = {id(e) for e in calls} - beside

    def opens(eqn: Any, _: bool) -> bool:
        return id(eqn) not in of_others and _has_windows(jaxpr_of(eqn.params["jaxpr"]))

    return opened(jaxpr, opens) if beside else jaxpr


def with_paddings(jaxpr: Any) -> Any:
    """Merges pads of what windows read, and crops of what they alone are read for, into the windows.

    Crops sums before they are added: in gradients of what several parts were taken of, these are padded and added.
    """
    return _Rewriting(_with_windows_beside_pads(jaxpr)).program()


class _Rewriting:
    """Rewrites the equations of a program, one after the other, with those that make what they read.

    Calls that move what these equations read, or what they compute, are opened. Marks of expressions do not count.
    """

    def __init__(self, jaxpr: Any) -> None:
        beside = [e for e in jaxpr.eqns if e.primitive.name in (*_PADDED, SCATTER, *_RESHAPES, "add_any")]
        of = _marked(jaxpr.eqns)
        near = {of.get(v, v) for e in beside for v in (*variables(e.invars), *e.outvars)}

        def opens(eqn: Any, _: bool) -> bool:
            operands = {of.get(v, v) for v in variables(eqn.invars)}
            return moves_alone(eqn) and not near.isdisjoint(operands.union(eqn.outvars))

        self._jaxpr, self._eqns = jaxpr, opened(jaxpr, opens).eqns if beside else ()
        self._of = _marked(self._eqns)
        read = [v for e in self._eqns if self._of.keys().isdisjoint(e.outvars) for v in e.invars]
        self._count = collections.Counter(self._of.get(v, v) for v in variables([*read, *jaxpr.outvars]))
        self._made: dict[Any, Any] = {}  # by variable, the equation that makes it

    def program(self) -> Any:
        """The rewritten program; the program itself if nothing changed."""
        eqns: list[Any] = []
        for eqn in self._eqns:
            new = self._rewritten(eqn)
            eqns += new
            self._made.update((v, e) for e in new for v in e.outvars)
        left = used(eqns, self._jaxpr.outvars)
        is_same = len(left) == len(self._eqns) and all(a is b for a, b in zip(left, self._eqns, strict=True))
        return self._jaxpr if is_same else with_equations(self._jaxpr, left, self._jaxpr.outvars)

    def _maker(self, v: Any) -> Any:
        """The equation that makes a variable, or what that marks; None of others."""
        return None if is_literal(v) else self._made.get(self._of.get(v, v))

    def _maker_alone(self, eqn: Any) -> Any:
        """The equation that makes the first operand, with the same settings and for this equation alone; else None."""
        maker = self._maker(eqn.invars[0]) if eqn.invars else None
        alone = maker is not None and self._count[self._of.get(eqn.invars[0], eqn.invars[0])] == 1
        return maker if alone and set_at(maker) == set_at(eqn) else None

    def _rewritten(self, eqn: Any) -> list[Any]:
        """An equation, or what it and those before it are together, or in the other order."""
        first = self._maker_alone(eqn)
        if first is not None and (cropped := self._cropped(first, eqn)) is not None:
            return [cropped]
        swapped = None if first is None else _swapped(first, eqn) or _of_terms(first, eqn)
        if swapped is not None:
            return [y for e in swapped for y in self._rewritten(e)]
        for i, read in enumerate(_reads(eqn)):
            eqn = self._padded(eqn, i, read)
        return [eqn]

    def _pads(self, v: Any, fill: Any) -> dict[int, _Pad] | None:
        """The padding of each dim if a variable is padded with a number, and nothing is removed."""
        pad = self._maker(v)
        if pad is None or pad.primitive.name != "pad" or self._number(pad.invars[1]) != fill:
            return None
        pads = padding_of(pad) or {}
        return pads if min(map(min, pads.values()), default=0) >= 0 else None

    def _number(self, v: Any) -> Any:
        """The number that a scalar is, if it is a literal or a cast of one."""
        cast = self._maker(v)
        if cast is not None and cast.primitive.name == "convert_element_type":
            (v,) = cast.invars
        return literal_value(v) if is_literal(v) else None

    def _padded(self, eqn: Any, i: int, read: _Read) -> Any:
        """Windows of the operand of a pad, where that pads an operand of theirs with what changes no result."""
        name, p, v = eqn.primitive.name, eqn.params, eqn.invars[i]
        pads = self._pads(v, fill_of(eqn))
        if pads is None or set_at(self._maker(v)) != set_at(eqn):
            return eqn
        inner = [pads.pop(d) for d in read.dims]
        if any(map(any, pads.values())) or (name not in (CONV, "reduce_window_sum") and any(gap for *_, gap in inner)):
            return eqn
        old = zip(p["padding"], ints(p[read.dilation]), inner, strict=True)
        padding = [(int(a) + read.sign * low * n, int(b) + read.sign * high * n) for (a, b), n, (low, high, _) in old]
        if _removes(padding):
            return eqn
        dilation = tuple(n * (gap + 1) for n, (*_, gap) in zip(ints(p[read.dilation]), inner, strict=True))
        operands = [self._maker(v).invars[0] if j == i else x for j, x in enumerate(eqn.invars)]
        return eqn.replace(invars=operands, params=p | {"padding": tuple(padding), read.dilation: dilation})

    def _cropped(self, eqn: Any, crop: Any) -> Any:
        """Windows without the results that a slice or pad removes; None if it does something else."""
        name, cuts = eqn.primitive.name, cuts_of(crop)
        if cuts is None or name not in (*_PADDED, SCATTER):
            return None
        p = eqn.params
        if name == SCATTER:
            return self._of_unpadded(eqn, crop, cuts)
        inner = [cuts.pop(d) for d in (p["dimension_numbers"].out_spec[2:] if name == CONV else list(cuts))]
        old = zip(p["padding"], ints(p["window_strides"]), inner, strict=True)
        padding = tuple((int(a) - low * n, int(b) - high * n) for (a, b), n, (low, high, _) in old)
        if any(map(any, cuts.values())) or _removes(padding):
            return None
        return eqn.replace(outvars=crop.outvars, params=p | {"padding": padding})

    def _of_unpadded(self, scatter: Any, crop: Any, cuts: Mapping[int, _Pad]) -> Any:
        """The gradient of a pool of a padded operand where that is cropped to the operand; None if it is not."""
        (source, x), p = scatter.invars, scatter.params
        if not any(map(any, cuts.values())):
            return scatter.replace(outvars=crop.outvars)
        if self._pads(x, fill_of(scatter)) != cuts:
            return None
        padding = [(int(a) + cuts[d][0], int(b) + cuts[d][1]) for d, (a, b) in enumerate(p["padding"])]
        operands = [source, self._maker(x).invars[0]]
        return scatter.replace(invars=operands, outvars=crop.outvars, params=p | {"padding": tuple(padding)})


def _removes(padding: Sequence[tuple[int, int]]) -> bool:
    """Whether some padding is negative.

    JAX cannot transpose pools with it, and XLA's convolutions on CPUs read beyond their operand for some (jaxlib 0.10).
    """
    return bool(np.min(padding, initial=0) < 0)


def _of_terms(added: Any, crop: Any) -> list[Any] | None:
    """The sum of the cropped terms of a sum; None if these are not such."""
    cuts = cuts_of(crop) or {}
    if added.primitive.name != "add_any" or not any(map(any, cuts.values())):
        return None

    def cropped(*terms: Any) -> Any:
        ends = [(cuts[d][0], n - cuts[d][1]) for d, n in enumerate(terms[0].shape)]
        return bind_in_program(added, [lax.slice(x, *zip(*ends, strict=True)) for x in terms])

    return equations_of(cropped, added.invars, crop, crop.outvars)[0]


def _swapped(first: Any, second: Any) -> list[Any] | None:
    """The other order of a pad and a reshape of blocks, or a transpose; None if they are not such."""
    splits = _reshapes(second) and first.primitive.name == "pad"
    if not splits and (not _reshapes(first) or second.primitive.name not in ("pad", "slice")):
        return None
    reshape, pad = (second, first) if splits else (first, second)
    pads = padding_of(pad) or {}
    moved = [d for d, each in pads.items() if any(each)]
    flat, blocks = (reshape.invars[0], reshape.outvars[0]) if splits else (reshape.outvars[0], reshape.invars[0])
    if len(moved) != 1 or is_literal(pad.invars[0]):
        return None
    low, high, gap = pads[moved[0]]
    turn, (d,) = reshape.params.get("permutation"), moved
    found = (turn.index(d) if splits else turn[d], 1) if turn else _block(flat.aval.shape, blocks.aval.shape, d)
    if found is None or gap or low % found[1] or high % found[1]:
        return None
    (e, size), shape = found, second.outvars[0].aval.shape
    low, high = low // size, high // size

    def swapped(x: Any, *fill: Any) -> Any:
        if splits:
            sizes = [n - (low + high if d == e else 0) for d, n in enumerate(blocks.aval.shape)]
            x = x.transpose(turn) if turn else x.reshape(sizes)
        config = [(low, high, 0) if d == e else (0, 0, 0) for d in range(x.ndim)]
        y = lax.pad(x, fill[0], config) if fill else lax.slice_in_dim(x, -low, x.shape[e] + high, axis=e)
        return [y if splits else y.transpose(turn) if turn else y.reshape(shape)]

    return equations_of(swapped, [first.invars[0], *pad.invars[1:]], second, second.outvars)[0]


def _reshapes(eqn: Any) -> bool:
    """Whether an equation changes the shape alone, or the order of dims."""
    name = eqn.primitive.name
    if name in ("broadcast_in_dim", "reduce_sum"):
        return bool(eqn.outvars[0].aval.size == eqn.invars[0].aval.size)
    return name in ("squeeze", "transpose") or (name == "reshape" and keeps_order(eqn))


def _block(flat: Sequence[int], blocks: Sequence[int], d: int) -> tuple[int, int] | None:
    """The dim of the blocks into which a dim is split, and the size of each; None if there is none."""
    before = math.prod(flat[:d])
    for e in range(len(blocks)):
        if math.prod(blocks[:e]) == before and blocks[e] > 1 and flat[d] % blocks[e] == 0:
            inner = next((k for k in range(e + 1, len(blocks) + 1) if math.prod(blocks[e:k]) == flat[d]), None)
            return None if inner is None else (e, flat[d] // blocks[e])
    return None


def _marked(eqns: Sequence[Any]) -> dict[Any, Any]:
    """The variables that marks of `shtypes suggest --patch` name, and what they name."""
    of: dict[Any, Any] = {}
    for eqn in eqns:
        if is_mark(eqn) and not is_literal(eqn.invars[0]):
            of[eqn.outvars[0]] = of.get(eqn.invars[0], eqn.invars[0])
    return of
