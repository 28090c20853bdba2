"""`searchsorted`: a primitive of JAX 0.12, and before it a jitted function that is recognised by its program."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import jax

from shtypes._compat.jaxprs import equations, jaxpr_of
from shtypes._compat.plain_programs import alone, trace_plain

#: The methods by the names of their functions.
_METHODS: Final[Mapping[str, Sequence[str]]] = {
    "_searchsorted_scan_impl": ("scan", "scan_unrolled"),
    "_searchsorted_sort_impl": ("sort",),
    "_searchsorted_compare_all_impl": ("compare_all",),
}


class Search(NamedTuple):
    """The parameters of a search: the dim of the sorted array, and its number of batch dims."""

    side: str
    dimension: int = 0
    batch_dims: int = 0


def search_of(eqn: Any) -> Search | None:
    """The search of an equation, of a sorted array and queries, or None."""
    prim = eqn.params.get("_prim")
    if prim is not None:
        is_search = type(prim).__name__ == "SearchSorted" and type(prim).__module__.startswith("jax.")
        return Search(*(prim.params[key] for key in Search._fields)) if is_search else None
    if eqn.params.get("name") not in _METHODS or len(eqn.invars) != 2 or eqn.invars[0].aval.ndim != 1:
        return None
    avals = tuple(jax.core.ShapedArray(v.aval.shape, v.aval.dtype) for v in eqn.invars)
    return _programs(eqn.params["name"], avals).get(_text(eqn))


def _text(eqn: Any) -> str:
    """The program of a call, without broadcasts of numbers, which differ between releases."""
    return re.sub(r"= (full_like|broadcast_in_dim \S+:).*", "= full", str(jaxpr_of(eqn.params["jaxpr"])))


@functools.lru_cache(maxsize=256)
def _programs(name: str, avals: tuple[Any, ...]) -> Mapping[str, Search]:
    """The programs of searches in one array, as text."""
    programs: dict[str, Search] = {}
    for side, method in itertools.product(("left", "right"), _METHODS[name]):
        f = functools.partial(jax.numpy.searchsorted, side=side, method=method)
        with alone():
            closed, *_ = trace_plain(lambda *xs, f=f: [f(*xs)], avals)
        programs.update((_text(eqn), Search(side)) for eqn in equations(closed) if eqn.params.get("name") == name)
    return programs
