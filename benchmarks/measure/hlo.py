"""What a compiled program contains, counted in its text."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Any, Final

COLLECTIVES: Final = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
#: ``%name = shape opcode(``; the shape may be a tuple, and has no ``(`` after its end but the opcode's own.
_OP: Final = re.compile(r"^\s*(?:ROOT )?%?[\w.-]+ = (?P<shape>\(.*?\)|\S+) (?P<op>[a-z][a-z0-9-]*)\(", re.M)
_ARRAY: Final = re.compile(r"(?P<dtype>[a-z]+\d*)\w*\[(?P<dims>[\d,]*)\]")
_HEAD: Final = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[\w.-]+) .*\{$")
_CALLED: Final = re.compile(r"(?:body|condition|to_apply|calls|true_computation|false_computation)=%?([\w.-]+)")
_BRANCHES: Final = re.compile(r"branch_computations=\{(.*?)\}")
_TRIPS: Final = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_NAMES: Final = {1: "pred s8 u8", 2: "bf16 f16 s16 u16", 4: "f32 s32 u32", 8: "f64 s64 c64"}
_BYTES: Final = {name: size for size, names in _NAMES.items() for name in names.split()}


def contents(text: str) -> dict[str, Any]:
    """Collectives with their operands and the bytes of their results on one device, and counts of what costs time."""
    ops: Counter[str] = Counter()
    found: dict[str, dict[str, int]] = {}
    for match in _OP.finditer(text):
        name = match["op"].removesuffix("-start")
        ops[name] += 1
        if name in COLLECTIVES:
            arrays = _ARRAY.findall(match["shape"])
            entry = found.setdefault(name, {"count": 0, "operands": 0, "bytes": 0})
            entry["count"] += 1
            entry["operands"] += len(arrays)
            entry["bytes"] += _size(match["shape"])
    return {
        "collectives": found,
        "dots": ops["dot"],
        "fusions": ops["fusion"],
        "copies": ops["copy"],
        "ops": sum(ops.values()),
    }


def executed(text: str) -> dict[str, dict[str, int]]:
    """What a run of a program sends: launches, arrays and bytes by kind of collective, trips of loops multiplied.

    Each branch of a conditional is counted as if it ran.

    Bytes are those that each device sends if a collective goes round a ring of its group: of an array of n bytes over
    d devices 2 (d - 1) / d n for an all-reduce, (d - 1) / d n for the others, of the larger end.

    Raises:
        ValueError: a loop that communicates does not say how often it runs.
    """
    bodies: dict[str, list[str]] = {}
    entry = name = ""
    for line in text.splitlines():
        if head := _HEAD.match(line):
            name = head["name"]
            bodies[name] = []
            entry = name if head["entry"] else entry
        elif name:
            bodies[name].append(line)
    found: dict[str, dict[str, int]] = {}

    def visit(name: str, times: int) -> None:
        for line in bodies[name]:
            call = _OP.match(line)
            kind = call["op"].removesuffix("-start") if call else ""
            if call and kind in COLLECTIVES:
                row = found.setdefault(kind, {"launches": 0, "arrays": 0, "bytes": 0})
                row["launches"] += times
                row["arrays"] += times * len(_ARRAY.findall(call["shape"]))
                row["bytes"] += times * _sent(kind, _size(call["shape"]), line)
            branches = [each.strip(" %") for names in _BRANCHES.findall(line) for each in names.split(",")]
            for called in _CALLED.findall(line) + branches:
                trips = _TRIPS.search(line)
                before = {k: dict(row) for k, row in found.items()}
                visit(called, times * (int(trips[1]) if trips else 1))
                if " while(" in line and not trips and found != before:
                    raise ValueError(f"a loop of unknown length: {line.strip():.200}")

    visit(entry, 1)
    return found


def _size(shape: str) -> int:
    return sum(_BYTES[dtype] * math.prod(int(n) for n in dims.split(",") if n) for dtype, dims in _ARRAY.findall(shape))


def _sent(kind: str, size: int, line: str) -> int:
    """What each device sends for a collective whose result has ``size`` bytes."""
    if kind == "collective-permute":
        return size
    devices = _group(line)
    times = {"all-reduce": 2 * (devices - 1) / devices, "reduce-scatter": devices - 1}
    return round(size * times.get(kind, (devices - 1) / devices))


def _group(line: str) -> int:
    """How many devices take part in a collective, in any of the three ways in which XLA writes groups."""
    if listed := re.search(r"replica_groups=\{\{([\d,]+)\}", line):
        return listed[1].count(",") + 1
    if tiled := re.search(r"replica_groups=\[\d+,(\d+)\]", line):
        return int(tiled[1])
    named = re.search(r"replica_groups=mesh\[(.*?)\].*? \{(.*?)\}", line)
    if named is None:
        raise ValueError(f"a collective without groups: {line.strip():.200}")
    sizes = dict(re.findall(r"'(\w+)'=(\d+)", named[1]))
    return math.prod(int(sizes[axis]) for axis in re.findall(r"'(\w+)'", named[2]))


def facts(lowered: Any, compiled: Any) -> dict[str, Any]:
    """`contents` of the optimized program, its temporary memory, and the size of the StableHLO."""
    memory = compiled.memory_analysis()
    return {
        **contents(compiled.as_text()),
        "temp_bytes": None if memory is None else int(memory.temp_size_in_bytes),
        "stablehlo_bytes": len(lowered.as_text()),
    }
