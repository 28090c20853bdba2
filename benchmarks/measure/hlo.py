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
_BYTES: Final = {"pred": 1, "bf16": 2, "f16": 2, "f32": 4, "s32": 4, "u32": 4, "f64": 8, "s64": 8}


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
            entry["bytes"] += sum(_BYTES[d] * math.prod(int(n) for n in dims.split(",") if n) for d, dims in arrays)
    return {
        "collectives": found,
        "dots": ops["dot"],
        "fusions": ops["fusion"],
        "copies": ops["copy"],
        "ops": sum(ops.values()),
    }


def facts(lowered: Any, compiled: Any) -> dict[str, Any]:
    """`contents` of the optimized program, its temporary memory, and the size of the StableHLO."""
    memory = compiled.memory_analysis()
    return {
        **contents(compiled.as_text()),
        "temp_bytes": None if memory is None else int(memory.temp_size_in_bytes),
        "stablehlo_bytes": len(lowered.as_text()),
    }
