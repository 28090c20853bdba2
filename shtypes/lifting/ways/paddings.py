"""Merges pads of what windows read, and crops of their results, into the padding of the windows.

``conv(jnp.pad(x, ...), padding="VALID")`` and ``conv(x, padding=[(3, 3)])[:, :-3]`` have sizes in between that no
devices divide.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from shtypes._compat.in_force import set_at
from shtypes._compat.jaxprs import is_literal, literal_value, with_equations
from shtypes.evaluation.rows.families import ints
from shtypes.evaluation.undo_ravel import used
from shtypes.lifting.ways.moving import is_mark, moves_alone
from shtypes.lifting.ways.opened import opened
from shtypes.lifting.ways.windows import CONV, REDUCE_WINDOWS, SCATTER, fill_of

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


def with_paddings(jaxpr: Any) -> Any:
    """Merges pads of what windows read, and crops of what they alone are read for, into the windows."""
    windows = [e for e in jaxpr.eqns if e.primitive.name in (*_PADDED, SCATTER)]
    if not windows:
        return jaxpr
    flat = with_moves_opened(jaxpr, windows)
    merging = _Merging(flat)
    for eqn in flat.eqns:
        merging.add(eqn)
    eqns = used(merging.eqns, jaxpr.outvars)
    return with_equations(jaxpr, eqns, jaxpr.outvars) if len(eqns) < len(flat.eqns) else jaxpr


class _Merging:
    """Merges the equations of a program, one after the other."""

    def __init__(self, jaxpr: Any) -> None:
        self.eqns: list[Any] = []
        self._made: dict[Any, int] = {}  # by variable, the number of the equation that makes it
        self._marked = marked(jaxpr)
        self._count = readers(jaxpr)

    def _maker(self, v: Any) -> Any:
        if is_literal(v) or (x := self._marked.get(v, v)) not in self._made:
            return None
        return self.eqns[self._made[x]]

    def add(self, eqn: Any) -> None:
        """Adds an equation, or what it and an earlier one are together."""
        x = eqn.invars[0] if eqn.invars else None
        maker = self._maker(x)
        window = self._cropped(maker, eqn) if maker is not None and set_at(maker) == set_at(eqn) else None
        if window is not None and self._count[self._marked.get(x, x)] == 1:
            number = self._made[self._marked.get(x, x)]
            self.eqns[number] = window
        else:
            number = len(self.eqns)
            for i, read in enumerate(_reads(eqn)):
                eqn = self._padded(eqn, i, read)
            self.eqns.append(eqn)
        self._made.update(dict.fromkeys(eqn.outvars, number))

    def _pads(self, v: Any, fill: Any) -> dict[int, _Pad] | None:
        """The padding of each dim if a variable is padded with a number, and nothing is removed."""
        pad = self._maker(v)
        if pad is None or pad.primitive.name != "pad" or self._number(pad.invars[1]) != fill:
            return None
        pads = dict(enumerate(map(pad_of, pad.params["padding_config"])))
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


def with_moves_opened(jaxpr: Any, beside: Sequence[Any]) -> Any:
    """The program with the equations of calls that move what some equations read, or what they compute."""
    of = marked(jaxpr)
    near = {of.get(v, v) for e in beside for v in (*variables(e.invars), *e.outvars)}

    def opens(eqn: Any, _: bool) -> bool:
        operands = {of.get(v, v) for v in variables(eqn.invars)}
        return moves_alone(eqn) and not near.isdisjoint(operands.union(eqn.outvars))

    return opened(jaxpr, opens)


def marked(jaxpr: Any) -> dict[Any, Any]:
    """The variables that marks of `shtypes suggest --patch` name, and what they name."""
    of: dict[Any, Any] = {}
    for eqn in jaxpr.eqns:
        if is_mark(eqn) and not is_literal(eqn.invars[0]):
            of[eqn.outvars[0]] = of.get(eqn.invars[0], eqn.invars[0])
    return of


def readers(jaxpr: Any) -> collections.Counter[Any]:
    """How often each variable is read, whatever marks it."""
    of = marked(jaxpr)
    read = [v for e in jaxpr.eqns if of.keys().isdisjoint(e.outvars) for v in e.invars]
    return collections.Counter(of.get(v, v) for v in variables([*read, *jaxpr.outvars]))


def variables(values: Sequence[Any]) -> list[Any]:
    """Those of values that are no literals."""
    return [v for v in values if not is_literal(v)]


def cuts_of(crop: Any) -> dict[int, _Pad] | None:
    """How many elements a slice or pad removes at the ends of each dim; None if it does something else."""
    p, shape = crop.params, crop.invars[0].aval.shape
    if crop.primitive.name == "slice" and all(n == 1 for n in p["strides"] or ()):
        pads = [(-int(a), int(b) - n, 0) for a, b, n in zip(p["start_indices"], p["limit_indices"], shape, strict=True)]
    elif crop.primitive.name == "pad":
        pads = list(map(pad_of, p["padding_config"]))
    else:
        return None
    removes = all(low <= 0 and high <= 0 and not gap for low, high, gap in pads)
    return {d: (-low, -high, 0) for d, (low, high, _) in enumerate(pads)} if removes else None


def pad_of(config: Any) -> _Pad:
    """The padding of a dim as integers."""
    low, high, gap = map(int, config)
    return low, high, gap
