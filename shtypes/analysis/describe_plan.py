"""The steps of a plan in words: who sends what to whom, and what each device holds then. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from shtypes.analysis.device_slices import digits_of_dims, holding
from shtypes.errors import how_many, quoted
from shtypes.resharding import Kind, Plan, Step
from shtypes.types import ShType, State
from shtypes.types.mesh import part_of


def sentences(plan: Plan) -> list[str]:
    """The steps of a plan: who sends what to whom, and what each device holds then."""
    return [f"{step}: {sentence(step, plan.src)}" for step in plan.steps]


def sentence(step: Step, whole: ShType) -> str:
    """What a step does, and what each device holds after it; ``whole`` is a type of the array as it is."""
    return f"{action(step, whole)}; each device then holds {held(step.dst, whole, _changed(step, whole))}"


def action(step: Step, whole: ShType) -> str:
    """What a step does: what is sent to whom, or done without sending."""
    if step.kind is not Kind.RELABEL and step.group == 1:
        return f"{_one_device(step.axes)}, so nothing is done or sent"
    return _ACTIONS[step.kind](step, whole)


def held(t: ShType, whole: ShType, about: Iterable[int] = ()) -> str:
    """What each device holds of the array, in words.

    Args:
        t: The type.
        whole: A type of the array as it is, where ``t`` is one of a finer view of it.
        about: The dims that are mentioned even where a device has all of them.
    """
    first = holding(t, dict.fromkeys(whole.mesh.axis_names, 0), whole)  # what others hold differs only in where it is
    found, every = [], True
    for i, (dim, spans) in enumerate(zip(whole.dims, first.spans, strict=True)):
        name = f"dim {i}" + (f" (`{dim.name}`)" if dim.name else "")
        if spans == ((0, dim.size),):
            found += [f"{name} whole"] if i in about else []
            continue
        every = False
        count = sum(b - a for a, b in spans)
        pieces = f" ({len(spans)} pieces of {count // len(spans)})" if len(spans) > 1 else ""
        found.append(f"{count:,} of {dim.size:,}{pieces} along {name}")
    said = ("the whole array" if whole.ndim else "the value") if every else _listed(found)
    terms, own = t.axes(State.UNREDUCED), t.axes(State.VARYING)
    said += f", as a term of the sum over {quoted(terms)}" if terms else ""
    said += f", of its own value over {quoted(own)}" if own else ""
    return f"{said} ({t.local_bytes:,} B)"


def views(plan: Plan) -> list[str]:
    """The finer views of the array that types on the way are of, in words; empty if there are none."""
    whole = plan.src
    found: dict[str, None] = {}
    for t in (t for step in plan.steps for t in (step.src, step.dst)):
        for axis, size in whole.mesh.shape.items():
            parts = [name for name in t.mesh.axis_names if part_of(name)[0] == axis]
            if len(parts) > 1:
                sizes = _listed([str(t.mesh.shape[part]) for part in parts])
                found[f"{quoted(parts)}: the axis `{axis}` of {size} devices in parts of {sizes}, major to minor"] = (
                    None
                )
        seen = [
            f"dim {i} as {'x'.join(str(t.shape[k]) for k in digits)}"
            for i, digits in enumerate(digits_of_dims(t, whole))
            if t.shape != whole.shape and sum(t.shape[k] > 1 for k in digits) > 1
        ]
        if seen:
            of = f"{_shape(t)} is {_shape(whole)} with {_listed(seen)}"
            found[f"{of}: the same elements in the same order, on the same devices"] = None
    return list(found)


def bound(plan: Plan, least: int, gathered: int | None) -> str:
    """How a plan compares with what any sends at least, and with making everything whole first."""
    if not plan.bytes:
        return ""
    said = "no plan sends less" if least >= plan.bytes else f"a plan sends at least {least:,} B/device" if least else ""
    naive = f"gathering first, then slicing, would send {gathered:,} B/device" if (gathered or 0) > plan.bytes else ""
    return "; ".join(filter(None, (said, naive)))


def _group(step: Step) -> str:
    if step.group == step.src.mesh.size:
        return "between the two devices" if step.group == 2 else f"among all {step.group} devices"
    return "in each pair of devices" if step.group == 2 else f"in each group of {step.group} devices"


def _others(step: Step) -> str:
    return "the other" if step.group == 2 else "each of the others"


def _all_gather(step: Step, whole: ShType) -> str:
    return f"{_group(step)}, each sends its slice of {_dims(step.lost, step, whole)} to {_others(step)}"


def _all_to_all(step: Step, whole: ShType) -> str:
    cut = f"each cuts what it holds in {step.group} along {_dims(step.gained, step, whole)}"
    return f"{_group(step)}, {cut}, keeps one piece and sends one to {_others(step)}"


def _permute(step: Step, whole: ShType) -> str:
    every = step.src.mesh.size
    if step.pieces is not None:
        rounds = how_many(step.launches, "round")
        return f"each device gets what it lacks of the {len(step.pieces.rounds)} pieces of its new shard, in {rounds}"
    moved = sum(a != b for a, b in step.exchange) * (every // step.src.mesh.product(step.live))
    if not moved:
        return "each device holds what it needs already, so nothing is sent"
    who = f"all {every}" if moved == every else f"{moved} of the {every}"
    return f"{who} devices change places: each sends all that it holds to one other, and gets all that another held"


def _reduce_scatter(step: Step, whole: ShType) -> str:
    return f"{_group(step)}, the terms are added up, and each gets its own slice of {_dims(step.gained, step, whole)}"


def _all_reduce(step: Step, whole: ShType) -> str:
    return f"{_group(step)}, the terms are added up, and each gets all of the result"


def _slice(step: Step, whole: ShType) -> str:
    return f"each device keeps its own slice of {_dims(step.gained, step, whole)} and drops the rest; nothing is sent"


def _place(step: Step, whole: ShType) -> str:
    dims = _dims(step.lost, step, whole)
    return f"each device fills the rest of {dims} with zeros, to be a term of a sum; nothing is sent"


def _mask(step: Step, whole: ShType) -> str:
    rest = "the other takes" if step.group == 2 else "the others take"
    return f"{_group(step)}, the first keeps its copy as its term and {rest} zeros; nothing is sent"


def _relabel(step: Step, whole: ShType) -> str:
    said = []
    for state, gradients in _GRADIENTS.items():
        axes = [a for a in step.axes if step.dst.state(a) is state]
        why = f": {gradients}" if step.dst.differentiable else ""
        said += [f"the copies over {quoted(axes)} are {state.name.lower()} from here{why}"] if axes else []
    return "; ".join(["nothing is done or sent", *said])


_GRADIENTS: Final = {
    State.REDUCED: "their gradients are terms of a sum",
    State.INVARIANT: "their gradients are summed at once",
}
_ACTIONS: Final[Mapping[Kind, Callable[[Step, ShType], str]]] = {
    Kind.RELABEL: _relabel,
    Kind.MASK: _mask,
    Kind.SLICE: _slice,
    Kind.PLACE: _place,
    Kind.ALL_GATHER: _all_gather,
    Kind.ALL_TO_ALL: _all_to_all,
    Kind.PERMUTE: _permute,
    Kind.REDUCE_SCATTER: _reduce_scatter,
    Kind.ALL_REDUCE: _all_reduce,
}


def _one_device(axes: Sequence[str]) -> str:
    return f"{quoted(axes)} {'has' if len(axes) == 1 else 'have'} one device" if axes else "the axes have one device"


def _changed(step: Step, whole: ShType) -> set[int]:
    """The dims that other axes shard after a step."""
    return {*_dim_numbers(step.lost, step, whole), *_dim_numbers(step.gained, step, whole)}


def _dim_numbers(of: Sequence[tuple[str, ...]], step: Step, whole: ShType) -> list[int]:
    return [i for i, digits in enumerate(digits_of_dims(step.src, whole)) if any(of[k] for k in digits)]


def _dims(of: Sequence[tuple[str, ...]], step: Step, whole: ShType) -> str:
    numbers = _dim_numbers(of, step, whole)
    return f"dim{'s' if len(numbers) > 1 else ''} {_listed(list(map(str, numbers)))}"


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def _shape(t: ShType) -> str:
    return f"[{','.join(map(str, t.shape))}]"
