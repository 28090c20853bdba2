"""Reads the collectives of a compiled program from its text; knows nothing of plans."""

from __future__ import annotations

import math
import re
from collections import Counter

from shtypes.resharding import Kind

OPS = {
    "all-gather": Kind.ALL_GATHER,
    "all-to-all": Kind.ALL_TO_ALL,
    "collective-permute": Kind.PERMUTE,
    "reduce-scatter": Kind.REDUCE_SCATTER,
    "all-reduce": Kind.ALL_REDUCE,
}
CALL = re.compile(r"= (.*?) (" + "|".join(OPS) + r")(?:-start)?\((.*)")
SIZES = {"f32": 4, "s32": 4, "pred": 1, "bf16": 2, "f16": 2, "u32": 4, "f8e4m3fn": 1}
SIZES |= {"s8": 1, "u8": 1, "s16": 2, "u16": 2, "s64": 8, "u64": 8, "f64": 8, "c64": 8, "c128": 16}


def array_bytes(text: str) -> int:
    found = re.findall(r"(\w+)\[([\d,]*)\]", text)
    return sum(SIZES[t] * math.prod(int(n) for n in dims.split(",") if n) for t, dims in found if t in SIZES)


def group_size(attributes: str) -> int:
    """Devices in one group; XLA writes groups as lists, as a tiling of the devices, or by names of mesh axes."""
    named = re.search(r"replica_groups=mesh\[(.*?)\](?:, device_ids=\S+)? \{(.*?)\}", attributes)
    if named:
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", named[1]))
        return math.prod(int(sizes[a]) for a in re.findall(r"'(\w+)'", named[2]))
    listed = re.search(r"replica_groups=\{\{([\d,]+)\}", attributes)
    if listed:
        return listed[1].count(",") + 1
    tiled = re.search(r"replica_groups=\[(\d+),(\d+)\]", attributes)
    assert tiled, attributes
    return int(tiled[2])


def collectives(text: str | None) -> Counter[tuple[Kind, int]]:
    """Kind and bytes sent per device (ring model) of each collective in a compiled program."""
    out: Counter[tuple[Kind, int]] = Counter()
    for line in (text or "").splitlines():
        call = CALL.search(line)
        if not call:
            continue
        kind, size = OPS[call[2]], array_bytes(call[1])
        if kind is Kind.PERMUTE:
            out[kind, size] += 1
            continue
        n = group_size(call[3])
        factor = {Kind.REDUCE_SCATTER: n - 1, Kind.ALL_REDUCE: 2 * (n - 1) / n}.get(kind, (n - 1) / n)
        out[kind, round(size * factor)] += 1
    return out
