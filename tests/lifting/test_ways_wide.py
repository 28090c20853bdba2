"""Each way across shards, cheapest or not, against one device: dtypes, ties, NaN, windows of all kinds, meshes."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

import shtypes as sh
from shtypes.evaluation.table import BODIES, CHOICES, ROWS
from shtypes.lifting.ways.choice import ways_of
from tests.end_to_end import host
from tests.tolerance import SERIES, assert_close
from tests.traced.compiled import assert_compiled_as_said

rng = np.random.default_rng(1)
LINE, PLANE = {"x": 8}, {"x": 4, "y": 2}
IMAGES, WIDE = ("NHWC", "HWIO", "NHWC"), ("NWC", "WIO", "NWC")
FLOATS = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16}
INTEGERS = {"i8": np.int8, "u8": np.uint8, "i32": np.int32, "u32": np.uint32}
#: Numbers with a rounding of their own may be off by it; what only moves or compares numbers may not.
EXACT, ROUNDED = 0, SERIES
#: Of narrow floats, where each of sixteen numbers is rounded, forward and backward.
NARROW = 32


class Case(NamedTuple):
    """A function, its arguments and their types; the way that is taken, by default the first that is one."""

    name: str
    f: Callable[..., Any]
    args: Sequence[Any]
    types: Sequence[str]
    mesh: dict[str, int] = LINE
    roundings: float = ROUNDED
    grad: bool = True
    way: str | None = None


def numbers(*shape: int, dtype: Any = np.float32) -> Any:
    return rng.normal(size=shape).astype(dtype)


def integers(*shape: int, dtype: Any = np.int32, high: int = 100) -> Any:
    low = 0 if np.dtype(dtype).kind == "u" else -high
    return rng.integers(low, high, size=shape).astype(dtype)


def strange(dtype: Any, size: int = 64) -> Any:
    """Numbers with ties, both zeros, infinities and what is no number, rows of one kind among them."""
    x = numbers(4, size).round(1)
    for value in (np.nan, np.inf, -np.inf, 0.0, -0.0):
        x[rng.random(x.shape) < 0.1] = value
    x[1] = np.where(rng.random(size) < 0.5, 0.0, -0.0)
    x[2] = np.nan
    x[2, size // 2] = 1
    x[3, : size // 2] = 1
    return x.astype(dtype)


def conv(x: Any, k: Any, **options: Any) -> Any:
    options = {"window_strides": (1,) * (x.ndim - 2), "padding": "SAME"} | options
    return lax.conv_general_dilated(x, k, dimension_numbers=IMAGES if x.ndim == 4 else WIDE, **options)


def pool(x: Any, kind: str, size: int, stride: int = 1, padding: Any = "SAME", **options: Any) -> Any:
    """A pool along the second dim."""
    if jnp.issubdtype(x.dtype, jnp.integer):
        ends: dict[str, float] = {"max": np.iinfo(x.dtype).min, "min": np.iinfo(x.dtype).max, "add": 0}
    else:
        ends = {"max": -np.inf, "min": np.inf, "add": 0}
    window, strides = [1] * x.ndim, [1] * x.ndim
    window[1], strides[1] = size, stride
    if not isinstance(padding, str):
        padding = [padding if d == 1 else (0, 0) for d in range(x.ndim)]
    operator = {"max": lax.max, "min": lax.min, "add": lax.add}[kind]
    return lax.reduce_window(x, np.array(ends[kind], x.dtype), operator, window, strides, padding, **options)


def accumulated(kind: str, *, reverse: bool) -> Callable[..., Any]:
    return lambda x: getattr(lax, f"cum{kind}")(x, axis=1, reverse=reverse)


def narrow(dtype: Any) -> float:
    return ROUNDED if dtype == np.float32 else NARROW


def of_dtypes() -> Iterator[Case]:
    row, rows = ("[4,64@x]",), ("[2,32@x,4]",)
    for name, dtype in FLOATS.items():
        x = numbers(2, 32, 4, dtype=dtype)
        yield Case(f"conv, {name}", conv, (x, numbers(3, 4, 4, dtype=dtype)), (*rows, "[3,4,4]"), LINE, narrow(dtype))
        for kind in ("max", "min", "add"):
            yield Case(
                f"{kind} pool, {name}", functools.partial(pool, kind=kind, size=3), (x,), rows, LINE, narrow(dtype)
            )
        for kind in ("sum", "prod", "max", "min", "logsumexp"):
            near_one = (1 + numbers(4, 16) / 9).astype(dtype)
            f = accumulated(kind, reverse=kind in ("sum", "max"))
            yield Case(f"cum{kind}, {name}", f, (near_one,), ("[4,16@x]",), LINE, narrow(dtype))
        ties = numbers(4, 64).round(1).astype(dtype)
        yield Case(f"top_k, {name}", lambda x: lax.top_k(x, 3), (ties,), row, roundings=EXACT, grad=False)
        yield Case(f"sort, {name}", lax.sort, (ties,), row, LINE, narrow(dtype))
    for name, dtype in INTEGERS.items():
        x, y = integers(2, 32, 4, dtype=dtype), integers(4, 64, dtype=dtype, high=20)
        kernel = integers(3, 4, 4, dtype=dtype)
        yield Case(f"conv, {name}", conv, (x, kernel), (*rows, "[3,4,4]"), roundings=EXACT, grad=False)
        for kind in ("max", "min", "add"):
            f = functools.partial(pool, kind=kind, size=3)
            yield Case(f"{kind} pool, {name}", f, (x,), rows, roundings=EXACT, grad=False)
        for kind in ("sum", "prod", "max", "min"):
            f = accumulated(kind, reverse=kind in ("prod", "min"))
            yield Case(f"cum{kind}, {name}", f, (y,), row, roundings=EXACT, grad=False)
        yield Case(f"top_k, {name}", lambda x: lax.top_k(x, 3), (y,), row, roundings=EXACT, grad=False)
        yield Case(f"sort, {name}", lax.sort, (y,), row, roundings=EXACT, grad=False)
        yield Case(f"argsort, {name}", jnp.argsort, (y,), row, roundings=EXACT, grad=False)
    bools = rng.random((2, 32, 4)) > 0.5
    anywhere = functools.partial(
        lax.reduce_window,
        init_value=False,
        computation=lax.max,
        window_dimensions=(1, 3, 1),
        window_strides=(1, 1, 1),
        padding="SAME",
    )
    yield Case("max pool, bool", anywhere, (bools,), rows, roundings=EXACT, grad=False)
    yield Case("sort, bool", lambda x: jnp.sort(x, 1), (bools,), rows, roundings=EXACT, grad=False)


def of_strange_numbers() -> Iterator[Case]:
    for name, dtype in FLOATS.items():
        x, row = strange(dtype), ("[4,64@x]",)
        for kind, reverse in itertools.product(("sum", "prod", "max", "min", "logsumexp"), (False, True)):
            f = accumulated(kind, reverse=reverse)
            roundings = EXACT if kind in ("max", "min") else narrow(dtype)
            label = f"cum{kind}, {name}, {'backwards' if reverse else 'forwards'}"
            yield Case(label, f, (x,), row, LINE, roundings, grad=kind in ("sum", "logsumexp"))
        for f in (lax.sort, jnp.argsort, lambda x: lax.top_k(x, 5), lambda x: lax.top_k(x, 20)):
            yield Case(f"order, {name}", f, (x,), row, roundings=EXACT, grad=False)
        yield Case(f"max pool, {name}", lambda x: pool(x, "max", 5), (x,), row, roundings=EXACT, grad=False)
        yield Case(f"min pool, {name}", lambda x: pool(x, "min", 4, 2), (x,), row, roundings=EXACT, grad=False)


def of_order() -> Iterator[Case]:
    ties = np.zeros((2, 32, 4), np.float32)
    ties[:, ::3] = 1
    place = np.arange(32, dtype=np.float32)[None, :, None]
    yield Case("gradient of a sort with ties", lambda x: jnp.sort(x, 1) * place, (ties,), ("[2,32@x,4]",))
    yield Case("gradient of a pool with ties", lambda x: pool(x, "max", 3), (ties,), ("[2,32@x,4]",))
    few = lambda x: lax.top_k(jnp.swapaxes(x, 1, 2), 5)[0] * np.arange(5, dtype=np.float32)  # noqa: E731
    yield Case("gradient of top_k with ties", few, (ties,), ("[2,32@x,4]",))
    a, b, c = integers(4, 64, high=3), integers(4, 64, high=3), numbers(4, 64)
    for keys in (1, 2, 3):
        f = functools.partial(lambda *xs, keys: lax.sort(xs, num_keys=keys), keys=keys)
        yield Case(f"sort of three by {keys}", f, (a, b, c), ("[4,64@x]",) * 3, roundings=EXACT, grad=False)
    two = lambda a, c: lax.sort((a, c), num_keys=1)  # noqa: E731
    yield Case("a replicated value", two, (a, c), ("[4,64@x]", "[4,64]"), roundings=EXACT)
    yield Case("a replicated key", two, (a, c), ("[4,64]", "[4,64@x]"), roundings=EXACT)
    yield Case("lexsort", lambda a, b: jnp.lexsort((a, b)), (a[0], b[0]), ("[64@x]",) * 2, roundings=EXACT, grad=False)
    yield Case("median", lambda x: jnp.median(x, 0), (numbers(64, 3),), ("[64@x,3]",))
    yield Case("one element each", jnp.sort, (numbers(8),), ("[8@x]",))
    for n, size in ((2, 5), (2, 8), (3, 8), (3, 13), (4, 18), (5, 33), (6, 50), (7, 75), (8, 98), (8, 104)):
        many = np.where(rng.random((3, n * size)) < 0.6, np.nan, integers(3, n * size, high=2)).astype(np.float32)
        two_rows = (many, numbers(3, n * size)), (f"[3,{n * size}@x]",) * 2, {"x": n}
        yield Case(f"{n} devices with {size}, ties of NaN", two, *two_rows, EXACT)
        x, y, three, mesh = strange(np.float32, n * size), integers(3, n * size, high=9), f"[3,{n * size}@x]", {"x": n}
        orders: dict[str, Callable[..., Any]] = {"sort": lax.sort, "argsort": jnp.argsort}
        for name, order in orders.items():
            label, four = f"{n} devices with {size}, {name}", f"[4,{n * size}@x]"
            yield Case(label, order, (x,), (four,), mesh, EXACT, grad=False)
            yield Case(f"{label} of integers", order, (y,), (three,), mesh, EXACT, grad=False)
        yield Case(f"{n} devices with {size}, gradient", lambda x: jnp.sort(x) * x, (y.astype("f4"),), (three,), mesh)
    yield Case("two axes", jnp.sort, (numbers(800),), ("[800@(x,y)]",), PLANE)
    yield Case("two axes, the other way", jnp.argsort, (integers(800),), ("[800@(y,x)]",), PLANE, EXACT, grad=False)
    yield Case("another dim", jnp.sort, (numbers(4, 80),), ("[4@y,80@x]",), PLANE)
    for k in (0, 1, 3, 12, 64):
        best = functools.partial(lax.top_k, k=k)
        yield Case(f"top {k}", best, (numbers(4, 64).round(1),), ("[4,64@x]",), roundings=EXACT, grad=False)
    for t in ("[4,64@(x,y)]", "[4,64@(y,x)]", "[4@y,64@x]"):
        yield Case(f"top_k of {t}", lambda x: lax.top_k(x, 3), (numbers(4, 64),), (t,), PLANE, EXACT)
    for approximate in (lax.approx_max_k, lax.approx_min_k):
        nearly = functools.partial(approximate, k=5, reduction_dimension=1)
        yield Case(approximate.__name__, nearly, (numbers(4, 64),), ("[4,64@x]",), roundings=EXACT)
    yield Case("top_k of one each", lambda x: lax.top_k(x, 3), (numbers(4, 8),), ("[4,8@x]",), roundings=EXACT)


def of_uniques() -> Iterator[Case]:
    for size, count in ((104, 8), (13, 3)):
        row = (f"[{size * count}@x]",), {"x": count}
        for name, dtype in (FLOATS | INTEGERS).items():
            x = strange(np.float32, size * count)[0] if name in FLOATS else integers(size * count, high=20)
            variants: dict[str, dict[str, Any]] = {
                "values": {},
                "counts": {"return_index": True, "return_counts": True},
                "each NaN": {"equal_nan": False},
                "inverse": {"return_inverse": True, "fill_value": 3},
            }
            for label, options in variants.items():
                f = functools.partial(jnp.unique, size=50, **options)
                yield Case(f"unique, {label}, {name}, {count}", f, (np.abs(x).astype(dtype),), *row, EXACT, grad=False)
            for i, label in ((1, "index"), (2, "inverse"), (3, "counts")):  # the values are not computed
                f = functools.partial(_unique, i)
                yield Case(
                    f"unique, {label} alone, {name}, {count}", f, (np.abs(x).astype(dtype),), *row, EXACT, grad=False
                )
    rows = functools.partial(jnp.unique, size=9, axis=0)
    yield Case("unique rows", rows, (integers(104, 2, high=2),), ("[104@x,2]",), LINE, EXACT, grad=False)


def _unique(result: int, x: Any) -> Any:
    return jnp.unique(x, size=50, return_index=True, return_inverse=True, return_counts=True)[result]


def _numbered(x: Any) -> Any:
    return lax.sort((x, lax.broadcasted_iota(np.int32, x.shape, 0)), dimension=0, num_keys=1, is_stable=False)[1]


def of_selections() -> Iterator[Case]:
    column = "[64@x,4]"
    of_places = {
        "an index": lambda x: jnp.sort(x, 0)[5],
        "the last few": lambda x: jnp.sort(x, 0)[-3:],
        "every ninth": lambda x: lax.sort(x, dimension=0)[::9],
        "indices": lambda x: jnp.sort(x, 0)[np.array([[3, 60], [3, 0]])],
        "a dynamic index": lambda x: lax.dynamic_index_in_dim(jnp.sort(x, 0), jnp.int32(99), 0),
        "a count and an index": lambda x: jnp.sort(x, 0)[7] + jnp.sum(jnp.sort(x, 0) > 0, 0).astype(x.dtype),
    }
    for name, dtype in (FLOATS | INTEGERS).items():
        x = strange(np.float32).T.astype(dtype) if name in FLOATS else integers(64, 4, dtype=dtype, high=20)
        for places, f in of_places.items():
            yield Case(f"{places}, {name}", f, (x.copy(),), (column,), roundings=EXACT, grad=False)
    yield Case(
        "bools", lambda x: jnp.sort(x, 0)[30:34], (rng.random((64, 4)) < 0.5,), (column,), roundings=EXACT, grad=False
    )
    x, ties = numbers(64, 4), integers(64, 4, high=3).astype(np.float32)
    place = np.arange(64, dtype=np.float32)[:, None]
    of_numbers = {
        "median": lambda x: jnp.median(x, 0),
        "median of all": jnp.median,
        "quantiles": lambda x: jnp.quantile(x, np.array([0.1, 0.5, 0.99]), 0),
        "quantile, kept": lambda x: jnp.quantile(x, 0.3, 0, keepdims=True, method="nearest"),
        "percentile": lambda x: jnp.percentile(x, 40, 0, method="higher"),
        "nanmedian": jnp.nanmedian,
        "nanquantile": lambda x: jnp.nanquantile(x[:, 0], 0.7),
        "nanmedian of rows": lambda x: jnp.nanmedian(x, 0),
        "rows": jax.vmap(jnp.median, 1),
        "several": lambda x: (jnp.sort(x, 0)[1], jnp.sort(x, 0)[jnp.array([2, 2, 63])] * x[0]),
        "in a scan": lambda x: lax.scan(lambda c, _: (c / 2 + jnp.median(x * c, 0), None), x[0], None, 2)[0],
        "curvature": jax.grad(lambda y: jnp.sum(jnp.median(y**3, 0) ** 2)),
    }
    holes = np.where(rng.random((64, 4)) < 0.3, np.nan, x)
    for name, f in of_numbers.items():
        yield Case(name, f, (x,), (column,))
        # JAX 0.12 sorts for medians without the order of ties: which has the gradient is left open
        yield Case(f"{name}, ties", lambda x, f=f: f(x * 1.0), (ties,), (column,), grad=name == "several")
        yield Case(f"{name}, bf16", f, (x.astype(ml_dtypes.bfloat16),), (column,), LINE, NARROW, grad=False)
        if name.startswith("nan"):
            yield Case(f"{name}, holes", f, (holes,), (column,))
        for t in ("[64@(x,y),4]", "[64@(y,x),4]", "[64@x,4@y]", "[64@x,4]{I:y}", "[64@x,4]{U:y}", "[64,4@x]"):
            yield Case(f"{name} of {t}", f, (x,), (t,), PLANE)
    yield Case("ties in order", lambda x: jnp.sort(x, 0)[20] * jnp.sort(x + place * 0, 0)[40], (ties,), (column,))
    constant = jax.jit(lambda i: lax.dynamic_slice_in_dim(jnp.sort(holes[:, 0]), i, 1))
    yield Case("a sort of a constant", lambda x: x + constant(7), (x,), (column,), roundings=EXACT, grad=False)
    of_complex = jax.jit(lambda x: lax.sort(x, dimension=0)[2:4])
    yield Case("complex", lambda x: jnp.abs(of_complex(x * (1 + 2j))), (x,), (column,), grad=False)
    by_name = {"jitted": jax.jit(lambda x: lax.sort(x, dimension=0)[2:4]), "numbered": jax.jit(_numbered)}
    for name, jitted in by_name.items():
        yield Case(name, jitted, (x,), (column,), roundings=EXACT, grad=False)
    yield Case("what is no number", lambda x: jnp.median(x, 0), (holes,), (column,), grad=False)
    yield Case("one element each", jnp.median, (x[:8, 0].copy(),), ("[8@x]",))
    yield Case("three devices", jnp.median, (x[:33].copy(),), ("[33@x,4]",), {"x": 3})
    traced = lambda x, i: jnp.sort(x, 0)[i]  # noqa: E731
    yield Case("a place among the arguments", traced, (x, np.int32(-3)), (column, "[]"))
    yield Case("places among the arguments", traced, (x, np.array([3, 70], np.int32)), (column, "[2]"))
    yield Case("places that are sharded", traced, (x, np.array([3, 70], np.int32)), (column, "[2@y]"), PLANE)


def of_searches() -> Iterator[Case]:
    for name, dtype in (FLOATS | INTEGERS).items():
        a, v = (strange(np.float32) if name in FLOATS else integers(4, 64, dtype=dtype, high=20) for _ in range(2))
        a, v = np.sort(a, 1).astype(dtype), v.astype(dtype)  # as JAX has it: what is no number comes last
        for side, method in itertools.product(("left", "right"), ("scan", "scan_unrolled", "sort", "compare_all")):
            f = functools.partial(jnp.searchsorted, side=side, method=method)
            label = f"search, {name}, {side}, {method}"
            yield Case(label, f, (a[0], v), ("[64@x]", "[4,64]"), LINE, EXACT, grad=False)
            yield Case(f"{label}, queries alike", f, (a[3], v), ("[64@x]", "[4,64@x]"), LINE, EXACT, grad=False)
    a, v = np.sort(numbers(4, 64), 1), numbers(4, 16)
    for of_a, of_v in (
        ("[64@(y,x)]", "[4,16]"),
        ("[64@x]", "[4@y,16]"),
        ("[64@x]", "[4@y,16@x]"),
        ("[64@x]", "[4,16@(x,y)]"),
        ("[64@x]{I:y}", "[4,16]{I:x}"),
    ):
        yield Case(f"search of {of_v} in {of_a}", jnp.searchsorted, (a[0], v), (of_a, of_v), PLANE, EXACT, grad=False)
    of_rows = jax.vmap(jnp.searchsorted)
    for of_a, of_v in (("[4,64@x]", "[4,16]"), ("[4@y,64@x]", "[4@y,16]"), ("[4@y,64@x]", "[4@y,16@x]")):
        yield Case(f"rows, {of_v} in {of_a}", of_rows, (a, v), (of_a, of_v), PLANE, EXACT, grad=False)
    of_columns = jax.vmap(jnp.searchsorted, (1, None), 1)
    yield Case("columns", of_columns, (a.T.copy(), v), ("[64@x,4]", "[4,16]"), LINE, EXACT, grad=False)
    of_queries = jax.vmap(jnp.searchsorted, (None, 1))
    yield Case("columns of queries", of_queries, (a[0], v), ("[64@x]", "[4,16]"), LINE, EXACT, grad=False)
    square = v[:, :4].copy()
    yield Case("a square of queries", of_queries, (a[0], square), ("[64@x]", "[4,4]"), LINE, EXACT, grad=False)
    yield Case(
        "one element each", jnp.searchsorted, (a[0, ::8].copy(), v), ("[8@x]", "[4,16]"), LINE, EXACT, grad=False
    )
    yield Case("a number", lambda a: jnp.searchsorted(a, 0.1), (a[0],), ("[64@x]",), LINE, EXACT, grad=False)
    yield Case("one query", jnp.searchsorted, (a[0], v[0, 0]), ("[64@x]", "[]"), LINE, EXACT, grad=False)
    for bins in (a[0], a[0, ::-1].copy()):
        yield Case("digitize", jnp.digitize, (v, bins), ("[4,16]", "[64@x]"), LINE, EXACT, grad=False)
    yield Case("interp", jnp.interp, (v, a[0], numbers(64)), ("[4,16]", "[64@x]", "[64@x]"))


def of_running_sums() -> Iterator[Case]:
    near_one = (1 + numbers(4, 24) / 9).astype(np.float32)
    kinds = ("sum", "prod", "max", "min", "logsumexp")
    for kind, reverse in itertools.product(kinds, (False, True)):
        f, ends = accumulated(kind, reverse=reverse), f"cum{kind}, {'backwards' if reverse else 'forwards'}"
        for count, size in ((2, 4), (3, 12), (6, 12), (8, 8)):
            mesh = {"x": count}
            yield Case(f"{count} devices, {ends}", f, (near_one[:, :size],), (f"[4,{size}@x]",), mesh)
        for t in ("[4,24@(x,y)]", "[4,24@(y,x)]", "[4@y,24@x]", "[4,24@x]{I:y}", "[4,24@x]{R:y}", "[4,24@x]{U:y}"):
            if "U" not in t or kind == "sum":
                yield Case(f"{t}, {ends}", f, (near_one,), (t,), PLANE)
    yield Case("complex", lambda x: jnp.abs(jnp.cumsum(x * (1 + 2j), 1)), (near_one[:, :16],), ("[4,16@x]",))
    for kind in ("max", "logsumexp"):
        gradient = jax.grad(lambda x, kind=kind: total(jnp, getattr(lax, f"cum{kind}")(x, 1)))
        yield Case(f"gradient of cum{kind}", gradient, (numbers(2, 16),), ("[2,16@x]",))
    zeros = np.where(rng.random((4, 24)) < 0.2, 0, near_one)
    yield Case("products with zeros", lambda x: jnp.cumprod(x, 1), (zeros,), ("[4,24@x]",))


#: Windows along a dim of some size: the size of the kernel, and how it moves.
WINDOWS: Sequence[tuple[int, int, dict[str, Any]]] = [
    (16, 9, {}),
    (16, 13, {}),
    (8, 31, {}),
    (8, 3, {}),
    (16, 1, {"padding": [(1, -1)]}),
    (16, 4, {"padding": [(1, 2)]}),
    (16, 4, {"padding": [(0, 3)]}),
    (16, 3, {"padding": [(-1, 3)]}),
    (16, 3, {"padding": [(4, -2)]}),
    (16, 3, {"padding": [(-5, 7)]}),
    (16, 3, {"padding": [(-20, 22)]}),
    (16, 3, {"padding": [(22, -20)]}),
    (32, 5, {"window_strides": (2,)}),
    (16, 5, {"window_strides": (2,)}),
    (64, 3, {"window_strides": (4,), "padding": [(1, 0)]}),
    (48, 3, {"window_strides": (3,), "padding": [(1, 0)]}),
    (32, 3, {"rhs_dilation": (4,)}),
    (16, 3, {"rhs_dilation": (7,)}),
    (16, 3, {"lhs_dilation": (2,), "padding": [(1, 2)]}),
    (16, 5, {"lhs_dilation": (3,), "padding": [(2, 4)]}),
    (16, 3, {"lhs_dilation": (2,), "window_strides": (2,), "padding": [(1, 1)]}),
    (32, 3, {"lhs_dilation": (3,), "rhs_dilation": (2,), "window_strides": (2,), "padding": [(2, 2)]}),
    (16, 3, {"lhs_dilation": (4,), "window_strides": (2,), "padding": [(0, 4)]}),
    (16, 1, {"lhs_dilation": (4,), "window_strides": (4,), "padding": [(-1, 2)]}),
    (16, 3, {"padding": "VALID"}),
    (24, 9, {"padding": "VALID"}),
    (16, 3, {"padding": [(2, 2)]}),
    (16, 9, {"padding": [(8, 8)]}),
    (16, 5, {"padding": [(8, 4)]}),
    (32, 3, {"window_strides": (2,), "padding": [(9, 8)]}),
    (16, 3, {"lhs_dilation": (2,), "padding": [(9, 10)]}),
    (16, 3, {"lhs_dilation": (2,), "padding": [(5, 6)]}),
    (16, 3, {"rhs_dilation": (4,), "padding": "VALID"}),
    (40, 4, {"window_strides": (2,)}),
    (40, 3, {"padding": "VALID"}),
    (24, 3, {"lhs_dilation": (2,), "padding": [(1, 2)]}),
    (40, 4, {"lhs_dilation": (2,), "window_strides": (3,), "padding": [(1, 0)]}),
    (16, 6, {"window_strides": (3,), "padding": [(3, 0)]}),
    (16, 12, {"padding": "VALID"}),
]


def of_convolutions() -> Iterator[Case]:
    for n, size, options in WINDOWS:
        f = functools.partial(conv, **options)
        args, types = (numbers(2, n, 4), numbers(size, 4, 4)), (f"[2,{n}@x,4]", f"[{size},4,4]")
        yield Case(f"{size} of {n}, {options}", f, args, types)
    x, k = numbers(4, 16, 4), numbers(3, 4, 8)
    line = "[4,16@x,4]"
    grouped = {"feature_group_count": (2, 4), "batch_group_count": (2,)}
    for name, counts in grouped.items():
        for count in counts:
            inputs = 4 // count if name == "feature_group_count" else 4
            f = functools.partial(conv, **{name: count})
            yield Case(f"{name} {count}", f, (x, numbers(3, inputs, 8)), (line, f"[3,{inputs},8]"))
    for t, of_kernel, mesh in [
        ("[4@y,16@x,4]", "[3,4,8]", PLANE),
        (line, "[3,4,8@y]", PLANE),
        ("[4,16@x,4@y]", "[3,4@y,8]", PLANE),
        ("[4,16@(x,y),4]", "[3,4,8]", PLANE),
        ("[4,16@(y,x),4]", "[3,4,8]", PLANE),
        ("[4,16@x,4]{U:y}", "[3,4,8]", PLANE),
        ("[4,16@x,4]{I:y}", "[3,4,8]{I:x,I:y}", PLANE),
        (line, "[3,4,8@x]", {"x": 4}),
        (line, "[3,4@x,8]", {"x": 4}),
        (line, "[3,4,8]{U:x}", LINE),
        (line, "[3,4,8]{I:x}", LINE),
        (line, "[3,4,8]{R:x}", LINE),
    ]:
        yield Case(f"{t} with {of_kernel}", conv, (x, k), (t, of_kernel), mesh)
    odd = functools.partial(conv, window_strides=(2,))
    yield Case(
        "uneven results, batch on y", odd, (numbers(2, 12, 3), numbers(4, 3, 3)), ("[2@y,12@x,3]", "[4,3,3]"), PLANE
    )
    image, kernel = numbers(2, 16, 8, 4), numbers(3, 3, 4, 4)
    for strides in ((1, 1), (2, 2)):
        f = functools.partial(conv, window_strides=strides)
        yield Case(
            f"both dims of uneven results, {strides}",
            f,
            (numbers(2, 12, 6, 2), numbers(3, 3, 2, 1)),
            ("[2,12@x,6@y,2]", "[3,3,2,1]"),
            PLANE,
        )
        yield Case(f"both dims, {strides}", f, (image, kernel), ("[2,16@x,8@y,4]", "[3,3,4,4]"), PLANE)
    channels_first = lambda x, k: lax.conv_general_dilated(x, k, (2, 1), "SAME")  # noqa: E731
    yield Case("NCHW", channels_first, (numbers(2, 4, 5, 16), numbers(6, 4, 3, 3)), ("[2,4,5,16@x]", "[6,4,3,3]"))
    for size, stride, pads in ((4, 2, "SAME"), (4, 2, "VALID"), (5, 3, "SAME")):
        f = functools.partial(lax.conv_transpose, strides=(stride,), padding=pads, dimension_numbers=WIDE)
        yield Case(f"transposed, {size}, {stride}, {pads}", f, (x, numbers(size, 4, 4)), (line, f"[{size},4,4]"))
    convolve = lambda x, k: jnp.convolve(x, k, "same")  # noqa: E731
    yield Case("jnp.convolve", convolve, (numbers(32), numbers(5)), ("[32@x]", "[5]"))
    turned = lambda x, k: jnp.abs(conv(x * (1 + 1j), k * (2 - 1j)))  # noqa: E731
    yield Case("complex", turned, (x, k), (line, "[3,4,8]"))


def of_pools() -> Iterator[Case]:
    for kind in ("max", "min", "add"):
        for n, size, stride, pads in [
            (16, 3, 1, (0, 2)),
            (40, 3, 2, "SAME"),
            (24, 3, 1, "VALID"),
            (16, 3, 1, (2, 0)),
            (32, 5, 2, "SAME"),
            (64, 3, 4, (1, 0)),
            (64, 2, 4, (1, 0)),
            (16, 9, 1, "SAME"),
            (8, 31, 1, "SAME"),
            (8, 3, 1, "SAME"),
            (16, 3, 1, "VALID"),
            (24, 9, 1, "VALID"),
            (32, 3, 2, (9, 8)),
        ]:
            f = functools.partial(pool, kind=kind, size=size, stride=stride, padding=pads)
            yield Case(f"{kind} of {size}, {n}, {stride}, {pads}", f, (numbers(2, n, 4),), (f"[2,{n}@x,4]",))
        for t in ("[2,16@(x,y),4]", "[2@y,16@x,4]", "[2,16@x,4]{I:y}"):
            yield Case(f"{kind} pool of {t}", lambda x, kind=kind: pool(x, kind, 3), (numbers(2, 16, 4),), (t,), PLANE)
        dilated = functools.partial(pool, kind=kind, size=3, window_dilation=(1, 3, 1))
        yield Case(f"dilated {kind} pool", dilated, (numbers(2, 32, 4),), ("[2,32@x,4]",), grad=kind == "add")
    for size, stride in ((3, 1), (4, 2), (9, 2)):
        f = functools.partial(pool, kind="add", size=size, stride=stride)
        gradient = jax.grad(lambda x, f=f: total(jnp, f(x)))
        yield Case(f"gradient of sums of {size}, {stride}", gradient, (numbers(2, 32, 4),), ("[2,32@x,4]",))
    spread = functools.partial(pool, kind="add", size=3, padding=(1, 2), base_dilation=(1, 2, 1))
    yield Case("sums of spread elements", spread, (numbers(2, 16, 4),), ("[2,16@x,4]",))
    sums = functools.partial(pool, kind="add", size=3)
    yield Case("sums of a pending sum", sums, (numbers(2, 16, 4),), ("[2,16@x,4]{U:y}",), PLANE)


def spectrum(f: Callable[..., Any], x: Any) -> Any:
    y = f(x * (1 + 0.5j))
    return y.real, y.imag


def of_spectra() -> Iterator[Case]:
    fft, ifft, fft2, fftn = (getattr(jnp.fft, name) for name in ("fft", "ifft", "fft2", "fftn"))
    of_one = functools.partial(Case, way="of_one_dim")
    for n, count in ((128, 8), (36, 3), (72, 6), (16, 4), (4, 2)):
        yield of_one(f"fft of {n}", functools.partial(spectrum, fft), (numbers(n),), (f"[{n}@x]",), {"x": count})
        yield of_one(f"ifft of {n}", functools.partial(spectrum, ifft), (numbers(n),), (f"[{n}@x]",), {"x": count})
    for t in ("[128@(x,y)]", "[128@(y,x)]", "[128@x]{U:y}", "[128@x]{I:y}"):
        yield of_one(f"fft of {t}", functools.partial(spectrum, fft), (numbers(128),), (t,), PLANE)
    for f, t, mesh in [
        (fft, "[8@y,16@x]", PLANE),
        (fft, "[3,64@x]", LINE),
        (ifft, "[8,16@x]", LINE),
        (fft2, "[16@x,16]", LINE),
        (fft2, "[16,16@x]", LINE),
        (fft2, "[16@(x,y),16]", PLANE),
        (fft2, "[16@(y,x),16]", PLANE),
        (fft2, "[16@x,16@y]", PLANE),
        (fft2, "[16@y,16@x]", PLANE),
        (fft2, "[4,16@x,16@y]", PLANE),
        (fft2, "[4@x,16,16@y]", PLANE),
        (fftn, "[8@x,8@y,8]", PLANE),
        (fftn, "[8@x,8,8@y]", PLANE),
    ]:
        shape = tuple(
            int(n.split("@")[0]) for n in t.strip("[]").replace("(x,y)", "x").replace("(y,x)", "x").split(",")
        )
        yield Case(f"{f.__name__} of {t}", functools.partial(spectrum, f), (numbers(*shape),), (t,), mesh)
    twice = lambda x: jnp.fft.irfft2(jnp.fft.rfft2(x) * 2)  # noqa: E731
    yield Case("there and back", twice, (numbers(16, 16),), ("[16@x,16]",))
    yield Case("there and back, both dims", twice, (numbers(16, 16),), ("[16@x,16@y]",), PLANE)


def of_tall_matrices() -> Iterator[Case]:
    a = numbers(64, 4)

    def product(a: Any) -> Any:
        u, s, v = jnp.linalg.svd(a, full_matrices=False)
        return (u * s) @ v, s

    yield Case("qr", jnp.linalg.qr, (a,), ("[64@x,4]",))
    yield Case("qr of two axes", jnp.linalg.qr, (a,), ("[64@(x,y),4]",), PLANE)
    yield Case("qr of a batch", jnp.linalg.qr, (numbers(2, 64, 4),), ("[2@y,64@x,4]",), PLANE)
    yield Case("qr of one column", jnp.linalg.qr, (numbers(64, 1),), ("[64@x,1]",))
    yield Case("qr of squares", jnp.linalg.qr, (numbers(32, 4),), ("[32@x,4]",))
    yield Case("svd", product, (a,), ("[64@x,4]",))
    yield Case("singular values", lambda a: jnp.linalg.svd(a, compute_uv=False), (a,), ("[64@x,4]",))
    yield Case("least squares", lambda a, b: jnp.linalg.lstsq(a, b)[0], (a, numbers(64)), ("[64@x,4]", "[64@x]"))


def of_triangles() -> Iterator[Case]:
    a = numbers(2, 16, 16)
    definite = a @ np.swapaxes(a, 1, 2) + 16 * np.eye(16, dtype=np.float32)
    cholesky = jnp.linalg.cholesky
    of_complex = lambda a: [f(cholesky(a * (1 + 0.1j * np.tril(np.ones(16))))) for f in (jnp.real, jnp.imag)]  # noqa: E731
    for t in ("[16@x,16]", "[16@(x,y),16]", "[16@(y,x),16]", "[16@x,16]{I:y}"):
        yield Case(f"cholesky of {t}", cholesky, (definite[0],), (t,), PLANE)
    yield Case("cholesky of a batch", cholesky, (definite,), ("[2@y,16@x,16]",), PLANE)
    gradient = jax.grad(lambda a: total(jnp, cholesky(a)))
    yield Case("gradient of cholesky", gradient, (definite[0],), ("[16@x,16]",), grad=False)
    yield Case("upper cholesky", lambda a: cholesky(a, upper=True), (definite[0],), ("[16,16@x]",))
    yield Case("cholesky of what is not symmetric", cholesky, (definite[0] + a[0],), ("[16@x,16]",))
    yield Case("cholesky of triangles", lambda a: cholesky(a, symmetrize_input=False), (definite[0],), ("[16@x,16]",))
    for lower in (True, False):
        f = functools.partial(jax.scipy.linalg.cholesky, lower=lower)
        for t in ("[16@x,16]", "[16,16@x]"):
            yield Case(f"cholesky of SciPy, {lower}, of {t}", f, (definite[0] + a[0],), (t,))
    curvature = jax.grad(lambda a: jnp.sum(jnp.linalg.cholesky(a) ** 3))
    yield Case("curvature of cholesky", curvature, (definite[0],), ("[16@x,16]",))
    yield Case("cholesky of one row each", cholesky, (definite[0, :8, :8],), ("[8@x,8]",))
    yield Case("cholesky of complex numbers", of_complex, (definite[0],), ("[16@x,16]",))
    indefinite = definite * np.array([1, -1], np.float32)[:, None, None]
    yield Case("no cholesky", cholesky, (indefinite,), ("[2,16@x,16]",), grad=False)
    factor = np.linalg.cholesky(definite) / 4 + np.triu(a, 1)  # of which the other half is not read
    for left, lower, transposes, unit in itertools.product((True, False), repeat=4):
        f = functools.partial(
            lax.linalg.triangular_solve, left_side=left, lower=lower, transpose_a=transposes, unit_diagonal=unit
        )
        args = (factor[0] if lower else factor[0].T), (numbers(16, 3) if left else numbers(3, 16))
        for t in ("[16@x,16]", "[16,16@x]"):
            name = f"{'left' if left else 'right'}, {lower}, {transposes}, {unit}, {t}"
            yield Case(f"triangular solve, {name}", f, args, (t, "[16@x,3]" if left else "[3,16@x]"))
    solve = functools.partial(jax.scipy.linalg.solve_triangular, lower=True)
    for b in ("[16@(x,y),3]", "[16,3]", "[16@(x,y),3]{R:z}"):
        mesh = PLANE | {"z": 1} if "z" in b else PLANE
        yield Case(f"triangular solve of {b}", solve, (factor[0], numbers(16, 3)), ("[16@(x,y),16]", b), mesh)
    of_batch = (factor, numbers(2, 16, 3)), ("[2@y,16@x,16]", "[2@y,16@x,3]")
    yield Case("triangular solve of a batch", lambda a, b: solve(a, b, trans=1), *of_batch, PLANE)
    yield Case("pending right side", solve, (factor[0], numbers(16)), ("[16@x,16]", "[16@x]{U:y}"), PLANE)
    turned = lambda a, b: jnp.abs(solve(a * (1 + 0.5j), b, trans=2))  # noqa: E731
    yield Case("triangular solve of complex numbers", turned, (factor[0], numbers(16)), ("[16@x,16]", "[16@x]"))


def of_lookups() -> Iterator[Case]:
    ids, rows = integers(16, high=30), ("[32@x,4]", "[16@x]")
    negative = np.array([-1, -32, -33, 31, 32, 99, 0, 5] * 2, np.int32)
    lookups: dict[str, Callable[..., Any]] = {
        "take": lambda x, i: jnp.take(x, i, axis=0),
        "clipped": lambda x, i: jnp.take(x, i, axis=0, mode="clip"),
        "filled": lambda x, i: x.at[i].get(mode="fill", fill_value=7),
        "wrapped": lambda x, i: jnp.take(x, i, axis=0, mode="wrap"),
        "index": lambda x, i: x[i],
    }
    for name, dtype in (FLOATS | INTEGERS).items():
        x = strange(np.float32, 32).T.astype(dtype) if name in FLOATS else integers(32, 4, dtype=dtype, high=20)
        for label, f in lookups.items():
            yield Case(f"{label}, {name}", f, (x.copy(), negative), rows, roundings=EXACT, grad=False)
    bools = rng.random((32, 4)) < 0.5
    yield Case("bools", lookups["take"], (bools, negative), rows, roundings=EXACT, grad=False)
    for dtype in (np.int8, np.uint8, np.uint32):
        narrow_ids = (ids % 40).astype(dtype)
        yield Case(f"ids of {dtype.__name__}", lookups["take"], (numbers(32, 4), narrow_ids), rows, roundings=EXACT)
    x, many, two = numbers(32, 4), integers(16, 3, high=32), integers(8, 16, high=32)
    for label, f in lookups.items():
        yield Case(f"gradient of {label}", f, (x, ids), rows, roundings=EXACT)
        yield Case(
            f"gradient of {label}, beyond", f, (x, negative), rows, roundings=EXACT, grad=label not in ("take", "index")
        )
    of_columns = lambda x, i: jnp.take(x, i, axis=1)  # noqa: E731
    along = lambda x, i: jnp.take_along_axis(x, i % 32, axis=0)  # noqa: E731
    for name, f, args, types in [
        ("columns", of_columns, (x.T.copy(), ids), ("[4,32@x]", "[16@x]")),
        ("many", lookups["take"], (x, many), ("[32@x,4]", "[16@x,3]")),
        ("last of many", lookups["take"], (x, many.T.copy()), ("[32@x,4]", "[3,16@x]")),
        ("many columns", of_columns, (x.T.copy(), many), ("[4,32@x]", "[16@x,3]")),
        ("along", along, (x, integers(16, 4)), ("[32@x,4]", "[16@x,4]")),
        ("rows", jax.vmap(lookups["index"], (None, 0)), (x, many.T.copy()), ("[32@x,4]", "[3,16@x]")),
        ("curvature", jax.grad(lambda x, i: jnp.sum(x[i] ** 3)), (x, ids), rows),
        ("in a scan", lambda x, i: lax.scan(lambda c, _: (c / 2 + x[i], None), x[i], None, 2)[0], (x, ids), rows),
    ]:
        yield Case(name, f, args, types, roundings=ROUNDED)
    for of_x, of_ids in [
        ("[32@(x,y),4]", "[8,16@(x,y)]"),
        ("[32@(y,x),4]", "[8,16@(y,x)]"),
        ("[32@x,4@y]", "[8,16@x]"),
        ("[32@x,4]", "[8@y,16@x]"),
        ("[32@x,4]{I:y}", "[8@y,16@x]"),
        ("[32@x,4]{U:y}", "[8,16@x]"),
        ("[32@x,4]", "[8@x,16@y]"),
        ("[32@x,4@y]", "[8@y,16@x]"),
        ("[32@x,4]", "[8@x,16]"),
        ("[32@x,4]", "[8,16@(x,y)]"),
    ]:
        yield Case(f"take of {of_x} by {of_ids}", lookups["take"], (x, two), (of_x, of_ids), PLANE, ROUNDED)
    updates, alike = numbers(64, 4), ("[16@x,4]", "[64@x]", "[64@x,4]")
    changes: dict[str, Callable[..., Any]] = {
        "add": lambda x, i, v: x.at[i].add(v),
        "subtract": lambda x, i, v: x.at[i].subtract(v, mode="clip"),
        "set": lambda x, i, v: x.at[i].set(v, mode="drop"),
        "max": lambda x, i, v: x.at[i].max(v),
    }
    for label, f in changes.items():
        changed: Sequence[Any] = (numbers(16, 4), integers(64, high=20), updates)
        yield Case(f"{label} at", f, changed, alike, grad=label in ("add", "subtract"))
        if label != "set":
            whole = tuple(np.round(x * 9).astype(np.int32) for x in changed)
            yield Case(f"{label} at, integers", f, whole, alike, roundings=EXACT, grad=False)
    for layouts in [
        ("[16@(x,y),4]", "[64@(x,y)]", "[64@(x,y),4]"),
        ("[16@x,4@y]", "[64@x]", "[64@x,4@y]"),
        ("[16@x,4]", "[64@x]", "[64@x,4]{U:y}"),
        ("[16@x,4]{U:y}", "[64@x]", "[64@x,4]"),
        ("[16@x,4]", "[64@x]", "[64,4]"),
        ("[16@x,4]", "[64@x]", "[64@y,4]"),
    ]:
        changed = (numbers(16, 4), integers(64, high=16), updates)
        yield Case(f"add at {layouts}", changes["add"], changed, layouts, PLANE)


def of_changes() -> Iterator[Case]:
    joins: dict[str, Callable[..., Any]] = {
        "max": lambda x, i, v: x.at[i].max(v),
        "min": lambda x, i, v: x.at[i].min(v, mode="clip"),
        "multiply": lambda x, i, v: x.at[i].multiply(v, mode="drop"),
    }
    layouts = ("[16,4]", "[16@x,4]"), "[64@x]", "[64@x,4]"
    for (name, f), (of_x, dtype) in itertools.product(joins.items(), itertools.product(layouts[0], FLOATS | INTEGERS)):
        kind = (FLOATS | INTEGERS)[dtype]
        x, v = (
            (strange(np.float32, n).T.astype(kind) for n in (16, 64))
            if dtype in FLOATS
            else (integers(n, 4, dtype=kind, high=9) for n in (16, 64))
        )
        exact = EXACT if name != "multiply" or dtype in INTEGERS else narrow(kind)
        case = Case(
            f"{name} at, {dtype} of {of_x}", f, (x, integers(64, high=20), v), (of_x, *layouts[1:]), LINE, exact
        )
        args = [np.where(a == 0, 0, a).astype(a.dtype) for a in case.args]
        yield case._replace(grad=False, args=args)
        if dtype in FLOATS and name != "multiply":
            finite = functools.partial(lambda x, i, v, f: jnp.nan_to_num(f(x, i, v), posinf=0, neginf=0), f=f)
            within = [args[0], args[1] % 16, args[2]]  # in JAX 0.10 what is clipped has no part in a gradient
            yield case._replace(name=f"{case.name}, gradient", f=finite, args=within)
    for (name, f), types in itertools.product(
        joins.items(),
        [
            ("[16,4]", "[64@(x,y)]", "[64@(y,x),4]"),
            ("[16,4]", "[64@(y,x)]", "[64@(y,x),4]"),
            ("[16@(x,y),4]", "[64@(x,y)]", "[64@(x,y),4]"),
            ("[16,4@y]", "[64@x]", "[64@x,4@y]"),
            ("[16@x,4]", "[64@x]", "[64,4]"),
            ("[16,4]", "[64]", "[64@x,4]"),
            ("[16@y,4]", "[64@x]", "[64@x,4]"),
            ("[16,4]{I:x}", "[64@x]", "[64@x,4]{I:y}"),
        ],
    ):
        args = [numbers(16, 4), integers(64, high=16), numbers(64, 4)]
        yield Case(f"{name} at {types}", f, args, types, PLANE, grad=name != "multiply")
    columns = lambda x, i, v: x.at[:, i].max(v)  # noqa: E731
    yield Case("columns", columns, (numbers(3, 5), integers(64), numbers(3, 64)), ("[3,5]", "[64@x]", "[3,64@x]"))
    ties = integers(16, 4, high=2).astype(np.float32), integers(64, high=16), integers(64, 4, high=2).astype(np.float32)
    scale = np.linspace(1, 2, 64, dtype=np.float32).reshape(16, 4)
    for of_x, name in itertools.product(layouts[0], ("max", "min")):
        tied = functools.partial(lambda x, i, v, f: f(x, i, v) * scale, f=joins[name])
        curvature = jax.grad(lambda x, i, v, f=tied: jnp.sum(f(x, i, v) ** 3), (0, 2))
        yield Case(f"ties of {name} in {of_x}", tied, ties, (of_x, *layouts[1:]))
        yield Case(f"curvature of {name} in {of_x}", curvature, ties, (of_x, *layouts[1:]))
    odd = numbers(5, 3), integers(64, high=5), numbers(64, 3)
    yield Case("products of odd sizes", joins["multiply"], odd, ("[5,3]", "[64@x]", "[64@x,3]"), grad=False)
    once = lambda x, i, v: x.at[i].multiply(v, unique_indices=True)  # noqa: E731
    each = numbers(64, 4), rng.permutation(64).astype(np.int32), numbers(64, 4)
    for of_x in ("[64,4]", "[64@x,4]"):
        yield Case(f"products at unique positions of {of_x}", once, each, (of_x, "[64@x]", "[64@x,4]"))
    bools = rng.random((16, 4)) < 0.5, integers(64, high=16), rng.random((64, 4)) < 0.5
    for name in ("max", "min"):
        yield Case(f"{name} of bools", joins[name], bools, layouts[0][:1] + layouts[1:], grad=False)
    for name in ("max", "min", "prod"):
        segments = functools.partial(getattr(jax.ops, f"segment_{name}"), num_segments=8)
        yield Case(
            f"segments, {name}",
            segments,
            (numbers(64, 4).round(1), integers(64, high=8)),
            ("[64@x,4]", "[64@x]"),
            grad=name != "prod",
        )


def of_bools() -> Iterator[Case]:
    table, ids = rng.random((32, 4)) < 0.5, integers(16, high=40)
    for mode, of_ids in itertools.product(("clip", "fill", "wrap"), ("[16]", "[16@y]", "[16@x]")):
        f = functools.partial(jnp.take, axis=0, mode=mode)
        for of_table in ("[32@x,4]", "[32@(x,y),4]", "[32@x,4@y]"):
            name = f"{mode} in bools of {of_table} at {of_ids}"
            yield Case(name, f, (table, ids), (of_table, of_ids), PLANE, EXACT, grad=False)


def of_moves() -> Iterator[Case]:
    moves: dict[str, Callable[..., Any]] = {
        "roll": lambda x: jnp.roll(x, (5, -3), (0, 1)),
        "flip": jnp.flip,
        "pad": lambda x: jnp.pad(x, ((2, 2), (1, 1))),
        "pad with a number": lambda x: jnp.pad(x, ((2, 2), (1, 1)), constant_values=x[0, 0]),
        "wrap": lambda x: jnp.pad(x, ((2, 2), (1, 1)), "wrap"),
        "roll of a pad": lambda x: jnp.roll(jnp.pad(x, ((2, 2), (1, 1))), (1, 1), (0, 1)),
        "differences": lambda x: jnp.diff(jnp.diff(x, axis=0, prepend=0.0), axis=1, prepend=0.0),
    }
    for (name, f), t in itertools.product(moves.items(), ("[16@x,8@y]", "[16@y,8@x]", "[16,8@(x,y)]")):
        yield Case(f"{name} of {t}", f, (numbers(16, 8),), (t,), PLANE)
    sizes: dict[str, Callable[..., Any]] = {
        "slice": lambda x: jnp.abs(x[2:10]),
        "steps": lambda x: x[::-2],
        "split": lambda x: jnp.split(x, 2),
        "wide pad": lambda x: jnp.pad(x, ((3, 5), (0, 0))),
        "wrapped": lambda x: jnp.concatenate([x[-4:], x, x[:4]]),
        "few": lambda x: (x[3:6], jnp.sin(x[2:5] - x[7:10]), x[-1]),
        "few with edges": lambda x: jnp.pad(x[3:6], ((1, 1), (0, 0)), "edge"),
        "many times": lambda x: jnp.concatenate([x, x * 2, x[::-1]]),
    }
    for dtype, (name, f) in itertools.product((np.float32, ml_dtypes.bfloat16, np.int8), sizes.items()):
        x = integers(16, 4, dtype=dtype) if dtype == np.int8 else strange(dtype)[:, :16].T.copy()
        yield Case(f"{name}, {x.dtype}", f, (x,), ("[16@x,4@y]",), PLANE, EXACT, grad=False)
    for (name, f), t in itertools.product(sizes.items(), ("[16@x,8@y]", "[16@(y,x),8]", "[16@x,8]{R:y}")):
        yield Case(f"{name} to another size, {t}", f, (numbers(16, 8),), (t,), PLANE)
    for t in ("[8@z,4@y,8@x]", "[8,4@y,8@(z,x)]", "[8@(x,z),4@y,8]"):
        cube = {"x": 2, "y": 2, "z": 2}
        yield Case(f"flip of {t}", lambda x: jnp.flip(x, (0, 2)), (numbers(8, 4, 8),), (t,), cube, EXACT)


def of_nothing() -> Iterator[Case]:
    for f in (lambda x: jnp.cumsum(x, 1), lambda x: jnp.sort(x, 1), lambda x: lax.top_k(x, 2)[0]):
        yield Case("no rows", f, (numbers(0, 16),), ("[0,16@x]",), roundings=EXACT)
    yield Case("no images", conv, (numbers(0, 16, 4), numbers(3, 4, 4)), ("[0,16@x,4]", "[3,4,4]"))
    yield Case("no pools", lambda x: pool(x, "max", 3), (numbers(0, 16, 4),), ("[0,16@x,4]",))
    yield Case("no spectra", lambda x: jnp.abs(jnp.fft.fft(x)), (numbers(0, 64),), ("[0,64@x]",))


CASES = [
    case
    for family in (
        of_dtypes,
        of_strange_numbers,
        of_order,
        of_searches,
        of_selections,
        of_uniques,
        of_running_sums,
        of_convolutions,
        of_pools,
        of_spectra,
        of_tall_matrices,
        of_triangles,
        of_lookups,
        of_bools,
        of_changes,
        of_moves,
        of_nothing,
    )
    for case in family()
]


def total(m: Any, y: Any) -> Any:
    """The sum of the sines of all that has a gradient, in f32."""
    widened = [m.sin(m.astype(leaf, "float32") if m is sh else leaf.astype("float32")) for leaf in _inexact(y)]
    return sum(m.sum(leaf) for leaf in widened)


def _inexact(y: Any) -> list[Any]:
    return [leaf for leaf in jax.tree.leaves(y) if jnp.issubdtype(leaf.dtype, jnp.inexact)]


def always(case: Case) -> Callable[..., Any]:
    """The first way that is one, or that of a name; the row of the primitive where none is."""

    def evaluated(eqn: Any, operands: list[Any]) -> list[Any]:
        for way in ways_of(eqn):
            if case.way in (None, way.run.__name__) and (results := way.run(eqn, operands)) is not None:
                return list(results)
        return (ROWS | BODIES)[eqn.primitive.name](eqn, operands)

    return evaluated


def assert_same(value: Any, plain: Any, roundings: float, name: str) -> None:
    a, b = host(value), np.asarray(plain)
    assert a.dtype == b.dtype
    if roundings:
        assert_close(a, b, roundings, name)
        return
    if jnp.issubdtype(a.dtype, jnp.floating):
        a, b = a.astype(np.float32), b.astype(np.float32)
        both = ~np.isnan(a)
        np.testing.assert_array_equal(np.signbit(a)[both], np.signbit(b)[both], name)
    np.testing.assert_array_equal(a, b, name)


@pytest.mark.one_in(1009)
@pytest.mark.parametrize("policy", ["partial", "jax"])
@pytest.mark.parametrize("case", CASES, ids=[c.name for c in CASES])
def test_each_way_computes_what_one_device_computes(case: Case, policy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CHOICES:
        monkeypatch.setitem(CHOICES, name, always(case))
    places = tuple(i for i, x in enumerate(case.args) if case.grad and jnp.issubdtype(x.dtype, jnp.inexact))

    def plain(*args: Any) -> Any:
        return case.f(*args), jax.grad(lambda *args: total(jnp, case.f(*args)), places)(*args) if places else ()

    expected = jax.jit(plain)(*case.args)
    devices = jax.devices()[: int(np.prod(list(case.mesh.values())))]
    with sh.policy(policy), sh.use_mesh(sh.make_mesh(case.mesh, devices=devices)):
        args = [sh.array(x, t) for x, t in zip(case.args, case.types, strict=True)]

        def typed(*args: Any) -> Any:
            with sh.implicit_comm():
                gradients = sh.grad(lambda *args: total(sh, sh.lift(case.f)(*args)), places)(*args) if places else ()
                return sh.lift(case.f)(*args), gradients

        if not any(x.dtype == ml_dtypes.bfloat16 for x in case.args):  # which XLA widens on CPU devices
            assert_compiled_as_said(typed, *args, jits=[jax.jit])
        values, gradients = jax.block_until_ready(jax.jit(typed)(*args))
        for value, one in zip(jax.tree.leaves(values), jax.tree.leaves(expected[0]), strict=True):
            assert_same(value, one, case.roundings, "value")
        for value, one in zip(jax.tree.leaves(gradients), jax.tree.leaves(expected[1]), strict=True):
            assert_same(value, one, max(case.roundings, NARROW), "gradient")
