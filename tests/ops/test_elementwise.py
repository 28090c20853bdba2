"""Arithmetic and the elementwise functions against JAX on one device: values, gradients, dtypes, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from tests.compiling import compiles, needs
from tests.end_to_end import REFERENCE, Case, check, close, host, source

m: Any = sh  # for calls that a type checker refuses too

rng = np.random.default_rng(1)
X = rng.uniform(0.15, 0.85, (4, 8)).astype(np.float32)  # where every function here is smooth and finite
Y = rng.uniform(0.15, 0.85, (4, 8)).astype(np.float32)
ROW = X[0]
INTS = rng.integers(-5, 6, (4, 8), dtype=np.int32)
MORE_INTS = rng.integers(1, 4, (4, 8), dtype=np.int32)
BOOLS = X > 0.5
COMPLEX = (X + 1j * Y).astype(np.complex64)


pytestmark = [pytest.mark.one_in(9), pytest.mark.mesh({"x": 2, "y": 2})]


@pytest.mark.core
def test_some_functions_are_those_of_one_device() -> None:
    """To the last digits; `tests.peers.test_functions` walks over all."""
    names = {"gelu": 1, "silu": 1, "erf_inv": 1, "softplus": 1, "arctan2": 2, "hypot": 2, "logaddexp": 2, "mod": 2}
    cases = [
        Case(lambda m, *xs, name=name: getattr(m, name)(*xs), (X, Y)[:n], ("[4@x,8@y]", "[4@x,8]{I:y}")[:n], id=name)
        for name, n in names.items()
    ]
    check(sh.make_mesh({"x": 2, "y": 2}), cases)


U = "[4,8]{U:x,R:y}"
#: Only on values: JAX asks a traced value on the right to become a plain array.
JAX_ARRAY_FIRST: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "jax array - u": (lambda m, u: jnp.asarray(Y) - u, (X,)),
    "jax array * u": (lambda m, u: jnp.asarray(Y) * u, (X,)),
}
WITH_CONSTANTS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "number + u": (lambda m, u: 1 + u, (X,)),
    "u - number": (lambda m, u: u - 2, (X,)),
    "number - u": (lambda m, u: 3.5 - u, (X,)),
    "u + zero": (lambda m, u: u + 0, (X,)),
    "zero - u": (lambda m, u: 0 - u, (X,)),
    "u + bool": (lambda m, u: u + True, (X,)),
    "u + complex": (lambda m, u: u + 1j, (X,)),
    "integers + float": (lambda m, u: u + 1.5, (INTS,)),
    "u + numpy scalar": (lambda m, u: u + np.float32(2), (X,)),
    "numpy scalar - u": (lambda m, u: np.float64(2) - u, (X,)),
    "u + numpy array": (lambda m, u: u + Y, (X,)),
    "numpy array - u": (lambda m, u: Y - u, (X,)),
    "u + jax array": (lambda m, u: u + jnp.asarray(Y), (X,)),
    "scaled": (lambda m, u: 2 * u * np.float32(3) / 4, (X,)),
    "scaled by complex": (lambda m, u: u * 2j, (X,)),
    "scaled by an array": (lambda m, u: Y * u / jnp.asarray(X), (X,)),
    "u + u": (lambda m, u: u + u, (X,)),
    "u - u": (lambda m, u, v: u - v, (X, Y)),
    "u * r": (lambda m, u, v: u * m.reshard(v, x="R", y="R"), (X, Y)),
    "linear": (lambda m, u: m.deg2rad(-(+u)), (X,)),
    "parts": (lambda m, u: m.real(u) + m.imag(m.conj(u)), (COMPLEX,)),
}


@pytest.mark.core
@pytest.mark.parametrize("eager", [False, True], ids=["jit", "eager"])
def test_a_constant_meets_a_pending_sum_once(eager: bool) -> None:
    table = {**dict(list(WITH_CONSTANTS.items())[::4]), **JAX_ARRAY_FIRST} if eager else WITH_CONSTANTS
    check(
        sh.make_mesh({"x": 2, "y": 2}),
        [Case(f, o, (U,) * len(o), id=n, grad=not eager) for n, (f, o) in table.items()],
        eager=eager,
    )


@pytest.mark.parametrize(
    "fn",
    [
        lambda u: u * u,
        lambda u: 4 / u,
        lambda u: u**2,
        lambda u: u // 2,
        lambda u: u % 2,
        abs,
        lambda u: u > 0,
        lambda u: u == u,
        sh.silu,
        lambda u: sh.maximum(u, 0),
        lambda u: sh.clip(u, 0, 1),
        lambda u: u / u,
        lambda u: u + sh.array(X, "[4@x,8]"),
        lambda u: u * sh.array(X, "[4@x,8]"),
        lambda u: u.astype("i32"),
        lambda u: u.astype("bf16"),
        lambda u: u.astype(bool),
    ],
    ids=source,
)
def test_what_is_wrong_for_a_pending_sum_is_refused_with_fixes_and_the_line(fn: Callable[[Any], Any]) -> None:
    with pytest.raises(sh.ShardingTypeError) as raised:
        fn(sh.array(X, U))
    assert raised.value.where.startswith("test_elementwise.py:")
    assert raised.value.fixes or raised.value.hints


# dtypes

NUMPY_DTYPES = {
    "bool": BOOLS,
    "i8": INTS.astype(np.int8),
    "u8": MORE_INTS.astype(np.uint8),
    "i32": INTS,
    "u32": MORE_INTS.astype(np.uint32),
    "bf16": X.astype(jnp.bfloat16),
    "f16": X.astype(np.float16),
    "f32": X,
    "c64": COMPLEX,
}


@pytest.mark.parametrize("number", [3, 0.5, 2j], ids=str)
@pytest.mark.parametrize("dtype", ["i8", "i32", "bf16", "f32"])
def test_a_traced_weak_number_promotes_as_in_jax(dtype: str, number: Any) -> None:
    x = NUMPY_DTYPES[dtype]
    wanted = jax.jit(lambda n, x: x * n)(number, x)
    found = jax.jit(lambda n, x: x * n)(number, sh.array(x, "[4@x,8]"))
    close(host(found), wanted, dtype)


@pytest.mark.one_in(43)
@pytest.mark.parametrize("src", NUMPY_DTYPES)
def test_casts_are_jax_s(src: str) -> None:
    needs(src)
    x = NUMPY_DTYPES[src]
    for dst in (*NUMPY_DTYPES, "f8_e4m3fn", "f8_e5m2"):
        if (src == "c64") and dst != "c64":
            continue  # JAX warns: the imaginary part is lost
        if not compiles(dst):
            continue
        y = sh.array(x, "[4@x,8]").astype(dst)
        close(host(y), REFERENCE.astype(jnp.asarray(x), dst), f"{src} to {dst}", 0)
    for alias in ("float32", jnp.float32, np.float32, np.dtype("float32")):
        if src != "c64":
            assert sh.astype(sh.array(x), alias).type.dtype_name == "f32"


def test_casts_of_pending_sums_widen_freely_and_narrow_when_asked() -> None:
    def narrow(m: Any, u: Any) -> Any:
        return m.astype(m.astype(u, "bf16", narrow=True), "f32")

    def wide(m: Any, u: Any) -> Any:
        return m.astype(u, "f32") * 2

    cases = [
        Case(narrow, (X,), (U,), id="narrow"),
        Case(wide, (X.astype(jnp.bfloat16),), (U,), id="wide"),
        Case(wide, (INTS,), (U,), id="integers"),
    ]
    check(sh.make_mesh({"x": 2, "y": 2}), cases)


# integers and bools have no gradient


def test_operands_without_gradient_take_any_state_and_pass_none() -> None:
    types = [("[4@x,8]", "[4,8]"), ("[4,8]{U:x}", "[4,8]"), ("[4,8]{I:(x,y)}", "[4,8]")]
    fns: dict[str, Callable[..., Any]] = {
        "times integers": lambda m, x, n: x * n + n,
        "times bools": lambda m, x, n: x * (n > 1),
    }
    cases = [Case(fn, (X, MORE_INTS), t, id=name) for name, fn in fns.items() for t in types]
    check(sh.make_mesh({"x": 2, "y": 2}), cases)


@pytest.mark.parametrize("kind", ["i32", "bool"])
def test_reduced_and_invariant_are_one_state_without_gradient(kind: str) -> None:
    assert sh.zeros(f"{kind}[4]{{I:x,I:y}}").type == sh.zeros(f"{kind}[4]{{R:x,R:y}}").type


# arguments


def test_a_value_equals_nothing_that_is_no_array() -> None:
    x: Any = sh.array(X)
    assert (x == None) is False  # noqa: E711  # the comparison is what is tested
    assert (x != "x") is True


def test_an_object_that_knows_the_operator_gets_it() -> None:
    class Wrapper:
        def __radd__(self, other: Any) -> str:
            return "mine"

    assert sh.array(X) + Wrapper() == "mine"


def test_values_of_two_meshes_do_not_meet() -> None:
    x = sh.array(X, "[4@x,8]")
    with sh.use_mesh(sh.make_mesh({"z": 2})):
        y = sh.array(X, "[4@z,8]")
        with pytest.raises(sh.ShardingTypeError, match="different meshes") as raised:
            x + y
        assert raised.value.where.startswith("test_elementwise.py:")
        with pytest.raises(sh.ShardingTypeError, match="used under the mesh"):
            sh.silu(x)


def test_a_clamped_value_at_a_bound_has_the_gradient_that_jax_gives_it() -> None:
    at = np.asarray([-1, -0.5, 0, 0.5, 1, 0.25, -0.5, 0.5], np.float32)

    def gradients(m: Any, *args: Any) -> Any:
        return (sh if m is sh else jax).grad(lambda *xs: m.sum(_clamp(m)(*xs) * 3), (0, 1, 2))(*args)

    with sh.use_mesh(sh.make_mesh({"x": 2})):
        typed = gradients(sh, *(sh.array(v, "f32[8@x]") for v in (at * 0 - 0.5, at, at * 0 + 0.5)))
    for mine, theirs in zip(typed, gradients(jnp, at * 0 - 0.5, at, at * 0 + 0.5), strict=True):
        np.testing.assert_array_equal(np.asarray(mine), theirs)


def _clamp(m: Any) -> Any:
    return sh.clamp if m is sh else jax.lax.clamp
