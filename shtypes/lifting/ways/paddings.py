"""Merges pads of what windows read, and crops of their results, into the padding of the windows.

``conv(jnp.pad(x, ...), padding="VALID")`` and ``conv(x, padding=[(3, 3)])[:, :-3]`` have sizes in between that no
devices divide.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from shtypes._compat.in_force import set_at
from shtypes._compat.jaxprs import is_literal, jaxpr_of, literal_value, variables
from shtypes.evaluation.rows.families import ints
from shtypes.lifting.ways.blocks import with_padded_blocks
from shtypes.lifting.ways.choice import CALLS
from shtypes.lifting.ways.moving import cuts_of, kind_of, moves_alone, padding_of
from shtypes.lifting.ways.opened import opened
from shtypes.lifting.ways.uses import Pairs
from shtypes.lifting.ways.windows import CONV, REDUCE_WINDOWS, SCATTER, fill_of, places

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
    """Merges pads of what windows read, and crops of what they alone are read for, into the windows."""
    return _Merging(with_padded_blocks(_with_windows_beside_pads(jaxpr)), *_PADDED, SCATTER).program()


class _Merging(Pairs):
    """Merges pads, windows and crops."""

    def rewritten(self, eqn: Any) -> list[Any]:
        """An equation, or what it and those before it are together."""
        window = self.maker_alone(eqn)
        if window is not None and (cropped := self._cropped(window, eqn)) is not None:
            return [cropped]
        for i, read in enumerate(_reads(eqn)):
            eqn = self._padded(eqn, i, read)
        return [eqn]

    def _pads(self, v: Any, fill: Any) -> dict[int, _Pad] | None:
        """The padding of each dim if a variable is padded with a number, and nothing is removed."""
        pad = self.maker(v)
        if pad is None or pad.primitive.name != "pad" or self._number(pad.invars[1]) != fill:
            return None
        pads = padding_of(pad) or {}
        return pads if min(map(min, pads.values()), default=0) >= 0 else None

    def _number(self, v: Any) -> Any:
        """The number that a scalar is, if it is a literal or a cast of one."""
        cast = self.maker(v)
        if cast is not None and cast.primitive.name == "convert_element_type":
            (v,) = cast.invars
        return literal_value(v) if is_literal(v) else None

    def _padded(self, eqn: Any, i: int, read: _Read) -> Any:
        """Windows of the operand of a pad, where that pads an operand of theirs with what changes no result."""
        name, p, v = eqn.primitive.name, eqn.params, eqn.invars[i]
        pads = self._pads(v, fill_of(eqn))
        if pads is None or set_at(self.maker(v)) != set_at(eqn):
            return eqn
        inner = [pads.pop(d) for d in read.dims]
        if any(map(any, pads.values())) or (name not in (CONV, "reduce_window_sum") and any(gap for *_, gap in inner)):
            return eqn
        old = zip(p["padding"], ints(p[read.dilation]), inner, strict=True)
        padding = [(int(a) + read.sign * low * n, int(b) + read.sign * high * n) for (a, b), n, (low, high, _) in old]
        if _removes(padding):
            return eqn
        dilation = tuple(n * (gap + 1) for n, (*_, gap) in zip(ints(p[read.dilation]), inner, strict=True))
        operands = [self.maker(v).invars[0] if j == i else x for j, x in enumerate(eqn.invars)]
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
        operands = [source, self.maker(x).invars[0]]
        return scatter.replace(invars=operands, outvars=crop.outvars, params=p | {"padding": tuple(padding)})


def _removes(padding: Sequence[tuple[int, int]]) -> bool:
    """Whether some padding is negative.

    JAX cannot transpose pools with it, and XLA's convolutions on CPUs read beyond their operand for some (jaxlib 0.10).
    """
    return bool(np.min(padding, initial=0) < 0)
