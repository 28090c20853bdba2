"""Linear solves, roots, least squares and differential equations: lineax, optimistix, diffrax."""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.lifting.frameworks.judging import Module, array
from tests.lifting.packages.programs import Program, cases, check, of

pytestmark = [
    pytest.mark.nightly,
    # The packages' own, of other packages and of JAX.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::SyntaxWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


def _lineax_lu() -> Module:
    """A batch of systems, each of which is solved on one device."""
    lx: Any = pytest.importorskip("lineax")

    def f(a: Any, b: Any) -> Any:
        return jax.vmap(lambda a, b: lx.linear_solve(lx.MatrixLinearOperator(a), b).value)(a, b)

    return of(f, array(4, 6, 6) + 3 * np.eye(6, dtype=np.float32), array(4, 6), data=["[_@dp, _, _]", "[_@dp, _]"])


def _lineax_of_one_system() -> Module:
    lx: Any = pytest.importorskip("lineax")

    def f(a: Any, b: Any) -> Any:
        return lx.linear_solve(lx.MatrixLinearOperator(a), b).value

    a = array(8, 8) + 4 * np.eye(8, dtype=np.float32)
    return of(f, a, array(8), whole=["[_, _]", "[_]"], rows=["[_@dp, _]", "[_@dp]"])


def _lineax_cg() -> Module:
    """The normal equations of sharded data, formed once, by conjugate gradients."""
    lx: Any = pytest.importorskip("lineax")

    def f(x: Any, b: Any) -> Any:
        op = lx.MatrixLinearOperator(x.T @ x / 16 + 2 * jnp.eye(4), lx.positive_semidefinite_tag)
        return lx.linear_solve(op, b, lx.CG(rtol=1e-6, atol=1e-6)).value

    return of(f, array(16, 4), array(4), data=["[_@dp, _]", "[_]"])


def _lineax_qr() -> Module:
    lx: Any = pytest.importorskip("lineax")

    def f(x: Any, b: Any) -> Any:
        return lx.linear_solve(lx.MatrixLinearOperator(x), b, lx.QR()).value

    return of(f, array(16, 4), array(16), data=["[_@dp, _]", "[_@dp]"])


def _optimistix_newton() -> Module:
    optx: Any = pytest.importorskip("optimistix")

    def f(a: Any) -> Any:
        solver = optx.Newton(rtol=1e-6, atol=1e-6)
        return optx.root_find(lambda y, a: y - jnp.tanh(y * a) - 0.1, solver, jnp.ones_like(a), args=a).value

    return of(f, 0.3 * array(4), data=["[_@dp]"])


def _optimistix_levenberg_marquardt() -> Module:
    optx: Any = pytest.importorskip("optimistix")

    def f(x: Any, y: Any) -> Any:
        def left(p: Any, args: Any) -> Any:
            x, y = args
            return jnp.exp(-p[0] * x) * p[1] - y

        solver = optx.LevenbergMarquardt(rtol=1e-5, atol=1e-5)
        return optx.least_squares(left, solver, jnp.ones(2), args=(x, y)).value

    x = np.linspace(0, 2, 16).astype(np.float32)
    return of(f, x, (2 * np.exp(-0.7 * x) + 0.01 * array(16)).astype(np.float32), data=["[_@dp]", "[_@dp]"])


def _diffrax_heun() -> Module:
    dx: Any = pytest.importorskip("diffrax")

    def f(w: Any, y: Any) -> Any:
        term = dx.ODETerm(lambda t, y, w: jnp.tanh(y @ w))
        return dx.diffeqsolve(term, dx.Heun(), 0.0, 1.0, 0.25, y, args=w, max_steps=8).ys

    return of(f, array(8, 8) / 3, array(4, 8), data=["[_, _]", "[_@dp, _]"], both=["[_@tp, _]", "[_@dp, _]"])


def _diffrax_tsit5() -> Module:
    """Steps as the error of the whole batch asks for them, which all devices know."""
    dx: Any = pytest.importorskip("diffrax")

    def f(w: Any, y: Any) -> Any:
        term = dx.ODETerm(lambda t, y, w: jnp.tanh(y @ w))
        steps = dx.PIDController(rtol=1e-3, atol=1e-3)
        found = dx.diffeqsolve(
            term, dx.Tsit5(), 0.0, 1.0, 0.25, y, args=w, max_steps=16, stepsize_controller=steps,
            saveat=dx.SaveAt(ts=jnp.array([0.5, 1.0])),
        )  # fmt: skip
        return found.ys

    return of(f, array(8, 8) / 3, array(4, 8), data=["[_, _]", "[_@dp, _]"])


#: A solver asks all devices whether its numbers are finite, of solutions and of their cotangents: so these are
#: finished, also over `tp`, of which they are pending sums where nothing else would finish them. What a loop sends
#: counts once.
PROGRAMS: Final = {
    "lineax-LU": Program(_lineax_lu, {"data": 158}),
    "lineax-LU-of-one": Program(_lineax_of_one_system, {"whole": 56, "rows": 180}),
    "lineax-CG": Program(_lineax_cg, {"data": 80}),
    "lineax-QR": Program(_lineax_qr, {"data": 273}),
    "optimistix-Newton": Program(_optimistix_newton, {"data": 8}),
    "optimistix-LevenbergMarquardt": Program(_optimistix_levenberg_marquardt, {"data": 90}),
    "diffrax-Heun": Program(_diffrax_heun, {"data": 4, "both": 199}),
    "diffrax-Tsit5": Program(_diffrax_tsit5, {"data": 14}),
}


@pytest.mark.parametrize(("name", "layout"), cases(PROGRAMS))
def test_a_solve_is_that_of_one_device(name: str, layout: str) -> None:
    check(PROGRAMS[name], layout)
