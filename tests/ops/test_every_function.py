"""Every public function of JAX's modules of arrays is here, or has a reason why it is not."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import shtypes as sh
from shtypes.context.unsupported import UNSUPPORTED
from shtypes.ops.row_functions import native_of
from shtypes.ops.table import OPS
from tests.end_to_end import Case, check, sampled, some
from tests.peers.public import has_call
from tests.tolerance import assert_close

#: The modules whose functions are looked for, and the namespaces that have their typed forms.
MODULES = {
    "jax.numpy": "",
    "jax.numpy.linalg": "linalg.",
    "jax.numpy.fft": "fft.",
    "jax.nn": "",
    "jax.nn.initializers": "init.",
    "jax.lax": "",
    "jax.lax.linalg": "linalg.",
    "jax.ops": "",
    "jax.random": "random.",
    "jax.scipy.special": "",
    "jax.scipy.linalg": "linalg.",
}


def functions(module: str) -> list[str]:
    """The public functions of a module of JAX."""
    owner = importlib.import_module(module)
    found = {name: getattr(owner, name) for name in dir(owner) if not name.startswith("_")}
    return [
        name
        for name, f in found.items()
        if callable(f) and not inspect.isclass(f) and not inspect.ismodule(f) and _is_of_jax(f)
    ]


def _is_of_jax(f: Any) -> bool:
    return str(getattr(f, "__module__", "")).startswith("jax")


def public(path: str) -> Any:
    """What a path below ``sh`` stands for; None if it is not there."""
    owner: Any = sh
    for name in path.split("."):
        owner = getattr(owner, name, None)
    return owner


def test_the_functions_of_jax_are_found() -> None:
    assert {"sin", "polyfit", "vectorize"} <= {*functions("jax.numpy")}
    assert sum(len(functions(module)) for module in MODULES) > 600


@pytest.mark.parametrize("module", MODULES)
def test_every_function_of_jax_has_a_row_or_is_written_or_has_a_reason(module: str) -> None:
    rows = {op.jax for op in OPS.values()}
    reasons = {name for entry in UNSUPPORTED for name in entry.names}
    left = [
        name
        for name in functions(module)
        if f"{module}.{name}" not in rows and name not in reasons and public(MODULES[module] + name) is None
    ]
    assert not left, (
        f"{module} has {left}: give each a row in shtypes/ops/table.py, such as `*of_jax({left[0]!r})`, and run "
        "`make generate`; or a reason in shtypes/context/unsupported.py"
    )


@pytest.mark.parametrize("module", MODULES)
def test_what_is_not_here_says_why_where_it_is_looked_for(module: str) -> None:
    owner = public(MODULES[module].rstrip(".")) if MODULES[module] else sh
    reasons = {name for entry in UNSUPPORTED for name in entry.names}
    for name in functions(module):
        if name in reasons and public(MODULES[module] + name) is None:
            with pytest.raises(AttributeError, match=f"has no attribute '{name}'; .*: use "):
                getattr(owner, name)


@pytest.mark.parametrize(
    ("owner", "name", "home"), [(sh, "rms_norm", "sh.nn.rms_norm"), (sh.nn, "fft2", "sh.fft.fft2")]
)
def test_what_is_in_another_namespace_is_named_there(owner: Any, name: str, home: str) -> None:
    with pytest.raises(AttributeError, match=f"has no attribute '{name}'; it is `{home}`$"):
        getattr(owner, name)


@pytest.mark.skipif(hasattr(jnp, "minmax"), reason="this release has it")
def test_a_function_of_a_newer_release_says_so() -> None:
    with pytest.raises(sh.ShardingTypeError, match=r"the installed JAX has no `jax\.numpy\.minmax`"):
        sh.minmax(np.ones(3))


# what no other list of calls names


class Call(NamedTuple):
    """A call of a public function, the types of its operands, and the type of what it makes."""

    path: str
    call: Callable[..., Any]
    operands: tuple[Any, ...]
    types: tuple[str, ...]
    out: str
    linear: bool = False

    def fn(self, m: Any, *operands: Any) -> Any:
        """The call, of typed values or on one device."""
        return self.call(public(self.path) if m is sh else native_of(OPS[self.path]), *operands)


rng = np.random.default_rng(0)


def arr(*shape: int) -> Any:
    return rng.normal(size=shape).astype(np.float32)


def ints(n: int, *shape: int) -> Any:
    return rng.integers(0, n, shape).astype(np.int32)


MATRIX = arr(4, 4) + 4 * np.eye(4, dtype=np.float32)
BATCH = np.stack([MATRIX + i for i in range(4)])
SYMMETRIC = (MATRIX @ MATRIX.T).astype(np.float32)
UNIT = rng.uniform(0.1, 0.9, (4, 4)).astype(np.float32)
POSITIVE = UNIT + 0.5
FACTORS = tuple(np.asarray(x) for x in jax.scipy.linalg.lu_factor(MATRIX))
_RAGGED = lax.RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), [0], [0])
_SCATTER = lax.ScatterDimensionNumbers((), (0,), (0,))
ROWS = "[4@x,4]"
MATRICES = "[4@x,4,4]"


def _same(f: Any, *xs: Any) -> Any:
    return f(*xs)


def _first(f: Any, *xs: Any) -> Any:
    return f(*xs)[0]


CALLS = [
    Call("block", lambda f, x, y: f([[x, y], [y, x]]), (arr(4, 4), arr(4, 4)), ("[4,4]", "[4,4]{U:x}"), "[8,8]{U:x}",
         linear=True),
    Call("histogram2d", lambda f, x, y: f(x, y, 4, [(-2, 2), (-2, 2)])[0], (arr(8), arr(8)), ("[8@x]",) * 2,
         "[4,4]{U:x}"),
    Call("histogramdd", lambda f, x: f(x, 4, [(-2, 2), (-2, 2)])[0], (arr(8, 2),), ("[8@x,2]",), "[4,4]{U:x}"),
    Call("packbits", lambda f, x: f(x, 1), (ints(2, 4, 8).astype(bool),), ("[4@x,8]",), "[4@x,1]"),
    Call("unpackbits", lambda f, x: f(x, 1), (ints(255, 4, 2).astype(np.uint8),), ("[4@x,2]",), "[4@x,16]"),
    Call("poly", _same, (arr(4),), ("[4]",), "[5]"),
    Call("polyadd", _same, (arr(4), arr(3)), ("[4]{U:x}", "[3]"), "[4]{U:x}", linear=True),
    Call("polysub", _same, (arr(4), arr(3)), ("[4]{U:x}", "[3]{U:x}"), "[4]{U:x}", linear=True),
    Call("polymul", _same, (arr(4), arr(3)), ("[4]{U:x}", "[3]"), "[6]{U:x}", linear=True),
    Call("polydiv", _first, (arr(6), POSITIVE[0]), ("[6]", "[4]"), "[3]"),
    Call("polyder", lambda f, p: f(p, 2), (arr(6),), ("[6]{U:x}",), "[4]{U:x}", linear=True),
    Call("polyint", lambda f, p, k: f(p, 2, k), (arr(4), arr(2)), ("[4]{U:x}", "[2]{U:x}"), "[6]{U:x}", linear=True),
    Call("polyfit", lambda f, x, y: f(x, y, 2), (arr(8), arr(8)), ("[8]", "[8]"), "[3]"),
    Call("roots", lambda f, p: jnp.abs(np.pi) * f(p, strip_zeros=False), (POSITIVE[0],), ("[4]",), "[3]"),
    Call("piecewise", lambda f, x: f(x, [x < 0, x >= 0], [lambda v: -v, lambda v: 2 * v]), (arr(4),), ("[4@x]",),
         "[4@x]"),
    Call("apply_along_axis", lambda f, x: f(lambda v: v.sum() * v, 1, x), (arr(4, 3),), ("[4@x,3]",), "[4@x,3]"),
    Call("apply_over_axes", lambda f, x: f(jnp.sum, x, [1]), (arr(4, 3),), ("[4@x,3]",), "[4@x,1]"),
    Call("fromfunction", lambda f: f(lambda i, j: i + j, (3, 4)), (), (), "[3,4]"),
    Call("unique_all", lambda f, x: f(x, size=5).indices, (ints(4, 8),), ("[8]",), "[5]"),
    Call("unique_counts", lambda f, x: f(x, size=5).counts, (ints(4, 8),), ("[8]",), "[5]"),
    Call("unique_inverse", lambda f, x: f(x, size=5).inverse_indices, (ints(4, 8),), ("[8]",), "[8]"),
    Call("unique_values", lambda f, x: f(x, size=5), (ints(4, 8),), ("[8]",), "[5]"),
    Call("extract", lambda f, c, x: f(c, x, size=5), (arr(8) > 0, arr(8)), ("[8]", "[8]"), "[5]"),
    Call("mask_indices", lambda f: f(4, jnp.triu, size=10)[1], (), (), "[10]"),
    Call("place", lambda f, x, c, v: f(x, c, v, inplace=False), (arr(8), arr(8) > 0, arr(3)), ("[8]", "[8]", "[3]"),
         "[8]"),
    Call("put", lambda f, x, i, v: f(x, i, v, inplace=False), (arr(8), np.array([3, 5, 6], np.int32), arr(3)),
         ("[8]{U:x}", "[3]", "[3]"), "[8]{U:x}", linear=True),
    Call("minmax", lambda f, x: f(x, 1)[0], (arr(4, 8),), ("[4@x,8]",), "[4@x]"),
    Call("broadcast_like", _same, (arr(4), arr(3, 4)), ("[4@x]{U:y}", "[3,4]"), "[3,4@x]{U:y}", linear=True),
    Call("broadcast_to_rank", lambda f, x: f(x, 3), (arr(4),), ("[4@x]{U:y}",), "[1,1,4@x]{U:y}", linear=True),
    Call("index_take", lambda f, x, i: f(x, (i,), (0,)), (arr(4, 4), ints(4, 5)), ("[4,4@x]{U:y}", "[5]"),
         "[5,4@x]{U:y}", linear=True),
    Call("one_minus_square", _same, (UNIT,), (ROWS,), ROWS),
    Call("polynomial", lambda f, x, c: f(x, [c[0], c[1]]), (arr(4), arr(2)), ("[4@x]", "[2]"), "[4@x]"),
    Call("approx_max_k", lambda f, x: f(x, 2)[0], (arr(4, 8),), ("[4@x,8]",), "[4@x,2]"),
    Call("approx_min_k", lambda f, x: f(x, 2)[1], (arr(4, 8),), ("[4@x,8]",), "[4@x,2]"),
    Call("conv_general_dilated_patches", lambda f, x: f(x, (3,), (1,), "SAME"), (arr(4, 2, 8),), ("[4@x,2,8]{U:y}",),
         "[4@x,6,8]{U:y}", linear=True),
    Call("conv_general_dilated_local", lambda f, x, k: f(x, k, (1,), "VALID", (3,)), (arr(4, 2, 8), arr(5, 6, 6)),
         ("[4@x,2,8]{U:y}", "[5,6,6]"), "[4@x,5,6]{U:y}", linear=True),
    Call("reduce", lambda f, x: f(x, np.float32(1), lambda p, q: p * q, (1,)), (arr(4, 3),), ("[4@x,3]",), "[4@x]"),
    Call("reduce_xor", lambda f, x: f(x, (1,)), (ints(9, 4, 8),), ("[4@x,8]",), "[4@x]"),
    Call("ragged_dot_general", lambda f, x, y, n: f(x, y, n, _RAGGED), (arr(8, 4), arr(2, 4, 4),
         np.array([3, 5], np.int32)), ("[8,4]", "[2,4,4@x]", "[2]"), "[8,4@x]"),
    Call("scatter_apply", lambda f, x, i: f(x, i, lambda v: 2 * v, _SCATTER, update_shape=(2,), unique_indices=True),
         (arr(6), np.array([[1], [4]], np.int32)), ("[6]", "[2,1]"), "[6]"),
    Call("custom_root", lambda f, x: f(lambda v: v * v - x, x, _newton, lambda g, y: y / g(y * 0 + 1)), (POSITIVE,),
         (ROWS,), ROWS),
    Call("custom_linear_solve", lambda f, x: f(lambda v: 2 * v, x, lambda _, b: b / 2, symmetric=True), (arr(4, 4),),
         (ROWS,), ROWS),
    Call("bernoulli", lambda f: f(6), (), (), "[7]"),
    Call("bessel_jn", lambda f, x: f(x, v=3), (POSITIVE,), (ROWS,), "[4,4@x,4]"),
    *[Call(name, _same, (UNIT,), (ROWS,), ROWS) for name in ("dawsn", "erfcinv", "erfcx", "loggamma", "wofz")],
    *[Call(name, _first, (POSITIVE,), (ROWS,), ROWS) for name in ("fresnel", "sici")],
    *[Call(name, _same, (POSITIVE, UNIT[0]), (ROWS, "[4]"), ROWS)
      for name in ("boxcox", "boxcox1p", "comb", "owens_t")],
    Call("hyp2f1", _same, (POSITIVE, POSITIVE, POSITIVE, UNIT / 4), (ROWS,) * 4, ROWS),
    Call("sph_harm_y", lambda f, n, m, t, p: f(n, m, t, p, n_max=4), (ints(4, 4), 0 * ints(2, 4), UNIT[0], UNIT[1]),
         ("[4@x]",) * 4, "[4@x]"),
    *[Call(name, lambda f, a, b: f(a, b, size=6), (ints(6, 8), ints(6, 5)), ("[8]", "[5]"), "[6]")
      for name in ("intersect1d", "setdiff1d", "setxor1d", "union1d")],
    *[Call(name, lambda f, x, i, u: f(x, i, u, _SCATTER), (arr(6), np.array([[1], [4]], np.int32), arr(2)),
           ("[6]{U:x}", "[2,1]", "[2]{U:x}"), "[6]{U:x}", linear=True) for name in ("scatter", "scatter_sub")],
    *[Call(name, _same, (arr(4, 3), arr(4, 3)), ("[4@x,3]{U:y}", "[4@x,3]"), "[4@x,3]{U:y}", linear=True)
      for name in ("cross", "linalg.cross")],
    *[Call(name, lambda f, x: f(x, np.int32), (arr(4, 4),), (ROWS,), ROWS)
      for name in ("bitcast_convert_type", "convert_element_type")],
    *[Call(name, _first, (np.stack([SYMMETRIC] * 4),), (MATRICES,), MATRICES)
      for name in ("linalg.cho_factor", "linalg.lu_factor")],
    Call("ravel_multi_index", lambda f, i, j: f((i, j), (3, 5), mode="clip"), (ints(3, 4), ints(5, 4)), ("[4@x]",) * 2,
         "[4@x]"),
    Call("ragged_dot", _same, (arr(8, 4), arr(2, 4, 4), np.array([3, 5], np.int32)), ("[8,4]", "[2,4,4@x]", "[2]"),
         "[8,4@x]"),
    Call("segment_min", lambda f, x, i: f(x, i, num_segments=3), (arr(8, 4), ints(3, 8)), ("[8,4@x]", "[8]"),
         "[3,4@x]"),
    Call("nn.logmeanexp", lambda f, x: f(x, axis=1), (arr(4, 4),), (ROWS,), "[4@x]"),
    Call("nn.standardize", _same, (arr(4, 4),), (ROWS,), ROWS),
    Call("linalg.sqrtm", _same, (UNIT,), ("[4,4]",), "[4,4]"),
    Call("linalg.tensorsolve", _same, (MATRIX.reshape(2, 2, 4), arr(2, 2)), ("[2,2,4]", "[2,2]"), "[4]"),
    Call("linalg.toeplitz", _same, (arr(4), arr(5)), ("[4]{U:x}", "[5]{U:x}"), "[4,5]{U:x}", linear=True),
    Call("linalg.circulant", _same, (arr(4),), ("[4]{U:x}",), "[4,4]{U:x}", linear=True),
    Call("linalg.companion", _same, (POSITIVE[0],), ("[4]",), "[3,3]"),
    Call("linalg.convolution_matrix", lambda f, a: f(a, 6), (arr(4),), ("[4]{U:x}",), "[9,6]{U:x}", linear=True),
    Call("linalg.eigh_tridiagonal", lambda f, d, e: f(d, e, eigvals_only=True), (arr(4), arr(3)), ("[4]", "[3]"),
         "[4]"),
    Call("linalg.expm_frechet", lambda f, a, e: f(a, e)[1], (UNIT, UNIT.T.copy()), ("[4,4]",) * 2, "[4,4]"),
    Call("linalg.fiedler", _same, (arr(4),), ("[4]",), "[4,4]"),
    Call("linalg.fiedler_companion", _same, (POSITIVE[0],), ("[4]",), "[3,3]"),
    Call("linalg.funm", lambda f, x: f(x, jnp.exp, False)[0], (UNIT,), ("[4,4]",), "[4,4]"),
    *[Call(f"linalg.{name}", lambda f: f(4), (), (), "[4,4]")
      for name in ("dft", "hadamard", "hilbert", "invhilbert", "invpascal", "pascal")],
    Call("linalg.helmert", lambda f: f(4), (), (), "[3,4]"),
    Call("linalg.hankel", _same, (arr(4), arr(3)), ("[4]{U:x}", "[3]{U:x}"), "[4,3]{U:x}", linear=True),
    Call("linalg.leslie", _same, (arr(4), arr(3)), ("[4]{U:x}", "[3]"), "[4,4]{U:x}", linear=True),
    Call("linalg.hessenberg", _same, (BATCH,), (MATRICES,), MATRICES),
    Call("linalg.lu_solve", lambda f, lu, p, b: f((lu, p), b), (*FACTORS, arr(4, 2)), ("[4,4]", "[4]", "[4,2]{U:x}"),
         "[4,2]{U:x}", linear=True),
    Call("linalg.polar", _first, (MATRIX,), ("[4,4]",), "[4,4]"),
    Call("linalg.qr_multiply", lambda f, a, c: abs(f(a, c)[0]), (MATRIX, MATRIX), ("[4,4]",) * 2, "[4,4]"),
    Call("linalg.rsf2csf", lambda f, t, z: abs(f(t, z)[0]), (np.triu(MATRIX), np.eye(4, dtype=np.float32)),
         ("[4,4]",) * 2, "[4,4]"),
    Call("linalg.schur", lambda f, x: abs(f(x)[0]), (SYMMETRIC,), ("[4,4]",), "[4,4]"),
    Call("linalg.solve_sylvester", _same, (MATRIX, MATRIX, MATRIX), ("[4,4]",) * 3, "[4,4]"),
    Call("linalg.cholesky_update", _same, (np.linalg.cholesky(SYMMETRIC).T.copy(), arr(4)), ("[4,4]", "[4]"), "[4,4]"),
    Call("linalg.householder_product", _same, (BATCH, UNIT[:, :3].copy()), (MATRICES, "[4@x,3]"), MATRICES),
    Call("linalg.lu_pivots_to_permutation", lambda f, p: f(p, 4), (np.array([[1, 2, 3, 3]] * 4, np.int32),), (ROWS,),
         ROWS),
    Call("linalg.ormqr", _same, (BATCH, UNIT[:, :3].copy(), BATCH), (MATRICES, "[4@x,3]", MATRICES), MATRICES),
    Call("linalg.qdwh", _first, (MATRIX,), ("[4,4]",), "[4,4]"),
    Call("linalg.symmetric_product", _same, (BATCH, BATCH), (MATRICES, MATRICES), MATRICES),
    Call("linalg.tridiagonal", lambda f, x: abs(f(x)[2]), (SYMMETRIC,), ("[4,4]",), "[3]"),
    Call("linalg.triangular_solve", _same, (BATCH, BATCH), (MATRICES, MATRICES + "{U:y}"), MATRICES + "{U:y}",
         linear=True),
    Call("linalg.tridiagonal_solve", _same, (arr(4, 4), arr(4, 4) + 4, arr(4, 4), arr(4, 4, 2)),
         (ROWS, ROWS, ROWS, "[4@x,4,2]"), "[4@x,4,2]"),
]  # fmt: skip


def _newton(f: Any, x: Any) -> Any:
    return lax.fori_loop(0, 6, lambda _, v: v - f(v) / (2 * v), x)


KNOWN = [call for call in CALLS if native_of(OPS[call.path]) is not None]


def test_functions_among_the_arguments_may_close_over_values() -> None:
    x, w = arr(4, 3), arr(3)

    def f(m: Any, x: Any, w: Any) -> Any:
        return (m if m is sh else jnp).apply_along_axis(lambda v: v * w, 1, x)

    mesh = sh.make_mesh({"x": 2, "y": 2})
    check(mesh, [Case(f, (x, w), ("[4@x,3]", t), out="[4@x,3]") for t in ("[3]", "[3]{I:y}")])
    with sh.use_mesh(mesh):
        typed = sh.array(x, "[4@x,3]")
        first, second = (f(sh, typed, sh.array(v, "[3]")) for v in (w, 2 * w))
        np.testing.assert_array_equal(2 * np.asarray(first.data), np.asarray(second.data))


def case(c: Call) -> Case:
    return Case(c.fn, c.operands, c.types, c.out, grad=c.linear, id=c.path)


def test_calls_have_the_values_of_one_device_and_the_types_that_follow() -> None:
    check(sh.make_mesh({"x": 2, "y": 2}), map(case, KNOWN[:: some(18, 1)]))


@pytest.mark.nightly
@pytest.mark.parametrize("c", KNOWN, ids=lambda c: c.path)
def test_calls_are_right_over_many_types(c: Call) -> None:
    mesh = sh.make_mesh({"x": 2, "y": 2})
    check(mesh, sampled(mesh, c.fn, *c.operands, id=c.path, grad=c.linear))


@pytest.mark.parametrize("out", [None, "[4@x,4,4]"])
def test_a_number_that_jax_returns_as_python_s_is_python_s(out: str | None) -> None:
    with sh.use_mesh(sh.make_mesh({"x": 2})):
        x = sh.array(np.stack([SYMMETRIC] * 4), "[4@x,4,4]")
        factor, lower = sh.linalg.cho_factor(x, lower=True, out=out)
        assert lower is True
        assert_close(sh.linalg.cho_solve((factor, lower), x), jax.scipy.linalg.cho_solve((factor.data, lower), x.data))


def test_every_row_has_a_call() -> None:
    """Here, in the text of another test, or among the ways in which all functions are called."""
    text = "\n".join(path.read_text() for path in Path(__file__).parents[1].rglob("*.py"))
    called = {c.path for c in CALLS} | set(re.findall(r"\b(?:m|sh)\.([a-z][\w.]*)\(", text))
    rows = [op for op in OPS.values() if op.module == "shtypes.ops.functions" and native_of(op) is not None]
    of_jax = {op.jax for op in rows if op.name in called}  # by any of its names
    left = [op.name for op in rows if op.jax not in of_jax and not has_call(op.name)]
    assert not left, f"no test calls {left}: add a `Call` of each to CALLS in {Path(__file__).name}"
