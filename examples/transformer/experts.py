"""A mixture of experts in the place of an MLP, its experts on other devices than its tokens.

A router scores all experts for each token; the token goes to the few that it likes best, and what they make of it is
added, weighted by their scores (Lepikhin et al. 2020, arXiv:2006.16668). There are two kinds:

``capacity``  In each group of tokens an expert has a fixed number of places, ``c k / E`` of the group's tokens, first
              come first served, first choices before second ones. Who finds no place is left out there. A group is a
              part of one sequence, the same in every layout, and so are the tokens that are left out.
``dropless``  Each token meets all its experts. The rows of each expert lie side by side, in a product of runs of rows
              of any lengths (Gale et al. 2022, arXiv:2211.15841).

What a layer sends, in each of its P devices along the axes of ``expert``, for T tokens of ``hidden`` features that the
device has, in a dtype of B bytes, with k experts chosen of E, and capacity factor c:

========  ===================================  ===============================  =========================
kind      forward                              backward                         each sends
========  ===================================  ===============================  =========================
capacity  all-to-all of places to the experts  all-to-all of gradients, to      ``c k T hidden B (P-1)/P``
          and back                             the experts and back
dropless  all-gather of tokens, and            all-gather of gradients, and     ``T hidden B (P-1)``
          reduce-scatter of their sums         reduce-scatter of their sums
========  ===================================  ===============================  =========================

There ``c k T`` is rounded up to whole places; dropless, only the tokens are sent in the dtype, and B is 4 for the other
three: sums over devices are f32, and so are gradients of sums. A checkpoint that runs the layer again sends again, both
all-to-alls or the gather. Gradients of experts are pending sums over the axes of ``batch`` and ``seq``, but for theirs.
Devices that share an expert, along the axes of ``inner``, have the same tokens, and each sends them; their terms of its
results go back as they are, and are added at the end of the block.

Why dropless is no all-to-all: no shape depends on scores, so an all-to-all that drops nothing has room for all T tokens
from each device to each other one, which is what a gather sends; with room for each expert it is E / P times as much.
`sh.lax.ragged_all_to_all` is told sizes when it runs, and sends ``k T hidden B (P-1)/P`` where choices are even, into
buffers for the worst case; XLA has none for the CPU. So dropless sends ``P / (c k)`` times what capacity does, which is
little more on few devices, and its products have ``min(k, E / P) P T`` rows, of which ``k T`` are used on average.
"""

from __future__ import annotations

import math
from typing import Any

import shtypes as sh

Tree = Any

#: The dims of the weights of a layer. ``features`` is ``hidden`` where masters lie otherwise, ``score`` is
#: ``expert`` where no axis shards it: each device scores all experts for its own tokens.
WEIGHTS: dict[str, str] = {
    "router": "[hidden, score]",
    "gate": "[expert, features, inner]",
    "up": "[expert, features, inner]",
    "down": "[expert, inner, features]",
}


def routed(x: Any, router: Any, chosen: int) -> tuple[Any, Any, Any]:
    """Who goes where, in f32. Sends nothing.

    Args:
        x (batch, groups, tokens, hidden): Tokens.
        router (hidden, experts): Sharded over no axis that shards ``x``.
        chosen: How many experts take a token.

    Returns:
        The experts of each token, the best first, i32[batch, groups, tokens, chosen]; their weights, of sum 1,
        f32[batch, groups, tokens, chosen]; and how unevenly tokens are spread, f32[]: ``E sum_e f_e p_e`` in the mean
        of all groups, with f the part of the choices that fell on an expert and p the mean of its probability (Fedus et
        al. 2021, arXiv:2101.03961, eq. 4). It is 1 where all experts are alike. The mean is a pending sum over the axes
        of the tokens, as a loss is, so it counts once, whatever else has copies.
    """
    p = sh.softmax(sh.einsum("bgth,he->bgte", x.astype("f32"), router.astype("f32")), -1)
    best, choice = sh.top_k(p, chosen)
    count = sh.sum(sh.one_hot(choice, p.shape[-1]), (2, 3))
    uneven = sh.einsum("bge,bge->bg", count / (x.shape[2] * chosen), sh.mean(p, 2)) * p.shape[-1]
    return choice, best / sh.sum(best, -1, keepdims=True), sh.mean(uneven)


def laid(x: Any, *dims: tuple[str, ...]) -> Any:
    """A value with these axes on its first dims, the others whole; a sum that is pending stays so."""
    t = sh.typeof(x)
    sums = ",".join(a for a in t.mesh.axis_names if t.state(a) is sh.State.UNREDUCED)
    text = ", ".join([f"_@({','.join(axes)})" for axes in dims] + ["_"] * (x.ndim - len(dims)))
    return sh.reshard(x, f"[{text}]{f'{{U:({sums})}}' if sums else ''}")


def without(axes: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...]:
    """Axes but for others."""
    return tuple(a for a in axes if a not in others)


@sh.no_comm
def places(choice: Any, experts: int, room: int) -> tuple[Any, Any, Any, Any]:
    """Who has which place, in each group by itself. Sends nothing.

    Args:
        choice (batch, groups, choices): Experts, in the order in which they are asked.
        experts: How many there are.
        room: How many places each has.

    Returns:
        The choice that has a place, and whether one has, i32 and bool[batch, groups, experts * room]; the place of each
        choice, and whether it has one, i32 and bool[batch, groups, choices].
    """
    order = sh.argsort(choice, -1, stable=True)
    count = sh.sum(sh.one_hot(choice, experts, dtype="i32"), 2)
    start, nth = sh.cumsum(count, 2) - count, sh.arange(room)
    flat = (*choice.shape[:2], experts * room)
    taken = sh.take_along_axis(order, sh.reshape(start[..., None] + nth, flat), 2, mode="clip")
    rank = sh.argsort(order, -1) - sh.take_along_axis(start, choice, 2)
    return taken, sh.reshape(nth < count[..., None], flat), choice * room + sh.minimum(rank, room - 1), rank < room


def with_capacity(x: Any, w: Tree, choice: Any, weight: Any, capacity: float) -> Any:
    """What the experts make of the tokens for which they have a place. Communicates: two all-to-alls.

    Args:
        x (batch, groups, tokens, hidden): Tokens.
        w: Weights of the layer.
        choice: As `routed` gives it.
        weight: As `routed` gives it.
        capacity: How many times more places there are than choices.

    Returns:
        (batch, groups, tokens, hidden): a pending sum over the axes of ``inner``.
    """
    (b, g, t, h), k, e = x.shape, choice.shape[-1], w["gate"].shape[0]
    room = min(t, math.ceil(capacity * k * t / e))
    # All first choices are asked for, then all second ones.
    choice, weight = (sh.reshape(sh.swapaxes(y, 2, 3), (b, g, k * t)) for y in (choice, weight))
    taken, used, place, kept = places(choice, e, room)
    slots = sh.where(used[..., None], sh.take_along_axis(x, taken[..., None] % t, 2), 0)

    batch, groups, *_ = (dim.axes for dim in sh.typeof(slots).dims)
    axes = sh.typeof(w["gate"]).dims[0].axes
    slots = laid(sh.reshape(slots, (b, g, e, room, h)), without(batch, axes), groups, axes)
    inner = sh.nn.swiglu(*(sh.einsum("bgech,ehi->bgeci", slots, w[name]) for name in ("gate", "up")))
    done = laid(sh.einsum("bgeci,eih->bgech", inner, w["down"]), batch, groups)

    found = sh.take_along_axis(sh.reshape(done, (b, g, e * room, h)), place[..., None], 2, mode="clip")
    found = found * sh.where(kept, weight, 0)[..., None].astype(x.dtype)
    return sh.sum(sh.reshape(found, (b, g, k, t, h)), 2)


def dropless(x: Any, w: Tree, choice: Any, weight: Any) -> Any:
    """What the experts make of all tokens. Sends nothing: the tokens are where the experts are.

    Args:
        x (batch, groups, tokens, hidden): Tokens, whole along the axes of ``expert``.
        w: Weights of the layer.
        choice: As `routed` gives it.
        weight: As `routed` gives it.

    Returns:
        (batch, groups, tokens, hidden): a pending sum over the axes of ``expert`` and of ``inner``.
    """
    t, axes = sh.typeof(x), sh.typeof(w["gate"]).dims[0].axes
    where = [dim.axes for dim in t.dims[:2]]

    def here(x: Any, choice: Any, weight: Any, gate: Any, up: Any, down: Any) -> Any:
        """The experts of one device on the tokens that came to it. Of a token's choices so many at most are here."""
        (shape, n), (own, k) = (x.shape, x.size // x.shape[-1]), (gate.shape[0], choice.shape[-1])
        expert = sh.reshape(choice, -1) - (sh.lax.axis_index(axes) * own if axes else 0)
        expert = sh.where(expert < 0, own, expert)  # from own on: on another device
        order = sh.argsort(expert)[: n * min(k, own)]
        count = sh.bincount(expert, length=own)
        token = sh.where(sh.arange(len(order)) < sh.sum(count), order // k, n)  # n: no token's
        rows = sh.take(sh.reshape(x, (n, -1)), token, 0, mode="fill", fill_value=0)
        inner = sh.nn.swiglu(sh.ragged_dot(rows, gate, count), sh.ragged_dot(rows, up, count))
        done = sh.ragged_dot(inner, down, count) * sh.take(sh.reshape(weight, -1), order)[:, None].astype(x.dtype)
        return sh.reshape(sh.segment_sum(done, token, n), shape)

    sums = f"{{U:({','.join(axes)})}}" if axes else ""
    spec = f"[_@({','.join(where[0])}), _@({','.join(where[1])}), _, _]{sums}"
    mapped = sh.shard_map(here, out_specs=spec, axis_names=(*where[0], *where[1], *axes))
    return mapped(x, choice, weight, *(w[name] for name in ("gate", "up", "down")))


def mixture(x: Any, w: Tree, chosen: int, capacity: float | None, group: int | None) -> tuple[Any, Any]:
    """The MLP of each token's experts.

    Args:
        x (batch, seq, hidden): Tokens, in the dtype of products.
        w: Weights of the layer, `WEIGHTS`, in that dtype too.
        chosen: How many experts take a token.
        capacity: How many times more places there are than choices, or None: dropless.
        group: How many positions of a sequence share places; all, if None. Not more than a device has.

    Returns:
        The sum over the experts of each token, f[batch, seq, hidden], a pending one over the axes of ``inner``, and of
        ``expert`` if dropless; and how unevenly tokens are spread.
    """
    (b, s, h), size = x.shape, group or x.shape[1]
    batch, seq = (dim.axes for dim in sh.typeof(x).dims[:2])
    here = s // sh.typeof(x).mesh.product(seq)
    if here % size:
        raise sh.ShardingTypeError(
            f"groups of {size} positions are to be on one device, which has {here} positions", hints=[f"group={here}"]
        )
    if capacity is None:
        dtype = None if x.dtype == "float32" else x.dtype
        here = without(batch, sh.typeof(w["gate"]).dims[0].axes)
        wide = f"[_@({','.join(here)}), _@({','.join(seq)}), _]"
        x = sh.reshard(x.astype("f32"), wide, comm_dtype=dtype).astype(x.dtype)
    x = sh.reshape(x, (b, s // size, size, h))
    choice, weight, uneven = routed(x, w["router"], chosen)
    y = dropless(x, w, choice, weight) if capacity is None else with_capacity(x, w, choice, weight, capacity)
    return sh.reshape(y, (b, s, h)), uneven
