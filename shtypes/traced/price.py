"""What all of a call communicates, forward and backward, as the price of a fix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from shtypes.plans.moves import in_words
from shtypes.primitives.conversions import abstract_array
from shtypes.traced.ledger import Entry, ledger
from shtypes.types import ShType


def priced(f: Callable[..., Any], types: Sequence[ShType]) -> tuple[str, str, int, int]:
    """What a function communicates: forward and backward, in words and in bytes per device."""
    chosen = [i for i, t in enumerate(types) if t.differentiable]
    outs = jax.tree.leaves(jax.eval_shape(f, *map(abstract_array, types)))
    kept = [i for i, t in enumerate(outs) if isinstance(t, ShType) and t.differentiable]

    def both(cts: Any, *xs: Any) -> Any:
        def of_chosen(*values: Any) -> Any:
            merged = dict(zip(chosen, values, strict=True))
            found = jax.tree.leaves(f(*[merged.get(i, x) for i, x in enumerate(xs)]))
            return [found[i] for i in kept]

        ys, pull = jax.vjp(of_chosen, *[xs[i] for i in chosen])
        return ys, pull(cts)

    if chosen and kept:
        book = ledger(both, [abstract_array(outs[i].cotangent()) for i in kept], *types)
    else:
        book = ledger(f, *types)
    forward = [e for e in book.entries if e.direction == "forward"]
    backward = [e for e in book.entries if e.direction != "forward"]
    return _words(forward), _words(backward), sum(e.bytes for e in forward), sum(e.bytes for e in backward)


def _words(entries: Sequence[Entry]) -> str:
    found = [in_words(e.kind, e.axes) for e in entries]
    counted = dict.fromkeys(sorted(found))
    return " and ".join(w if found.count(w) == 1 else f"{found.count(w)} times {w}" for w in counted)
