"""Cases of primitives that reduce dims, run along them, order what is along them, or slide windows over them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.lifting.row_cases.case import Case, case


def _reductions() -> Iterator[Case]:
    for name in ("sum", "max", "min", "prod"):
        f = getattr(lax, f"reduce_{name}_p").bind
        close = "sums" if name in ("sum", "prod") else "bits"
        kind = "" if name in ("sum", "prod") else "!"
        params = {"out_sharding": None}
        if name == "prod" and not _takes(f, (0,), params):
            params = {}
        for label, axes in (("rows", (0,)), ("columns", (1,)), ("all", (0, 1)), ("none", ())):
            g = functools.partial(f, axes=axes, **params)
            yield case(f"reduce_{name}", label, g, f"f32[8,4]{kind}", close=close)
        g = functools.partial(f, axes=(1,), **params)
        yield case(
            f"reduce_{name}",
            "NaN and infinities",
            g,
            np.asarray(
                [[1, np.nan, 2, 3], [np.inf, 1, 2, 3], [-np.inf, np.inf, 0, 1], [-0.0, -0.0, -0.0, -0.0]] * 2,
                np.float32,
            ),
            close="sums",
        )
        yield case(f"reduce_{name}", "no elements", g, "f32[8,0]", close=close, orders=1)
        yield case(f"reduce_{name}", "no rows", g, "f32[0,4]", close=close, orders=1)
        yield case(f"reduce_{name}", "one element", g, "f32[8,1]!", close=close)
        yield case(f"reduce_{name}", "of many equals", g, np.asarray([[1, 1, 0, 1], [-0.0, 0.0, -0.0, 0.0]] * 4, np.float32),
                   close="sums")  # fmt: skip
        for dtype in ("i8", "u8", "i32", "u32"):
            yield case(f"reduce_{name}", dtype, g, f"{dtype}[8,4]!")
        for dtype in ("bf16", "f16", "f64", "c64"):
            if dtype == "c64" and name in ("max", "min"):
                continue
            yield case(f"reduce_{name}", dtype, g, f"{dtype}[8,4]", close=close, orders=int(dtype in ("f64", "c64")))
    yield case("reduce_sum", "f8", functools.partial(lax.reduce_sum_p.bind, axes=(1,), out_sharding=None), "f8[8,4]",
               close="sums", orders=0)  # fmt: skip
    for name in ("and", "or", "xor"):
        g = getattr(lax, f"reduce_{name}")
        for dtype in ("bool", "i8", "u32"):
            kind = "" if dtype == "bool" else "!"
            yield case(f"reduce_{name}", dtype, functools.partial(g, axes=(1,)), f"{dtype}[8,4]{kind}")
            yield case(f"reduce_{name}", f"{dtype}, all", functools.partial(g, axes=(0, 1)), f"{dtype}[8,4]{kind}")
            yield case(f"reduce_{name}", f"{dtype}, of none", functools.partial(g, axes=(1,)), f"{dtype}[8,0]")
    for name in ("argmax", "argmin"):
        for index in (np.int32, np.uint8, np.int8):
            f = functools.partial(getattr(lax, name), axis=1, index_dtype=index)
            yield case(name, f"as {index.__name__}", f, "f32[8,4]!")
        f = functools.partial(getattr(lax, name), axis=0, index_dtype=np.int32)
        yield case(name, "rows", f, "f32[8,4]!")
        yield case(
            name, "equals and NaN", f, np.asarray([[1, np.nan], [1, 2], [0.0, np.nan], [-0.0, 1]] * 2, np.float32)
        )
        for dtype in ("i8", "u32", "bool", "bf16"):
            yield case(name, dtype, f, f"{dtype}[8,4]" + "!" * (dtype != "bool"))
        yield case(
            name, "as int64", functools.partial(getattr(lax, name), axis=1, index_dtype=np.int64), "f32[8,4]!", x64=True
        )


def _takes(f: Callable[..., Any], axes: Any, params: Any) -> bool:
    try:
        jax.eval_shape(functools.partial(f, axes=axes, **params), np.ones((2, 2), np.float32))
    except TypeError:
        return False
    return True


def _running() -> Iterator[Case]:
    for name in ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"):
        close = "bits" if name in ("cummax", "cummin") else "sums"
        for axis in (0, 1):
            for reverse in (False, True):
                f = functools.partial(getattr(lax, name), axis=axis, reverse=reverse)
                yield case(name, f"{axis}, {'reverse' if reverse else 'forward'}", f, "f32[8,4]", close=close)
        f = functools.partial(getattr(lax, name), axis=1, reverse=True)
        yield case(
            name,
            "NaN and infinities",
            f,
            np.asarray(
                [[1, np.nan, 2, 3], [np.inf, 1, 2, 3], [-np.inf, np.inf, 0, 1], [-0.0, -0.0, -0.0, -0.0]] * 2,
                np.float32,
            ),
            close=close,
            orders=1,
        )
        yield case(name, "no elements", f, "f32[8,0]", close=close, orders=1)
        for dtype in ("bf16", "f16", "f64"):
            yield case(name, dtype, f, f"{dtype}[8,4]", close=close, orders=int(dtype == "f64"))
        if name != "cumlogsumexp":
            for dtype in ("i8", "u8", "i32", "u32"):
                yield case(name, dtype, f, f"{dtype}[8,4]!")
        if name in ("cumsum", "cumprod"):
            yield case(name, "c64", f, "c64[8,4]", close="sums", orders=1)


def _sorted() -> Iterator[Case]:
    def sort(*xs: Any, dimension: int = 1, is_stable: bool = True, num_keys: int = 1) -> Any:
        return lax.sort_p.bind(*xs, dimension=dimension, is_stable=is_stable, num_keys=num_keys)

    keys = np.asarray([[2, 1, 2, 1, 0, 2, 1, 0]] * 8, np.int32)
    yield case("sort", "one", sort, "f32[8,4]!")
    yield case("sort", "rows", functools.partial(sort, dimension=0), "f32[8,4]!")
    yield case("sort", "not stable", functools.partial(sort, is_stable=False), "f32[8,4]!")
    yield case("sort", "signs of zeros and NaN", sort, np.asarray([[0.0, -0.0, np.nan, -np.nan, -0.0, 0.0, np.inf, -np.inf]] * 8,
               np.float32), orders=0)  # fmt: skip
    yield case("sort", "a key and a value", sort, keys, "f32[8,8]!")
    yield case("sort", "a key, values of several dtypes", sort, keys, "f32[8,8]!", "i8[8,8]!", "bool[8,8]")
    yield case("sort", "two keys", functools.partial(sort, num_keys=2), keys, "f32[8,8]", "i32[8,8]")
    yield case("sort", "two keys, a value that is a constant", lambda k, a: sort(k, a, np.arange(64, dtype=np.int32).reshape(8, 8),
               num_keys=2), keys, "f32[8,8]!")  # fmt: skip
    yield case("sort", "a float key and a value", sort, "f32[8,8]!", "f32[8,8]")
    yield case("sort", "float keys", functools.partial(sort, num_keys=2), "f32[8,8]", "f32[8,8]")
    yield case("sort", "no elements", sort, "f32[8,0]")
    for dtype in ("i8", "u32", "bool", "bf16", "f16", "c64"):
        yield case("sort", dtype, sort, f"{dtype}[8,4]" + "!" * (dtype not in ("bool", "c64")), orders=0)
    for k in (0, 1, 3):
        yield case("top_k", f"{k}", functools.partial(lax.top_k, k=k), "f32[8,4]" + "!" * (k == 3), orders=1)
    yield case("top_k", "equals", functools.partial(lax.top_k, k=2), keys)
    yield case("top_k", "rows", functools.partial(lax.top_k, k=2, axis=0), "f32[8,4]!")
    for dtype in ("i8", "u32", "bf16"):
        yield case("top_k", dtype, functools.partial(lax.top_k, k=2), f"{dtype}[8,4]!", orders=0)
    for name in ("approx_max_k", "approx_min_k"):
        f = getattr(lax, name)
        yield case("approx_top_k", name, functools.partial(f, k=2), "f32[8,16]", orders=1)
        yield case(
            "approx_top_k", f"{name}, rows", functools.partial(f, k=2, reduction_dimension=0), "f32[16,4]", orders=0
        )
        yield case("approx_top_k", f"{name}, not aggregated", functools.partial(f, k=2, aggregate_to_topk=False), "f32[8,16]",
                   orders=0)  # fmt: skip
        yield case("approx_top_k", f"{name}, override", functools.partial(f, k=2, reduction_input_size_override=64),
                   "f32[8,16]", orders=0)  # fmt: skip


def _folded() -> Iterator[Case]:
    """Reductions by the user's own functions."""

    def most(x: Any, y: Any) -> Any:
        pick = (x[0] > y[0]) | ((x[0] == y[0]) & (x[1] < y[1]))
        return lax.select(pick, x[0], y[0]), lax.select(pick, x[1], y[1])

    def each(x: Any, y: Any) -> Any:
        return x * y + jnp.asarray(0, x.dtype)

    yield case("reduce", "one", lambda a: lax.reduce(a, np.float32(1), each, (1,)), "f32[8,4]", close="sums", orders=0)
    yield case(
        "reduce",
        "from a scalar",
        lambda a, s: lax.reduce(a, s, each, (1,)),
        "f32[8,4]",
        "f32[]",
        close="sums",
        orders=0,
    )
    yield case("reduce", "rows and columns", lambda a: lax.reduce(a, np.float32(-0.0), each, (0, 1)), "f32[8,4]", close="sums",
               orders=0)  # fmt: skip
    yield case(
        "reduce", "bf16", lambda a: lax.reduce(a, jnp.bfloat16(0.1), each, (1,)), "bf16[8,4]", close="sums", orders=0
    )
    yield case("reduce", "two operands", lambda a, i: lax.reduce((a, i), (np.float32(-np.inf), np.int32(99)), most, (1,)),
               "f32[8,4]", "i32[8,4]<9", orders=0)  # fmt: skip
    yield case("reduce", "u8", lambda a: lax.reduce(a, np.uint8(3), each, (1,)), "u8[8,4]!", orders=0)
    yield case("reduce", "of none", lambda a: lax.reduce(a, np.float32(3), each, (1,)), "f32[8,0]", orders=0)
    window = {"window_dimensions": (1, 2), "window_strides": (1, 1)}
    yield case("reduce_window", "one", lambda a: lax.reduce_window(a, np.float32(1), each, padding="SAME", **window), "f32[8,4]",
               close="sums", orders=0)  # fmt: skip
    yield case("reduce_window", "two operands", lambda a, i: lax.reduce_window((a, i), (np.float32(-np.inf), np.int32(99)), most,
               padding="VALID", **window), "f32[8,4]", "i32[8,4]<9", orders=0)  # fmt: skip
    yield case("reduce_window", "dilated", lambda a: lax.reduce_window(a, np.float32(1), each, (1, 2), (1, 2), ((0, 0), (1, 2)),
               (1, 2), (1, 2)), "f32[8,4]", close="sums", orders=0)  # fmt: skip
    yield case("reduce_window", "from a scalar", lambda a, s: lax.reduce_window(a, s, each, padding="SAME", **window), "f32[8,4]",
               "f32[]", close="sums", orders=0)  # fmt: skip
    yield case("reduce_window", "f16 from a number", lambda a: lax.reduce_window(a, np.float16(0.1), each, padding="SAME", **window),
               "f16[8,4]", close="sums", orders=0)  # fmt: skip


def _windows() -> Iterator[Case]:
    f: Any
    shapes: dict[str, dict[str, Any]] = {
        "plain": {},
        "strides": {"window_strides": (1, 2)},
        "same": {"padding": "SAME"},
        "padded": {"padding": ((0, 0), (2, 1))},
        "negative padding": {"padding": ((0, 0), (-1, 0))},
        "base dilation": {"base_dilation": (1, 2), "padding": ((0, 0), (1, 1))},
        "window dilation": {"window_dilation": (1, 2)},
        "window dilation of one element": {"window_dimensions": (1, 1), "window_dilation": (1, 3)},
        "base dilation of one element": {"window_dimensions": (1, 1), "base_dilation": (1, 3)},
        "no elements": {"window_dimensions": (1, 5)},
    }
    for name, op, start in (("sum", lax.add, 0), ("max", lax.max, -np.inf), ("min", lax.min, np.inf)):
        for label, given in shapes.items():
            params: dict[str, Any] = {
                "window_dimensions": (1, 2),
                "window_strides": (1, 1),
                "padding": "VALID",
                **given,
            }
            f = lambda a, op=op, n=start, p=params: lax.reduce_window(a, np.float32(n), op, **p)
            close = "sums" if name == "sum" else "bits"
            yield case(f"reduce_window_{name}", label, f, "f32[8,4]" + "!" * (name != "sum"), close=close,
                       orders=0 if name != "sum" and ("dilation" in label or "negative" in label) else 2)  # fmt: skip
        for dtype in ("i8", "u8", "i32"):
            least = {"sum": 0, "max": np.iinfo(dtype.replace("i", "int").replace("u", "uint")).min,
                     "min": np.iinfo(dtype.replace("i", "int").replace("u", "uint")).max}[name]  # fmt: skip
            f = lambda a, op=op, n=least: lax.reduce_window(a, np.asarray(n, a.dtype)[()], op, (1, 2), (1, 1), "SAME")
            yield case(f"reduce_window_{name}", dtype, f, f"{dtype}[8,4]!")
        for dtype in ("bf16", "f16", "f64"):
            f = lambda a, op=op, n=start: lax.reduce_window(
                a, np.asarray(n).astype(a.dtype)[()], op, (1, 2), (1, 1), "SAME"
            )
            yield case(f"reduce_window_{name}", dtype, f, f"{dtype}[8,4]", close="sums", orders=int(dtype == "f64"))
    most = lambda a: lax.reduce_window(a, np.float32(-np.inf), lax.max, (1, 2), (1, 2), "VALID")
    yield case("select_and_scatter_add", "of a gradient", lambda a, ct: jax.vjp(most, a)[1](ct)[0], "f32[8,4]", "f32[8,2]",
               orders=1)  # fmt: skip
    same = lambda a: lax.reduce_window(a, np.float32(np.inf), lax.min, (1, 3), (1, 1), "SAME")
    yield case("select_and_scatter_add", "overlapping", lambda a, ct: jax.vjp(same, a)[1](ct)[0], "f32[8,4]", "f32[8,4]",
               close="sums", orders=1)  # fmt: skip
    yield case("select_and_scatter_add", "alone", lambda ct, a: jax.vjp(most, a)[1](ct)[0], "f32[8,2]", "f32[8,4]",
               orders=1)  # fmt: skip
    yield case("select_and_gather_add", "of a tangent", lambda a, t: jax.jvp(most, (a,), (t,))[1], "f32[8,4]", "f32[8,4]",
               orders=1)  # fmt: skip
    yield case(
        "select_and_gather_add",
        "overlapping",
        lambda a, t: jax.jvp(same, (a,), (t,))[1],
        "f32[8,4]",
        "f32[8,4]",
        orders=1,
    )


def _mapped() -> Iterator[Case]:
    for name in ("psum", "pmax", "pmin"):
        f = getattr(lax, name)
        for axis in (0, 1):
            g = lambda a, f=f, axis=axis: jax.vmap(lambda x: f(x, "i"), in_axes=axis, out_axes=None, axis_name="i")(a)
            yield case(
                name, f"dim {axis}", g, "f32[8,4]" + "!" * (name != "psum"), close="sums", orders=2 * (name == "psum")
            )
        yield case(name, "i8", g, "i8[8,4]!", orders=0)
        yield case(name, "bf16", g, "bf16[8,4]", close="sums", orders=0)


def cases() -> Iterator[Case]:
    """All of them."""
    for part in (_reductions, _running, _sorted, _folded, _windows, _mapped):
        yield from part()
