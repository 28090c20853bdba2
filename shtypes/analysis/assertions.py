"""`assert_comm`: what a test suite says of a program's communication."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from shtypes.analysis.check import signature_of
from shtypes.analysis.target import target_of
from shtypes.errors import ShardingTypeError
from shtypes.scopes.comm import KINDS
from shtypes.traced.entry import Entry
from shtypes.traced.ledger import Ledger
from shtypes.types.mesh import whole_axes

#: Collectives by kind, or by kind and mesh axes: how many run.
Expected = Mapping[Any, int]


def assert_comm(
    f: Callable[..., Any],
    *args: Any,
    forward: Expected | None = None,
    backward: Expected | None = None,
    grad: bool = False,
    bytes: int | None = None,
    **kwargs: Any,
) -> Ledger:
    """Asserts which collectives a program runs, loops counted; nothing runs.

    Args:
        f: A function of typed values and plain arrays.
        *args: Its arguments: values, values that have only types, types, or the texts of types. Without any, those that
            the annotations of ``f`` say.
        forward: The collectives of the forward pass and no others: ``{"all-reduce": 2}`` over any axes, or
            ``{("all-reduce", "tp"): 2}`` over these. None does not ask; ``{}`` is for none at all.
        backward: The same for the backward pass, with what checkpoint runs again.
        grad: Whether ``f`` is a forward pass whose backward pass, to all its arguments, is to be counted too. A
            function that takes gradients itself needs no more.
        bytes: The most that each device may send, in all.
        **kwargs: More arguments of ``f``.

    Returns:
        The ledger, for further questions.

    Raises:
        AssertionError: the program communicates otherwise; it lists what was expected, and what was found where.
        ShardingTypeError: an expected kind does not exist.

    Examples:
        >>> import shtypes as sh
        >>> with sh.use_mesh(sh.abstract_mesh({"tp": 4})):
        ...     t = sh.ShType.parse("f32[8]{U:tp}")
        ...     _ = sh.assert_comm(
        ...         sh.all_reduce, t, forward={("all-reduce", "tp"): 1}, backward={"all-reduce": 1}, grad=True
        ...     )
    """
    signature = signature_of(target_of(f, args, kwargs), grad=grad)
    ledger = signature.ledger
    problems = [
        line
        for direction, expected, part in (
            ("forward", forward, ledger.forward()),
            ("backward", backward, ledger.backward()),
        )
        if expected is not None
        for line in _differences(direction, expected, part)
    ]
    if bytes is not None and ledger.bytes > bytes:
        problems.append(f"bytes: expected at most {bytes} B/device, found {ledger.bytes}")
    if ledger.not_covered:
        problems += [f"not covered: {item}" for item in dict.fromkeys(ledger.not_covered)]
    if problems:
        title = f"the communication of `{signature.name}` is not what was expected"
        raise AssertionError("\n".join([title, *problems]))
    return ledger


def _differences(direction: str, expected: Expected, ledger: Ledger) -> list[str]:
    """A line for each collective that runs more or less often than expected."""
    wanted = {_key(key): count for key, count in expected.items()}
    seen: dict[tuple[str, tuple[str, ...] | None], list[Entry]] = {key: [] for key in wanted}
    for entry in ledger:
        if not entry.launches:
            continue
        exact: tuple[str, tuple[str, ...] | None] = (entry.kind, tuple(sorted(whole_axes(entry.axes))))
        key = exact if exact in wanted or (entry.kind, None) not in wanted else (entry.kind, None)
        seen.setdefault(key, []).append(entry)
    lines = []
    for (kind, axes), entries in seen.items():
        count, runs = wanted.get((kind, axes), 0), Ledger(entries).launches
        if runs == count and all(e.times is not None for e in entries):
            continue
        what = kind if axes is None else f"{kind} over {', '.join(axes)}"
        open_ended = " or more" if any(e.times is None for e in entries) else ""
        places = "".join(f"\n    {_at(e)}" for e in entries)
        lines.append(f"{direction}: {what}: expected {count}, found {runs}{open_ended}{places}")
    return lines


def _key(given: Any) -> tuple[str, tuple[str, ...] | None]:
    kind, *axes = (given,) if isinstance(given, str) else given
    if kind not in KINDS:
        raise ShardingTypeError(f"there is no collective {kind!r}; they are {', '.join(KINDS)}")
    flat = [a for part in axes for a in ((part,) if isinstance(part, str) else part)]
    return kind, tuple(sorted(flat)) if flat else None


def _at(entry: Entry) -> str:
    times = "" if entry.times == 1 else f" {'?' if entry.times is None else entry.times} times"
    place = f"{entry.place} in {entry.place.function}" if entry.place.file else "(no line)"
    return f"{place}: {entry}{times}, {entry.bytes} B/device: {entry.src} -> {entry.dst}"
