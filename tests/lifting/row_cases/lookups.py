"""Cases of lookups and of changes at positions."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.lifting.row_cases.case import Case, case

_ROWS: Final = lax.GatherDimensionNumbers((1,), (0,), (0,))
_MODES: Final = ("clip", "fill", "promise_in_bounds")
#: What is looked up: the dims of the array and of the positions, the numbers, and the windows.
_LOOKUPS: Final[dict[str, tuple[str, tuple[int, ...], Any, tuple[int, ...]]]] = {
    "rows": ("8,4", (8, 1), _ROWS, (1, 4)),
    "a row": ("8,4", (1, 1), _ROWS, (1, 4)),
    "one position": ("8,4", (1,), lax.GatherDimensionNumbers((0,), (0,), (0,)), (1, 4)),
    "parts of rows": ("8,4", (4, 1), _ROWS, (1, 2)),
    "rows that are kept": ("8,4", (4, 1), lax.GatherDimensionNumbers((1, 2), (), (0,)), (1, 4)),
    "windows of rows": ("8,4", (4, 1), lax.GatherDimensionNumbers((1, 2), (), (0,)), (3, 4)),
    "elements": ("8,4", (4, 2), lax.GatherDimensionNumbers((), (0, 1), (0, 1)), (1, 1)),
    "elements, turned": ("8,4", (4, 2), lax.GatherDimensionNumbers((), (0, 1), (1, 0)), (1, 1)),
    "windows": ("8,4", (4, 2), lax.GatherDimensionNumbers((1, 2), (), (0, 1)), (2, 2)),
    "all of a dim": ("8,4", (4, 2), lax.GatherDimensionNumbers((1,), (0,), (0, 1)), (1, 4)),
    "batch": ("8,4", (8, 2, 1), lax.GatherDimensionNumbers((), (1,), (1,), (0,), (0,)), (1, 1)),
    "batch of windows": ("8,4,2", (2, 8, 1), lax.GatherDimensionNumbers((2,), (1,), (1,), (0,), (1,)), (1, 1, 2)),
    "no positions": ("8,4", (0, 1), _ROWS, (1, 4)),
    "no components": ("8,4", (4, 0), lax.GatherDimensionNumbers((1, 2), (), ()), (8, 4)),
    "no columns": ("8,0", (4, 1), _ROWS, (1, 0)),
}


def _positions(label: str, shape: tuple[int, ...]) -> Any:
    """Positions of which some are negative, and some past the end."""
    rng = np.random.default_rng(len(label))
    return rng.integers(-5, 13, shape).astype(np.int32)


def _inside(x: str, positions: Any, numbers: Any, sizes: tuple[int, ...]) -> Any:
    """Those brought into range: what `promise_in_bounds` promises."""
    shape = [int(n) for n in x.split(",")]
    last = [max(shape[d] - sizes[d], 0) for d in numbers.start_index_map]
    return np.clip(positions, 0, np.asarray(last, np.int32)) if last else positions


def _gathers() -> Iterator[Case]:
    value: Any
    for label, (x, shape, numbers, sizes) in _LOOKUPS.items():
        ids = _positions(label, shape)
        for mode in _MODES:
            at = _inside(x, ids, numbers, sizes) if mode.startswith("promise") else ids
            f = functools.partial(lax.gather, dimension_numbers=numbers, slice_sizes=sizes, mode=mode)
            yield case("gather", f"{label}, {mode}", f, f"f32[{x}]!", at, orders=1 + (label == "rows"))
            g = lambda a, f=f, at=at: f(a, at)
            yield case("gather", f"{label}, {mode}, known", g, f"f32[{x}]!", orders=1)
        for value in (2.5, 0):
            f = functools.partial(
                lax.gather, dimension_numbers=numbers, slice_sizes=sizes, mode="fill", fill_value=value
            )
            yield case("gather", f"{label}, fill with {value}", f, f"f32[{x}]!", ids, orders=1)
    ids = _positions("of others", (8, 1))
    for dtype, value in (
        *(("i8", None), ("u8", None), ("i32", 7), ("bool", None), ("bf16", 0.1), ("c64", 1j)),
        ("u32", 2**32 - 1),
    ):
        f = functools.partial(lax.gather, dimension_numbers=_ROWS, slice_sizes=(1, 4), mode="fill", fill_value=value)
        yield case(
            "gather",
            f"{dtype}, fill with {value}",
            f,
            f"{dtype}[8,4]" + "!" * (dtype not in ("bool", "c64")),
            ids,
            orders=0,
        )
    for dtype in ("u8", "i8", "u32", "i16"):
        f = functools.partial(lax.gather, dimension_numbers=_ROWS, slice_sizes=(1, 4), mode="clip")
        yield case("gather", f"positions of {dtype}", f, "f32[8,4]!", f"{dtype}[8,1]!", orders=1)
        f = functools.partial(lax.gather, dimension_numbers=_ROWS, slice_sizes=(1, 4), mode="fill")
        yield case("gather", f"positions of {dtype}, filled", f, "f32[8,4]!", f"{dtype}[8,1]!", orders=1)
    flags = {"unique_indices": True, "indices_are_sorted": True}
    f = functools.partial(lax.gather, dimension_numbers=_ROWS, slice_sizes=(1, 4), mode="clip", **flags)
    yield case("gather", "unique and sorted", f, "f32[8,4]!", np.asarray([[1], [3], [4], [7]], np.int32))
    yield case("gather", "positions that count", lambda a, i: a[jnp.arange(8), i], "f32[8,4]!", "i32[8]<4", orders=1)
    yield case("gather", "along", lambda a, i: jnp.take_along_axis(a, i, 1), "f32[8,4]!", "i32[8,2]~9", orders=1)
    yield case(
        "gather",
        "along, clip",
        lambda a, i: jnp.take_along_axis(a, i, 1, mode="clip"),
        "f32[8,4]!",
        "i32[8,2]~9",
        orders=1,
    )


def _numbers(numbers: Any) -> Any:
    """Those of a scatter that changes the windows that a gather finds."""
    return lax.ScatterDimensionNumbers(
        numbers.offset_dims, numbers.collapsed_slice_dims, numbers.start_index_map, numbers.operand_batching_dims,
        numbers.start_indices_batching_dims,
    )  # fmt: skip


def _distinct(x: str, ids: Any, numbers: Any, sizes: tuple[int, ...]) -> Any:
    """Positions of which no two windows meet."""
    if not ids.size or ids.ndim < 2:
        return ids
    flat = ids.reshape(-1, ids.shape[-1]).copy()
    dim = int(numbers.start_index_map[0])
    size = int(x.split(",")[dim])
    flat[:, 0] = np.arange(len(flat)) * max(sizes[dim], 1) % (size + 4)
    return flat.reshape(ids.shape)


def _scatters() -> Iterator[Case]:
    f: Any
    rows = _numbers(_ROWS)
    changes = {"scatter": lax.scatter, "scatter-add": lax.scatter_add, "scatter-sub": lax.scatter_sub, "scatter-mul": lax.scatter_mul,
               "scatter-min": lax.scatter_min, "scatter-max": lax.scatter_max}  # fmt: skip
    for name, change in changes.items():
        sums = name[8:] in ("add", "sub", "mul")
        for label, (x, shape, numbers, sizes) in _LOOKUPS.items():
            ids = _positions(label, shape)
            array = jax.ShapeDtypeStruct(tuple(int(n) for n in x.split(",")), np.float32)
            out = jax.eval_shape(lambda a, i, n=numbers, s=sizes: lax.gather(a, i, n, s, mode="clip"), array, ids).shape
            update = ",".join(map(str, out))
            for mode in ("clip", "drop", "promise_in_bounds"):
                at = _inside(x, ids, numbers, sizes) if mode.startswith("promise") else ids
                # JAX's derivative of an extremum reads what does not fit as NaN, and not where it was clipped to.
                wrong = mode == "clip" and name in ("scatter-min", "scatter-max")
                f = lambda a, i, u, c=change, n=numbers, m=mode: c(a, i, u, _numbers(n), mode=m)
                yield case(name, f"{label}, {mode}", f, f"f32[{x}]", at, f"f32[{update}]", close="sums" if sums else "bits",
                           orders=0 if wrong else int(name != "scatter-mul") + (label == "rows" and sums))  # fmt: skip
            at = _distinct(x, ids, numbers, sizes)
            f = lambda a, i, u, c=change, n=numbers: c(a, i, u, _numbers(n), mode="drop", unique_indices=True)
            yield case(
                name,
                f"{label}, unique",
                f,
                f"f32[{x}]",
                at,
                f"f32[{update}]",
                close="sums" if sums else "bits",
                orders=1,
            )
        for dtype in ("i8", "u8", "bf16", "i32"):
            f = lambda a, i, u, c=change: c(a, i, u, rows)
            kind = "!" if dtype[0] in "iu" else ""
            yield case(name, dtype, f, f"{dtype}[8,4]{kind}", np.asarray([[1], [1], [9], [-1]], np.int32), f"{dtype}[4,4]{kind}",
                       close="bits" if dtype[0] in "iu" else "sums", orders=0)  # fmt: skip
        f = lambda a, i, u, c=change: c(a, i, u, rows, mode="drop")
        yield case(
            name,
            "specials",
            f,
            "f32[8,4]!",
            np.asarray([[1], [3], [9], [-1]], np.int32),
            "f32[4,4]!",
            orders=0,
            close="sums",
        )
        for dtype in ("u8", "i8", "u32"):
            f = lambda a, i, u, c=change: c(a, i, u, rows, mode="clip")
            yield case(
                name, f"positions of {dtype}", f, "f32[8,4]", f"{dtype}[8,1]!", "f32[8,4]", orders=0, close="sums"
            )
        at = np.asarray([[1], [3], [4], [7]], np.int32)
        f = lambda a, i, u, c=change: c(
            a, i, u, rows, indices_are_sorted=True, unique_indices=True, mode="promise_in_bounds"
        )
        yield case(name, "unique and sorted", f, "f32[8,4]", at, "f32[4,4]", close="sums" if sums else "bits", orders=1)
        f = lambda a, u, c=change, at=at: c(a, at, u, rows, unique_indices=True)
        yield case(name, "known positions", f, "f32[8,4]", "f32[4,4]", close="sums" if sums else "bits", orders=1)
        f = lambda a, i, c=change: c(a, i, np.full((4, 4), -0.0, np.float32), rows, unique_indices=True)
        yield case(name, "known updates", f, "f32[8,4]", at, close="sums" if sums else "bits", orders=1)
    for start in (-2, 0, 3, 6, 200):  # of a window that a shard's border cuts
        for mode in ("clip", "drop"):
            for dtype in ("i32", "u8"):
                at = np.asarray([start % 256 if dtype == "u8" else start], {"i32": np.int32, "u8": np.uint8}[dtype])
                window = lax.ScatterDimensionNumbers((0, 1), (), (0,))
                orders = int(dtype == "i32")  # JAX's own derivatives differ from it for positions of eight bits
                f = lambda a, u, at=at, n=window, m=mode: lax.scatter(a, at, u, n, mode=m)
                yield case("scatter", f"window at {start}, {dtype}, {mode}", f, "f32[8,4]", "f32[3,4]", orders=orders)
                f = lambda a, u, at=at, n=window, m=mode: lax.scatter_add(a, at, u, n, mode=m)
                yield case(
                    "scatter-add", f"window at {start}, {dtype}, {mode}", f, "f32[8,4]", "f32[3,4]", orders=orders
                )
    f = lambda a, i, u: lax.scatter(a, i, u, lax.ScatterDimensionNumbers((0, 1), (), (0, 1)))
    yield case("scatter", "window of two dims", f, "f32[8,4]", "i32[2]~4", "f32[3,2]", orders=1)
    yield case("scatter", "rows set", lambda a, u: a.at[2:5].set(u), "f32[8,4]", "f32[3,4]", orders=1)
    yield case("scatter-mul", "rows multiplied", lambda a, u: a.at[2:5].multiply(u), "f32[8,4]", "f32[3,4]", orders=1)
    yield case("scatter", "apply", lambda a, i: lax.scatter_apply(a, i, jnp.sin, _numbers(_ROWS), update_shape=(4, 4)), "f32[8,4]",
               np.asarray([[1], [3], [9], [-1]], np.int32), close="ulps", orders=0)  # fmt: skip
    yield case(
        "scatter",
        "apply twice",
        lambda a: a.at[jnp.asarray([1, 1, 7])].apply(lambda x: x * 2 + 1),
        "f32[8,4]",
        close="ulps",
        orders=0,
    )
    yield case(
        "scatter",
        "apply to elements",
        lambda a, i: a.at[i, 1].apply(jnp.exp),
        "f32[8,4]",
        "i32[3]~9",
        close="ulps",
        orders=0,
    )
    yield case("scatter", "apply, i8", lambda a: a.at[jnp.asarray([1, 5])].apply(lambda x: x + 100), "i8[8,4]!")
    yield case("scatter", "apply, clip", lambda a, i: lax.scatter_apply(a, i, jnp.cos, _numbers(_ROWS), update_shape=(4, 4), mode="clip"),
               "f32[8,4]", np.asarray([[1], [3], [9], [-1]], np.int32), close="ulps", orders=0)  # fmt: skip
    yield case(
        "scatter",
        "positions that count",
        lambda a, i, u: a.at[jnp.arange(8), i].set(u),
        "f32[8,4]",
        "i32[8]~9",
        "f32[8]",
        orders=1,
    )
    yield case("scatter-add", "positions that count", lambda a, i, u: a.at[jnp.arange(8), i].add(u), "f32[8,4]", "i32[8]~9", "f32[8]",
               close="sums", orders=1)  # fmt: skip
    yield case("scatter-mul", "positions that count", lambda a, i, u: a.at[jnp.arange(8), i].multiply(u, unique_indices=True), "f32[8,4]",
               "i32[8]~9", "f32[8]", close="sums", orders=1)  # fmt: skip
    yield case("scatter-max", "positions that count", lambda a, i, u: a.at[jnp.arange(8), i].max(u), "f32[8,4]", "i32[8]~9", "f32[8]",
               orders=1)  # fmt: skip


def cases() -> Iterator[Case]:
    """All of them."""
    for part in (_gathers, _scatters):
        yield from part()
