"""Arithmetic and the elementwise functions against JAX on one device: values, gradients, dtypes, refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from shtypes.ops.table import OPS
from tests.compiling import compiles, needs
from tests.end_to_end import REFERENCE, Case, check, close, host, sampled, some, source

pytestmark = pytest.mark.one_in(4)

m: Any = sh  # for calls that a type checker refuses too

rng = np.random.default_rng(1)
X = rng.uniform(0.15, 0.85, (4, 8)).astype(np.float32)  # where every function here is smooth and finite
Y = rng.uniform(0.15, 0.85, (4, 8)).astype(np.float32)
ROW, COLUMN, SCALAR = X[0], X[:, :1].copy(), X[0, 0]
INTS = rng.integers(-5, 6, (4, 8), dtype=np.int32)
MORE_INTS = rng.integers(1, 4, (4, 8), dtype=np.int32)
BOOLS = X > 0.5
COMPLEX = (X + 1j * Y).astype(np.complex64)

TERNARY = {"betainc"}
BINARY = {
    *("add", "subtract", "multiply", "divide", "true_divide", "power", "pow", "float_power", "maximum", "minimum"),
    *("fmax", "fmin", "arctan2", "atan2", "hypot", "logaddexp", "logaddexp2", "mod", "remainder", "fmod"),
    *("floor_divide", "copysign", "heaviside", "equal", "not_equal", "less", "less_equal", "greater"),
    *("greater_equal", "isclose", "logical_and", "logical_or", "logical_xor", "xlogy", "xlog1py", "kl_div"),
    *("rel_entr", "gammainc", "gammaincc", "betaln"),
}
INTEGER = {
    *("gcd", "lcm", "left_shift", "right_shift", "bitwise_left_shift", "bitwise_right_shift", "bitwise_and"),
    *("bitwise_or", "bitwise_xor", "bitwise_not", "bitwise_invert", "invert", "bitwise_count"),
}
ONE_INTEGER = {"bitwise_not", "bitwise_invert", "invert", "bitwise_count"}
NO_GRADIENT = {"nextafter", "spacing", "ldexp"}  # JAX has none, or not for both operands
SERIES = {"betainc", "betaln", "gammainc", "gammaincc"}  # slow to compile, slower to differentiate
OTHERS = {"astype", "clip"}
ABOVE_ONE = {"arccosh", "acosh"}
#: What `tests/random_ops/numbers.py` and `tests/peers/` call, where their operands make sense.
ELSEWHERE = {
    *("bessel_i0e", "bessel_i1e", "beta", "clz", "convert_element_type", "eq", "exp1", "expi", "expn", "factorial"),
    *("gamma", "gammasgn", "ge", "gt", "hyp1f1", "igamma", "igamma_grad_a", "igammac", "is_finite", "le", "lt", "mul"),
    *("multigammaln", "ne", "neg", "poch", "polygamma", "population_count", "random_gamma_grad", "reduce_precision"),
    *("rem", "shift_left", "shift_right_arithmetic", "shift_right_logical", "spence", "sub", "zeta"),
}
FILES = ("shtypes.ops.arithmetic", "shtypes.ops.elementwise")
NAMES = {op.name for op in OPS.values() if op.module in FILES and not op.space} - ELSEWHERE
UNARY = NAMES - BINARY - TERNARY - INTEGER - NO_GRADIENT - OTHERS


@pytest.fixture(autouse=True)
def mesh() -> Iterator[Any]:
    with sh.use_mesh(sh.make_mesh({"x": 2, "y": 2})) as found:
        yield found


def named(name: str) -> Callable[..., Any]:
    return lambda m, *xs: getattr(m, name)(*xs)


def operands_of(name: str) -> tuple[Any, ...]:
    if name in INTEGER:
        return (MORE_INTS,) if name in ONE_INTEGER else (INTS, MORE_INTS)
    if name in ABOVE_ONE:
        return (X + 1,)
    if name == "ldexp":
        return (X, MORE_INTS)
    if name == "log1mexp":
        return (X,)
    return (X, Y, X[::-1].copy())[: 3 if name in TERNARY else 2 if name in {*BINARY, "nextafter"} else 1]


def every_function(types: tuple[str, ...]) -> list[Case]:
    """A case per function, once for those of several names."""
    cases = []
    names = {getattr(sh, name): name for name in sorted({*UNARY, *BINARY, *TERNARY, *INTEGER, *NO_GRADIENT})}
    for name in names.values():
        operands = operands_of(name)
        grad = name not in NO_GRADIENT | SERIES
        cases.append(Case(named(name), operands, types[: len(operands)], id=name, grad=grad))
    return cases


def test_the_lists_above_name_every_function() -> None:
    assert {*UNARY, *BINARY, *TERNARY, *INTEGER, *NO_GRADIENT, *OTHERS} == NAMES
    assert len(UNARY) > 80


SHARDED = ("[4@x,8@y]", "[4@x,8]{I:y}", "[4,8@y]{R:x}")


@pytest.mark.core
def test_functions_are_right_on_sharded_operands() -> None:
    cases = every_function(SHARDED)
    check(sh.make_mesh({"x": 2, "y": 2}), [c for c in cases if c.id not in SERIES][1::3])


@pytest.mark.nightly
def test_every_function_is_right_on_sharded_operands() -> None:
    check(sh.make_mesh({"x": 2, "y": 2}), every_function(SHARDED))


def test_functions_are_right_on_replicated_operands() -> None:
    cases = every_function(("[4,8]{R:x,I:y}", "[4,8]{I:(x,y)}", "[4,8]{I:x,R:y}"))
    check(sh.make_mesh({"x": 2, "y": 2}), [c for c in cases if c.id not in SERIES][::5])


PARAMETERS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "gelu exact": (lambda m, x: m.gelu(x, approximate=False), (X,)),
    "gelu positional": (lambda m, x: m.gelu(x, False), (X,)),
    "leaky_relu": (lambda m, x: m.leaky_relu(x - 0.5, negative_slope=0.3), (X,)),
    "elu": (lambda m, x: m.elu(x - 0.5, 0.7), (X,)),
    "celu": (lambda m, x: m.celu(x - 0.5, alpha=0.7), (X,)),
    "squareplus": (lambda m, x: m.squareplus(x, b=2), (X,)),
    "round": (lambda m, x: m.round(x, 1), (X,)),
    "round by method": (lambda m, x: x.round(decimals=2), (X,)),
    "nan_to_num": (lambda m, x: m.nan_to_num(m.log(x - 0.5), nan=3.0), (X,)),
    "isclose": (lambda m, x, y: m.isclose(x, y, atol=0.3), (X, Y)),
    "clip": (lambda m, x: m.clip(x, 0.3, 0.6), (X,)),
    "clip below": (lambda m, x: m.clip(x, min=0.3), (X,)),
    "clip above": (lambda m, x: x.clip(max=0.3), (X,)),
    "clip by arrays": (lambda m, x, y: m.clip(x, y - 0.1, y + 0.1), (X, Y)),
    "clip by an array and a number": (lambda m, x, y: m.clip(x, y, 0.7), (X, Y)),
    "a square": (lambda m, x: x**2, (X,)),
    "a negative power": (lambda m, x: x**-1, (X,)),
    "a root": (lambda m, x: x**0.5, (X,)),
    "a power of a number": (lambda m, x: 2**x, (X,)),
    "a power of integers": (lambda m, n: n**3, (INTS,)),
    "divmod": (lambda m, x: divmod(x, 0.3)[0] + divmod(0.9, x)[1], (X,)),
    "builtins": (lambda m, x: abs(-x) + (+x), (X,)),
}


def test_parameters_are_jax_s() -> None:
    types = ("[4@x,8@y]", "[4@x,8]{I:y}")
    check(sh.make_mesh({"x": 2, "y": 2}), [Case(f, o, types[: len(o)], id=n) for n, (f, o) in PARAMETERS.items()])


@pytest.mark.parametrize("name", sorted(NAMES - OTHERS - {"lgamma", "erf_inv", "logistic"}))
def test_every_function_is_named_as_in_jax(name: str) -> None:
    assert getattr(REFERENCE, name)
    assert getattr(sh, name).__doc__


OPERATORS: dict[str, Callable[..., Any]] = {
    "add": lambda m, x, y: x + y,
    "sub": lambda m, x, y: x - y,
    "mul": lambda m, x, y: x * y,
    "div": lambda m, x, y: x / y,
    "chain": lambda m, x, y: (2 * x - y / 4) * 3 + 1,
    "max": lambda m, x, y: m.maximum(x, y),
    "compare": lambda m, x, y: (x > y) | (x == y),
}
SHAPES = {"alike": (X, Y), "row": (X, ROW), "column": (COLUMN, Y), "scalar": (SCALAR, Y), "outer": (COLUMN, ROW)}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("axes", [{"x": 2}, {"x": 2, "y": 2}], ids=lambda axes: "x".join(map(str, axes.values())))
def test_every_operator_that_types_is_right_forward_and_backward(axes: dict[str, int]) -> None:
    mesh = sh.make_mesh(axes)
    cases = [
        case
        for i, (name, fn) in enumerate(OPERATORS.items())
        for j, (shape, operands) in enumerate(SHAPES.items())
        for case in sampled(mesh, fn, *operands, id=f"{name} {shape}", count=some(1, 4), seed=10 * i + j)
    ]
    assert len(cases) > 15
    check(mesh, cases)


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


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", ["add", "multiply", "divide", "maximum", "power", "less"])
def test_dtypes_promote_as_in_jax(name: str) -> None:
    fn = getattr(sh, name)

    def promoted(a: Any, b: Any) -> Any:
        return jax.eval_shape(fn, a, b).dtype

    values = {k: sh.abstract_array(f"{k}[4@x,8]") for k in NUMPY_DTYPES}
    for left, a in NUMPY_DTYPES.items():
        for right, b in NUMPY_DTYPES.items():
            wanted = jax.eval_shape(getattr(jnp, name), a, b).dtype
            assert promoted(values[left], values[right]) == wanted, (left, right)
        for number in (2, 2.5, True, 2j):
            if name in ("maximum", "less", "power") and (isinstance(number, complex) or left == "c64"):
                continue
            wanted = jax.eval_shape(lambda a, n=number: getattr(jnp, name)(a, n), a).dtype
            assert jax.eval_shape(lambda a, n=number: fn(a, n), values[left]).dtype == wanted, (left, number)
            wanted = jax.eval_shape(lambda a, n=number: getattr(jnp, name)(n, a), a).dtype
            assert jax.eval_shape(lambda a, n=number: fn(n, a), values[left]).dtype == wanted, (number, left)


@pytest.mark.parametrize("number", [3, 0.5, 2j], ids=str)
@pytest.mark.parametrize("dtype", ["i8", "i32", "bf16", "f32"])
def test_a_traced_weak_number_promotes_as_in_jax(dtype: str, number: Any) -> None:
    x = NUMPY_DTYPES[dtype]
    wanted = jax.jit(lambda n, x: x * n)(number, x)
    found = jax.jit(lambda n, x: x * n)(number, sh.array(x, "[4@x,8]"))
    close(host(found), wanted, dtype)


@pytest.mark.one_in(21)
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


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x + "1",
        lambda x: x * [1],
        lambda x: x * None,
        lambda x: m.silu([1.0]),
        sh.maximum,
        lambda x: sh.maximum(2, 3),
        lambda x: x + sh.array(ROW[:4]),
        lambda x: x & x,
        lambda x: ~x,
        lambda x: m.gelu(x, aproximate=True),
        lambda x: m.silu(x, 1, 2, 3),
        lambda x: x.astype("f33"),
        lambda x: x.astype(object),
        lambda x: x.astype(3),
        lambda x: sh.gcd(x, x),
        lambda x: sh.array(X).astype("f8_e4m3fn") + sh.array(X).astype("bf16"),
    ],
    ids=source,
)
def test_bad_arguments_are_refused_with_the_line(fn: Callable[[Any], Any]) -> None:
    with pytest.raises(sh.ShardingTypeError) as raised:
        fn(sh.array(X, "[4@x,8]"))
    assert raised.value.where.startswith("test_elementwise.py:")


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
