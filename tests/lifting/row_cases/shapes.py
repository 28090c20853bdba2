"""Cases of primitives that move elements, and put values together or take them apart."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.lifting.row_cases.case import Case, case


def _with(f: Callable[..., Any], *args: Any, **params: Any) -> Callable[..., Any]:
    return lambda x: f(x, *args, **params)


def _moved() -> Iterator[Case]:
    shape: Any
    for label, spec, shape, dims in (
        ("new dims", "f32[8]!", (4, 8, 2), (1,)),
        ("stretched", "f32[8,1]!", (8, 4), (0, 1)),
        ("a scalar", "f32[]!", (4, 8), ()),
        ("to no elements", "f32[8]!", (0, 8), (1,)),
        ("of no elements", "f32[0]!", (4, 0), (1,)),
        ("the same", "f32[8,4]!", (8, 4), (0, 1)),
        ("bool", "bool[8]", (8, 4), (0,)),
        ("i8", "i8[8]!", (8, 4), (0,)),
        ("c64", "c64[8]!", (8, 4), (0,)),
    ):
        yield case("broadcast_in_dim", label, _with(lax.broadcast_in_dim_p.bind, shape=shape, broadcast_dimensions=dims,
                   sharding=None), spec)  # fmt: skip
    for label, spec, shape in (
        ("split", "f32[8,4]!", (4, 2, 4)),
        ("merged", "f32[8,4]!", (32,)),
        ("no elements", "f32[8,0]!", (0, 16)),
        ("to a scalar", "f32[1,1]!", ()),
        ("of a scalar", "f32[]!", (1, 1)),
        ("i8", "i8[8,4]!", (4, 8)),
        ("the same", "f32[8,4]!", (8, 4)),
        ("ones", "f32[8,1,4]!", (1, 8, 4, 1)),
    ):
        yield case("reshape", label, _with(lax.reshape_p.bind, new_sizes=shape, dimensions=None, sharding=None), spec)
    yield case("reshape", "dims in another order", _with(lax.reshape, (8, 4), (1, 0)), "f32[8,4]!")
    for label, spec, dims in (("one", "f32[8,1,4]!", (1,)), ("none", "f32[8,4]!", ()), ("all", "f32[1,1]!", (0, 1))):
        yield case("squeeze", label, _with(lax.squeeze_p.bind, dimensions=dims), spec)
    yield case("squeeze", "negative", _with(lax.squeeze, (-1,)), "bool[8,4,1]")
    for label, spec, perm in (
        ("two", "f32[8,4]!", (1, 0)),
        ("three", "i8[8,4,2]!", (2, 0, 1)),
        ("none", "f32[8,4]!", (0, 1)),
    ):
        yield case("transpose", label, _with(lax.transpose_p.bind, permutation=perm), spec)
    yield case("transpose", "no elements", _with(lax.transpose_p.bind, permutation=(1, 0)), "f32[8,0]!")
    for label, spec, dims in (("one", "f32[8,4]!", (1,)), ("both", "bf16[8,4]!", (0, 1)), ("none", "f32[8,4]!", ())):
        yield case("rev", label, _with(lax.rev_p.bind, dimensions=dims), spec)
    yield case("rev", "no elements", _with(lax.rev_p.bind, dimensions=(1,)), "f32[8,0]!")
    for label, spec, reps in (("dims", "f32[8,4]!", (1, 3)), ("none", "f32[8,4]!", (1, 1)), ("zero", "f32[8,4]!", (1, 0)),
                              ("the first", "i8[8,4]!", (2, 1))):  # fmt: skip
        yield case("tile", label, _with(lax.tile_p.bind if hasattr(lax, "tile_p") else lax.tile, reps=reps), spec)


def _joined() -> Iterator[Case]:
    def joined(*xs: Any, dim: int = 1) -> Any:
        return lax.concatenate_p.bind(*xs, dimension=dim)

    yield case("concatenate", "two", joined, "f32[8,4]!", "f32[8,2]!")
    yield case("concatenate", "one", joined, "f32[8,4]!")
    yield case("concatenate", "empty ones among others", joined, "f32[8,0]!", "f32[8,4]!", "f32[8,0]!", "f32[8,2]!")
    yield case("concatenate", "all empty", joined, "f32[8,0]!", "f32[8,0]!")
    yield case("concatenate", "no rows", joined, "f32[0,4]!", "f32[0,2]!")
    yield case("concatenate", "one that is not empty", joined, "f32[8,0]!", "f32[8,4]!")
    yield case(
        "concatenate", "an empty one and a constant", lambda a: joined(a, np.ones((8, 4), np.float32)), "f32[8,0]"
    )
    yield case("concatenate", "a constant that is empty", lambda a: joined(a, np.ones((8, 0), np.float32)), "f32[8,4]!")
    yield case("concatenate", "a constant", lambda a: joined(a, np.full((8, 2), -0.0, np.float32)), "f32[8,4]!")
    for dtype in ("bool", "i8", "bf16", "c64", "f8"):
        yield case("concatenate", dtype, functools.partial(joined, dim=0), f"{dtype}[8,4]", f"{dtype}[4,4]")
    yield case("stack", "two", lambda *xs: lax.stack_p.bind(*xs, axis=1) if hasattr(lax, "stack_p") else _jnp_stack(*xs),
               "f32[8,4]!", "f32[8,4]!")  # fmt: skip
    yield case("stack", "scalars", lambda *xs: _jnp_stack(*xs, axis=0), "f32[]!", "f32[]!")
    yield case("stack", "a constant", lambda a: _jnp_stack(a, np.full((8, 4), -0.0, np.float32)), "f32[8,4]!")
    yield case("unstack", "f32", lambda a: _unstacked(a, 1), "f32[8,4]!")
    yield case("unstack", "i8", lambda a: _unstacked(a, 0), "i8[2,8]!")
    yield case("split", "uneven", lambda a: lax.split(a, (1, 0, 3), 1), "f32[8,4]!")
    yield case("split", "one", lambda a: lax.split(a, (4,), 1), "f32[8,4]!")
    yield case("split", "i8", lambda a: lax.split(a, (2, 2), 1), "i8[8,4]!")


def _jnp_stack(*xs: Any, axis: int = 1) -> Any:

    return jnp.stack(xs, axis)


def _unstacked(a: Any, axis: int) -> Any:

    return jnp.unstack(a, axis=axis)


def _padded() -> Iterator[Case]:
    number: Any
    f: Any
    configs = {
        "around": ((0, 0, 0), (1, 2, 0)),
        "between": ((0, 0, 0), (0, 0, 2)),
        "negative": ((0, 0, 0), (-1, -1, 0)),
        "negative and between": ((0, 0, 0), (-1, 3, 1)),
        "all": ((2, 0, 1), (1, -2, 1)),
        "none": ((0, 0, 0), (0, 0, 0)),
        "to no elements": ((0, 0, 0), (-2, -2, 0)),
    }
    for label, config in configs.items():
        yield case("pad", label, lambda a, v, config=config: lax.pad(a, v, config), "f32[8,4]!", "f32[]")
        for number in (0.0, -0.0, 3.0, np.nan, -np.inf):
            f = lambda a, n=number, config=config: lax.pad(a, np.float32(n), config)
            yield case("pad", f"{label}, {number}", f, "f32[8,4]!", orders=1)
    for dtype, number in (("i8", -7), ("u32", 2**31 + 1), ("bf16", 0.1), ("bool", True), ("c64", 1j), ("f16", 65504.0)):
        f = lambda a, n=number: lax.pad(a, np.asarray(n).astype(a.dtype)[()], ((0, 0, 0), (1, 2, 1)))
        yield case("pad", f"{dtype} by {number}", f, f"{dtype}[8,4]" + "!" * (dtype != "bool"), orders=1)
    yield case("pad", "no elements", lambda a: lax.pad(a, np.float32(2), ((0, 0, 0), (1, 0, 3))), "f32[8,0]")


def _sliced() -> Iterator[Case]:
    traced: Any
    f: Any
    for label, start, limit, strides in (
        ("a part", (0, 1), (8, 3), None),
        ("strides", (0, 0), (8, 4), (1, 2)),
        ("strides of rows", (0, 0), (8, 4), (2, 1)),
        ("strides of rows from 1", (1, 0), (8, 4), (2, 1)),
        ("strides past the end", (0, 1), (8, 4), (3, 2)),
        ("one row", (3, 0), (4, 4), None),
        ("one element", (7, 3), (8, 4), None),
        ("nothing", (2, 0), (2, 4), None),
        ("all", (0, 0), (8, 4), (1, 1)),
        ("nothing of both", (0, 4), (0, 4), None),
    ):
        yield case("slice", label, lambda a, s=start, e=limit, t=strides: lax.slice(a, s, e, t), "f32[8,4]!")
    yield case("slice", "i8", lambda a: lax.slice(a, (0, 1), (8, 4), (1, 3)), "i8[8,4]!")
    yield case("slice", "bool", lambda a: lax.slice(a, (2, 0), (3, 4)), "bool[8,4]")
    yield case("slice", "no elements", lambda a: lax.slice(a, (0, 0), (8, 0)), "f32[8,0]")
    starts = {"inside": (1, 2), "negative": (-11, -1), "past the end": (30, 3), "least": (-(2**31), 2**31 - 1)}
    for label, (i, j) in starts.items():
        for sizes in ((8, 2), (2, 2), (1, 4), (1, 1), (8, 4), (0, 4), (3, 0)):
            f = lambda a, i=i, j=j, n=sizes: lax.dynamic_slice_p.bind(a, np.int32(i), np.int32(j), slice_sizes=n)
            yield case("dynamic_slice", f"{label}, {sizes}", f, "f32[8,4]!", orders=1 + (sizes == (8, 2)))
            traced = lambda a, i, j, n=sizes: lax.dynamic_slice_p.bind(a, i, j, slice_sizes=n)
            yield case(
                "dynamic_slice", f"{label}, {sizes}, traced", traced, "f32[8,4]!", np.int32(i), np.int32(j), orders=1
            )
    for dtype, i in (("i8", -100), ("u8", 200), ("u32", 2**32 - 1), ("i16", 5)):
        at = np.asarray(i, {"i8": np.int8, "u8": np.uint8, "u32": np.uint32, "i16": np.int16}[dtype])
        f = lambda a, i: lax.dynamic_slice_p.bind(a, i, i, slice_sizes=(2, 2))
        yield case("dynamic_slice", f"at {dtype}", f, "i8[8,4]!", at)
        row = lambda a, i: lax.dynamic_slice_p.bind(a, i, i, slice_sizes=(1, 4))
        yield case("dynamic_slice", f"a row at {dtype}", row, "bf16[8,4]!", at, orders=0)
        put = lambda a, u, i: lax.dynamic_update_slice_p.bind(a, u, i, i)
        yield case("dynamic_update_slice", f"at {dtype}", put, "i8[8,4]!", "i8[3,2]!", at)
    yield case(
        "dynamic_slice",
        "one dim",
        lambda a, i: lax.dynamic_slice_p.bind(a, i, slice_sizes=(3,)),
        "f32[8]!",
        np.int32(-20),
    )
    yield case("dynamic_slice", "a scalar", lambda a: lax.dynamic_slice_p.bind(a, slice_sizes=()), "f32[]!")
    yield case(
        "dynamic_slice",
        "c64",
        lambda a, i: lax.dynamic_slice_p.bind(a, i, i, slice_sizes=(1, 2)),
        "c64[8,4]!",
        np.int32(-2),
    )
    for label, (i, j) in starts.items():
        for shape in ("8,2", "2,2", "1,4", "1,1", "8,4", "0,4"):
            f = lambda a, u, i=i, j=j: lax.dynamic_update_slice_p.bind(a, u, np.int32(i), np.int32(j))
            yield case(
                "dynamic_update_slice",
                f"{label}, {shape}",
                f,
                "f32[8,4]!",
                f"f32[{shape}]!",
                orders=1 + (shape == "2,2"),
            )
            traced = lambda a, u, i, j: lax.dynamic_update_slice_p.bind(a, u, i, j)
            yield case("dynamic_update_slice", f"{label}, {shape}, traced", traced, "f32[8,4]!", f"f32[{shape}]!",
                       np.int32(i), np.int32(j), orders=1)  # fmt: skip
    for dtype in ("bool", "bf16", "c64"):
        f = lambda a, u, i: lax.dynamic_update_slice_p.bind(a, u, i, i)
        yield case("dynamic_update_slice", dtype, f, f"{dtype}[8,4]", f"{dtype}[2,2]", np.int32(-9), orders=0)


def cases() -> Iterator[Case]:
    """All of them."""
    for part in (_moved, _joined, _padded, _sliced):
        yield from part()
