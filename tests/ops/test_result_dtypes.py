"""Results have the dtypes that JAX's function of that name gives, of operands of any dtype, with x64 and without."""

from __future__ import annotations

import importlib
import itertools
import warnings
from collections.abc import Iterator
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from shtypes.core.elementwise_fns import Add, AddNumber, Divide, DivideBy, Mul, Scale
from shtypes.ops.rows import Op
from shtypes.ops.table import OPS
from shtypes.types import dtypes
from tests.ops.test_table import ALL_CALLS, function, variables
from tests.peers.programs import VARIABLES

pytestmark = pytest.mark.one_in(9)

#: The dtypes of operands; those of 64 bits where x64 is on.
DTYPES: Final = ("bool", "i8", "u8", "i16", "u16", "i32", "u32", "bf16", "f16", "f32", "c64")
WIDE: Final = ("i64", "u64", "f64", "c128")
#: Beside an operand of any dtype, another one of these.
OTHERS: Final = ("bool", "i8", "u32", "bf16", "f32", "c64")
#: Arguments by name that choose what is computed, of functions that have them.
KEYWORDS: Final = (
    *("", "keepdims=True", "axis=0", "ddof=1", "weights=b", "returned=True", "where=p", "q=0.5", "dtype='f32'"),
)
MORE: Final = [*(f"a, {k}" for k in KEYWORDS if k), "a, 0.5", "2, a", "a, b, 3", "n, keepdims=True", "n, axis=0"]
#: But for scalars, which a few functions of JAX promote in a way of their own.
CALLS: Final = [call for call in dict.fromkeys([*ALL_CALLS, *MORE]) if "s" not in variables(call)]


#: What JAX has no kernel for: it computes nothing of these dtypes, and here they are computed in 32 bits.
UNKNOWN: Final = {"linalg.solve": ("bf16", "f16"), "linalg.solve_triangular": ("bf16", "f16")}
#: Where JAX's function does not promote its operands as it says that it does, and what is amiss with it.
EXCEPTIONS: Final = {
    "batch_matmul": "gives operands of two dtypes that of the second",
    "linalg.cho_factor": "returns its flag as it was given",
    "logsumexp": "takes booleans for others where some do not count",
    "nn.logsumexp": "takes booleans for others where some do not count",
    "random_gamma_grad": "gives operands of two dtypes that of the first",
}


def namesake(op: Op) -> Any:
    module, _, name = op.jax.rpartition(".")
    return getattr(importlib.import_module(module), name)


def is_in_this_release(op: Op) -> bool:
    module, _, name = op.jax.rpartition(".")
    return hasattr(importlib.import_module(module), name)


def assigned(names: list[str], wide: bool) -> Iterator[dict[str, str]]:
    """Dtypes for variables: all alike, and the first one beside another."""
    every = (*DTYPES, *(WIDE if wide else ()))
    for dtype in every:
        yield dict.fromkeys(names, dtype)
    if len(names) > 1:
        for first, other in itertools.product(every, OTHERS):
            if first != other:
                yield {**dict.fromkeys(names, other), names[0]: first}


def result(f: Any, call: str, operands: dict[str, Any]) -> Any:
    """The dtypes of a call's results; None where it is refused."""

    def run(*xs: Any) -> Any:
        return eval(f"f({call})", {"f": f, **dict(zip(operands, xs, strict=True))})

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = jax.eval_shape(run, *operands.values())
    except Exception:
        return None
    return [str(getattr(x, "dtype", type(x))) for x in jax.tree.leaves(found)]


def operands_of(m: Any, dtypes_of: dict[str, str]) -> dict[str, Any]:
    """Operands of a call that have no data: typed, or as JAX takes them."""
    shapes = {name: VARIABLES[name].shape for name in dtypes_of}
    if m is sh:
        return {n: sh.abstract_array(f"{d}[{','.join(map(str, shapes[n]))}]") for n, d in dtypes_of.items()}
    return {n: jax.ShapeDtypeStruct(shapes[n], dtypes.to_numpy(d)) for n, d in dtypes_of.items()}


def taken(op: Op) -> list[str]:
    """The calls that a function takes, and JAX's."""
    given = {call: {n: VARIABLES[n].dtype for n in variables(call)} for call in CALLS}
    return [
        call
        for call, own in given.items()
        if result(namesake(op), call, operands_of(jax, own)) and result(function(op), call, operands_of(sh, own))
    ]


def differing(op: Op, wide: bool) -> Iterator[str]:
    """The calls whose results have other dtypes than those of JAX's function."""
    for call in taken(op):
        names = variables(call)
        varied = [n for n in names if f"where={n}" not in call and not VARIABLES[n].high]
        for chosen in assigned(varied, wide) if varied else ():
            given = {n: chosen.get(n, VARIABLES[n].dtype) for n in names}
            if {*given.values()} & {*UNKNOWN.get(op.name, ())}:
                continue
            wanted = result(namesake(op), call, operands_of(jax, given))
            found = wanted and result(function(op), call, operands_of(sh, given))
            if found and found != wanted:
                yield f"{op.name}({call}) of {given}: {found}, JAX {wanted}"


DAILY = ("mean", "average")
COMPARED = [op for op in OPS.values() if op.jax and op.name not in EXCEPTIONS and is_in_this_release(op)]


@pytest.mark.parametrize("wide", [False, True], ids=["32 bits", "x64"])
@pytest.mark.parametrize(
    "op",
    [pytest.param(op, id=op.name, marks=() if op.name in DAILY else pytest.mark.nightly) for op in COMPARED],
)
def test_results_have_the_dtypes_of_jax(op: Op, wide: bool) -> None:
    with sh.use_mesh(sh.abstract_mesh({"x": 2})), jax.enable_x64(wide):
        assert list(differing(op, wide)) == []


@pytest.mark.parametrize(
    "f", [sh.sum, sh.mean, lambda x: sh.quantile(x, 0.5), lambda x: x * 2.0], ids=["sum", "mean", "quantile", "times"]
)
def test_what_is_remembered_of_a_function_ends_with_the_mode_of_64_bits(f: Any) -> None:
    sh.set_mesh(sh.make_mesh({"x": 2}))
    x, plain = sh.array(np.ones(4, np.int8), "i8[4@x]"), np.ones(4, np.int8)
    names = {sh.sum: jnp.sum, sh.mean: jnp.mean}
    for wide in (True, False, True):
        with jax.enable_x64(wide):
            if f in names:
                assert f(x).dtype == names[f](plain).dtype
            assert np.isfinite(np.asarray(sh.reshard(f(sh.reshard(x, "[4]")), "[...]"))).all()


WIDE_CALLS: Final[dict[str, Any]] = {
    "cumsum": lambda m, x: m.cumsum(x, 1),
    "mean": lambda m, x: m.mean(x, 1),
    "where": lambda m, x: m.where(x > 1, x, 0),
    "index": lambda m, x: x[:, None],
    "matmul": lambda m, x: x.T @ x,
    "number": lambda m, x: x + 0.5,
    "norm": lambda m, x: m.linalg.norm(x, axis=1),
}


@pytest.mark.one_in(1)
@pytest.mark.parametrize("name", WIDE_CALLS)
@pytest.mark.parametrize("dtype", ["f64", "i64"])
def test_values_of_64_bits_are_computed_in_64_bits_after_their_scope(name: str, dtype: str) -> None:
    sh.set_mesh(sh.make_mesh({"x": 2}))
    with jax.enable_x64(True):
        x = sh.array(np.arange(8).reshape(4, 2) * (2**53 // 9) + 1, f"{dtype}[4@x,2]")
        wanted = np.asarray(sh.reshard(WIDE_CALLS[name](sh, x), "[_...]"))

    def typed(x: Any) -> Any:
        return WIDE_CALLS[name](sh, x)

    for f in (typed, sh.lift(lambda x: WIDE_CALLS[name](jnp, x))):
        for call in (f, sh.jit(f)):
            found = np.asarray(sh.reshard(call(x), "[_...]"))
            assert found.dtype == wanted.dtype
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.one_in(1)
def test_arithmetic_of_floats_keeps_their_dtype_where_that_is_known_without_a_trace() -> None:
    numbers = [-3, 0, 1000, 0.5, float("nan"), np.float64(2), True, 1j, np.int8(3), 2**40]
    plain = [Add(minus=True), Mul(), Divide()]
    some = [*plain, *(kind(n) for kind in (Scale, DivideBy, AddNumber) for n in numbers)]
    held = [fn for fn in some if fn.keeps_dtype]
    assert len(held) == len(plain) + 3 * 5
    for fn, name in itertools.product(held, ("bf16", "f16", "f32", "c64")):
        x = jax.ShapeDtypeStruct((1,), dtypes.to_numpy(name))
        assert jax.eval_shape(fn, *[x] * (2 if fn in plain else 1)).dtype == x.dtype, fn
