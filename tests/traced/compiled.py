"""What a compiled program communicates, and what a ledger says of it, in the same terms: the one is to equal the other.

XLA may combine several all-reduces into one with several operands, so operands are counted and not instructions. The
direction is told by the metadata of an instruction: JAX writes there what a derivative or a checkpoint made.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import jax

import shtypes as sh
from shtypes.resharding.moves import ring_bytes
from shtypes.traced.ledger import Ledger
from tests.core.hlo import CALL, OPS, array_bytes, group_size

HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$")
TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
CALLED = re.compile(r"(?:body|condition|to_apply|calls|true_computation|false_computation)=%?([\w.\-]+)")
BRANCHES = re.compile(r"branch_computations=\{(.*?)\}")
NAME = re.compile(r'op_name="(.*?)"')

#: A kind of collectives, the number of devices that exchange data, and the direction.
Key = tuple[str, int, str]


class Sent(NamedTuple):
    """Bytes that each device sends, and arrays that are sent."""

    bytes: dict[Key, int]
    arrays: dict[Key, int]


def sent_by_compiled(text: str, unknown: int | None = None) -> Sent:
    """What a compiled program sends when it runs, if each branch of a conditional ran once.

    Args:
        text: The program.
        unknown: How often loops of unknown length are to count; None for none of these.
    """
    computations: dict[str, list[str]] = {}
    entry = current = ""
    for line in text.splitlines():
        head = HEAD.match(line)
        if head:
            current = head[2]
            computations[current] = []
            entry = current if head[1] else entry
        elif current:
            computations[current].append(line)
    size: Counter[Key] = Counter()
    arrays: Counter[Key] = Counter()

    def visit(name: str, times: int) -> None:
        for line in computations[name]:
            call = CALL.search(line)
            if call:
                _add(call, _direction(line), times, size, arrays)
            inner = CALLED.findall(line) + [b.strip(" %") for found in BRANCHES.findall(line) for b in found.split(",")]
            if not inner:
                continue
            trips = _trips(line, computations) or unknown if " while(" in line else 1
            assert trips is not None, f"a loop of unknown length: {line}"
            for called in inner:
                visit(called, times * trips)

    visit(entry, 1)
    return Sent(dict(size), dict(arrays))


def _trips(line: str, computations: dict[str, list[str]]) -> int | None:
    """The trips of a loop: what XLA says, or the bound of a counter that its condition compares (scans start at 0)."""
    said = TRIPS.search(line)
    if said:
        return int(said[1])
    condition = re.search(r"condition=%?([\w.\-]+)", line)
    lines = computations[condition[1]] if condition else []
    bounds = [found[1] for each in lines if (found := re.search(r" = s32\[\] constant\((\d+)\)", each))]
    return int(bounds[0]) if len(bounds) == 1 and any("cond/lt" in each for each in lines) else None


def _direction(line: str) -> str:
    name = NAME.search(line)
    assert name is not None, f"a collective that nothing in the program asks for: {line}"
    return "recomputed" if "rematted_computation" in name[1] else "backward" if "transpose(" in name[1] else "forward"


def _add(call: re.Match[str], direction: str, times: int, size: Counter[Key], arrays: Counter[Key]) -> None:
    kind, held = OPS[call[2]].value, array_bytes(call[1])
    if kind == "permute":
        size[kind, 0, direction] += held * times
        arrays[kind, 0, direction] += times
        return
    n = group_size(call[3])
    larger, rounds = held * n if kind == "reduce-scatter" else held, 2 if kind == "all-reduce" else 1
    size[kind, n, direction] += ring_bytes(rounds, n, larger) * times
    # Only all-reduces are combined; an all-to-all may have an operand for each device of the group.
    count = len(re.findall(r"\w+\[[\d,]*\]", call[1])) if kind == "all-reduce" else 1
    arrays[kind, n, direction] += times * count


def sent_by_ledger(ledger: Ledger, unknown: int | None = None) -> Sent:
    """What a ledger says; ``unknown`` as for `sent_by_compiled`."""
    size: Counter[Key] = Counter()
    arrays: Counter[Key] = Counter()
    for entry in ledger:
        times = unknown if entry.times is None else entry.times
        assert times is not None
        if entry.launches:
            key = (entry.kind, 0 if entry.kind == "permute" else entry.group, entry.direction)
            size[key] += entry.bytes * times
            arrays[key] += entry.launches * times
    return Sent(dict(size), dict(arrays))


#: Passes of XLA that merge two collectives of the same value, or take one out of a loop, which the ledger counts as the
#: program has them; and those that put several into one, which then has the name of one of them.
UNMERGED = {
    "xla_disable_hlo_passes": "cse,all-reduce-combiner,cpu-all-reduce-combiner,while-loop-invariant-code-motion",
    "xla_backend_optimization_level": 0,
}
#: The same without the pass that finds values constant or unread; XLA needs it for some programs.
UNSIMPLIFIED = UNMERGED | {"xla_disable_hlo_passes": f"{UNMERGED['xla_disable_hlo_passes']},algsimp"}
#: Who compiles a function: JAX's `jit` what is written, that of `sh` with its reshards merged.
JITS: Final[tuple[Callable[..., Any], ...]] = (jax.jit, sh.jit)


def compiled_text(jitted: Any, *args: Any, options: dict[str, Any] | None = UNMERGED) -> str:
    """The compiled program."""
    compiled = jitted.lower(*args).compile(compiler_options=options)
    text = compiled.as_text()
    assert isinstance(text, str)
    return text


def assert_compiled_as_said(
    f: Callable[..., Any], *args: Any, jits: Sequence[Callable[..., Any]] = JITS, unknown: int | None = None
) -> Ledger:
    """The ledger of a function, which is what JAX's `jit` of it sends; that of `sh.jit` of it is what this sends."""
    written: Ledger | None = None
    for jit in jits:
        jitted = jit(f)
        said = sh.ledger(jitted if jit is sh.jit else f, *args)
        assert_sent_as_said(jitted, args, said, unknown)
        written = written if jit is sh.jit else said
    return sh.ledger(f, *args) if written is None else written


def assert_sent_as_said(jitted: Any, args: Sequence[Any], said: Ledger, unknown: int | None = None) -> None:
    """What a compiled function sends is what its ledger says, where XLA leaves out nothing that is written."""
    assert not said.not_covered
    written = sent_by_ledger(said, unknown)
    found = sent_by_compiled(compiled_text(jitted, *args), unknown)
    if found != written:
        # XLA's simplifier leaves out what is zero, as `ne(n, n)`, and operands of a join of which a slice has nothing.
        for sent, most in zip(found, written, strict=True):
            assert all(n <= most.get(key, 0) for key, n in sent.items()), (jitted, str(said))
        found = sent_by_compiled(compiled_text(jitted, *args, options=UNSIMPLIFIED), unknown)
    assert found == written, (jitted, str(said))
