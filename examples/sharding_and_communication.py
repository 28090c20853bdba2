"""Sharding and communication, as a block-matrix tutorial tells it, on sharding types.

The program is that of a post on sharding in JAX (after the scaling book of Austin et al.): how many shardings there
are, the four cases of a sharded matrix product, each collective by itself, and what each costs. Its author found
no way to make XLA reduce-scatter; here it is one line. Types and bytes need no devices; compiled programs need four.
"""

from __future__ import annotations

import os

os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")

import itertools
import math
import re
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import shtypes as sh

# How many shardings there are.


def counted(axes: int, dims: int) -> int:
    """The formula: choose k mesh axes and k dims, and pair them."""
    return sum(math.comb(axes, k) * math.comb(dims, k) * math.factorial(k) for k in range(min(axes, dims) + 1))


def enumerated(mesh: dict[str, int], dims: int) -> Iterator[str]:
    """The types that give each dim one mesh axis or none; the others are refused."""
    for places in itertools.product(["", *mesh], repeat=dims):
        text = ", ".join(f"8@{axis}" if axis else "8" for axis in places)
        try:
            yield str(sh.ShType.parse(f"f32[{text}]", sh.abstract_mesh(mesh)))
        except sh.ShardingTypeError:
            continue


# The four cases of a matrix product, on a mesh with axes x and y.

Rows = Annotated[sh.Array, "f32[n@x, n]"]
Columns = Annotated[sh.Array, "f32[n, n@x]"]
Whole = Annotated[sh.Array, "f32[n, n]"]


def natural(a: Rows, b: Whole) -> Rows:
    """Case 1: the contracted dim is whole, so nothing is sent."""
    return a @ b


def gathered(a: Columns, b: Whole) -> Whole:
    """Case 2: one side is sharded along the contracted dim. It is gathered."""
    return sh.all_gather(a, "x") @ b


def gathered_after(a: Rows, b: Whole) -> Whole:
    """Case 2, another way: a kept dim is gathered after the product instead of before it."""
    return sh.all_gather(a @ b, "x")


def summed(a: Columns, b: Rows) -> Whole:
    """Case 3: both are sharded along it. The products are terms of a sum, which the type says until they are added."""
    return sh.all_reduce(a @ b, "x")


def scattered(a: Columns, b: Rows) -> Whole:
    """Case 3, in two halves: a reduce-scatter, and an all-gather."""
    return sh.all_gather(sh.reduce_scatter(a @ b, "x", 0), "x")


def one_axis_twice(a: Any, b: Any) -> Any:
    """Case 4: both kept dims are sharded over one axis: an error, whose fixes gather one of them."""
    return a @ b


CASES: list[tuple[Callable[..., Any], str, str]] = [
    (natural, "f32[8@x, 8]", "f32[8, 8]"),
    (gathered, "f32[8, 8@x]", "f32[8, 8]{R:x}"),
    (gathered_after, "f32[8@x, 8]", "f32[8, 8]"),
    (summed, "f32[8, 8@x]", "f32[8@x, 8]"),
    (scattered, "f32[8, 8@x]", "f32[8@x, 8]"),
]

# The collectives by themselves: A -> B -> C, a Gram matrix, and the product that is to be scattered.

A, B, C, F = "bf16[2048@x, 8192@y]", "bf16[2048@x, 8192]", "bf16[2048, 8192@x]", "bf16[8192@y, 4096]"


def all_gather(a: Annotated[sh.Array, A]) -> Any:
    """Along ``y``."""
    return sh.reshard(a, "[_@x, _]")


def all_to_all(b: Annotated[sh.Array, B]) -> Any:
    """From rows to columns."""
    return sh.reshard(b, "[_, _@x]")


def gram(c: Annotated[sh.Array, C]) -> Any:
    """The contracted dim is sharded: an all-reduce, asked for by the type of the result."""
    return sh.einsum("ik,jk->ij", c, c, out="[_, _]")


def dot_scattered(a: Annotated[sh.Array, A], f: Annotated[sh.Array, F]) -> Any:
    """What the author asked for: the sum over ``y`` goes straight to slices."""
    return sh.einsum("ik,kj->ij", a, f, out="[_@x, _@y]")


COLLECTIVES: list[tuple[Callable[..., Any], tuple[str, ...]]] = [
    (all_gather, (A,)),
    (all_to_all, (B,)),
    (gram, (C,)),
    (dot_scattered, (A, F)),
]


def compiled_kinds(f: Callable[..., Any], *types: str) -> list[str]:
    """The collectives in the compiled program."""
    text = sh.jit(f).lower(*map(sh.abstract_array, types)).compile().as_text() or ""
    kinds = "all-gather|all-to-all|all-reduce|reduce-scatter|collective-permute"
    return re.findall(rf" ({kinds})(?:-start)?\(", text)


# What they cost: an array of V bytes over N devices, with links of W bytes/s in each of two directions.


def cost_formulas(size: int, devices: int) -> dict[str, float]:
    """Bytes that each device sends, by the post's algorithms: N-1 shards pass each device in a gather."""
    around = (devices - 1) * size / devices
    return {
        "all-gather": around,
        "reduce-scatter": around,
        "all-reduce": 2 * around,  # a reduce-scatter and an all-gather
        "all-to-all": around / devices,  # each device has a shard, and keeps its own part of it
    }


MOVES = {
    "all-gather": ("f32[64@x, 64]", lambda a: sh.all_gather(a, "x")),
    "reduce-scatter": ("f32[64, 64]{U:x}", lambda a: sh.reduce_scatter(a, "x", 0)),
    "all-reduce": ("f32[64, 64]{U:x}", lambda a: sh.all_reduce(a, "x")),
    "all-to-all": ("f32[64@x, 64]", lambda a: sh.all_to_all(a, "x", 1)),
}


def main() -> None:
    """Prints what the post prints: types, who holds what is sent, HLO, costs."""
    sh.set_mesh(sh.make_mesh({"x": 2, "y": 2}))
    found = list(enumerated({"x": 2, "y": 2}, 2))
    print(f"valid shardings of a matrix on 2 mesh axes: {len(found)}, by the formula {counted(2, 2)}")
    print("  " + "  ".join(found))
    for f, *types in CASES:
        a, b = map(sh.abstract_array, types)
        ledger = sh.ledger(f, a, b)
        sent = ", ".join(f"{e}: {e.bytes} B/device" for e in ledger) or "nothing"
        print(f"{f.__name__}: {a.type} @ {b.type} -> {sh.typeof(f(a, b))}; sends {sent}")
    try:
        one_axis_twice(sh.abstract_array("f32[8@x, 8]"), sh.abstract_array("f32[8, 8@x]"))
    except sh.ShardingTypeError as error:
        print(f"one_axis_twice: {error.what}")
        for fix in error.fixes:
            print(f"  fix: {fix}")
    for collective, operands in COLLECTIVES:
        values = [sh.abstract_array(t) for t in operands]
        print(f"{collective.__name__}: {', '.join(operands)} -> {sh.typeof(collective(*values))}; ", end="")
        print(f"HLO has {', '.join(compiled_kinds(collective, *operands))}")
    for n in (2, 4, 8):
        with sh.use_mesh(sh.abstract_mesh({"x": n})):
            wanted = cost_formulas(64 * 64 * 4, n)
            sent_bytes = {kind: sh.ledger(f, sh.abstract_array(t)).bytes for kind, (t, f) in MOVES.items()}
        assert sent_bytes == wanted, (sent_bytes, wanted)
        print(f"{n} devices: " + ", ".join(f"{kind} {size} B/device" for kind, size in sent_bytes.items()))


if __name__ == "__main__":
    main()
