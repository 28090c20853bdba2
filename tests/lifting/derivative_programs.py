"""Functions of a vector whose derivatives are their own rules, solvers or decompositions, for tests of derivatives.

They are of wide floats: so a solution is exact, and a wrong rule no error of rounding.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy as jsp
import numpy as np
from jax.custom_derivatives import SymbolicZero, closure_convert, linear_call
from jax.experimental.ode import odeint
from jax.scipy.sparse.linalg import bicgstab, cg, gmres

Function = Callable[[Any], Any]

N = 3
M = np.asarray([[4.0, 1.0, 0.5], [0.2, 3.0, -0.7], [-0.3, 0.4, 5.0]])
S = M @ M.T / 8 + np.eye(N)
TOLERANCE = 1e-13

PROGRAMS: dict[str, Function] = {}
#: Those with a backward function that is not linear in the cotangent, which must be whole.
OF_WHOLE_COTANGENTS = {"clipped_gradient", "jvp_around_vjp", "ode"}
#: Those that JAX has no forward derivative of.
ONLY_BACKWARD = {
    *("clipped_gradient", "vjp_around_jvp", "jvp_around_vjp", "backward_function_of_fixed_arguments"),
    *("cotangents_that_are_zero", "functions_that_close_over_values", "remat_optimized", "custom_gradient"),
    "remat_optimized_with_residuals",
    *("closure_converted", "fixed_point", "ode"),
}
#: Those that JAX has no gradient of the gradient of.
ONCE = {"remat_optimized", "remat_optimized_with_residuals", "ode"}
#: Those that JAX does not map.
NOT_MAPPED = {"linear_function", "solver_with_aux"}


def program(f: Function) -> Function:
    PROGRAMS[f.__name__] = f
    return f


# rules of custom_jvp


@jax.custom_jvp
def straight(x: Any) -> Any:
    return jnp.round(x)


straight.defjvp(lambda primals, tangents: (straight(*primals), tangents[0]))


@jax.custom_jvp
def bent(x: Any) -> Any:
    return x * 1.0


bent.defjvp(lambda primals, tangents: (bent(*primals), jnp.clip(primals[0], -1, 1) * tangents[0]))


@jax.custom_jvp
def two(x: Any, y: Any) -> Any:
    return x * jnp.exp(y)


def _two(primals: Any, tangents: Any) -> Any:
    out, (tx, ty) = two(*primals), tangents
    terms = [] if isinstance(tx, SymbolicZero) else [2 * tx * jnp.exp(primals[1])]
    terms += [] if isinstance(ty, SymbolicZero) else [3 * ty * out]
    return out, functools.reduce(jnp.add, terms) if terms else SymbolicZero.from_primal_value(out)


two.defjvp(_two, symbolic_zeros=True)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 2))
def applied(g: Any, x: Any, n: Any) -> Any:
    return g(x) * n


applied.defjvp(lambda g, n, primals, tangents: (applied(g, primals[0], n), g(primals[0]) ** 2 * tangents[0] * n))


@jax.custom_jvp
def several(x: Any) -> Any:
    return jnp.sin(x), jnp.floor(x).astype(jnp.int32), jnp.sum(x)


@several.defjvp
def _several(primals: Any, tangents: Any) -> Any:
    out = several(*primals)
    nothing = np.zeros(out[1].shape, jax.dtypes.float0)
    return out, (tangents[0] * primals[0], nothing, jnp.sum(tangents[0] * primals[0]))


@program
def straight_through(x: Any) -> Any:
    return straight(x * 2) * x


@program
def rule_that_is_not_the_derivative(x: Any) -> Any:
    return bent(x) * bent(bent(x))


@program
def rule_with_a_primal_of_its_own(x: Any) -> Any:
    @jax.custom_jvp
    def f(x: Any) -> Any:
        return jnp.sin(x)

    f.defjvp(lambda primals, tangents: (jnp.cos(primals[0]), 3 * tangents[0]))
    return f(x) * x


@program
def symbolic_zeros(x: Any) -> Any:
    return two(x, jnp.sin(x)) + two(x, jnp.ones(N)) + two(jnp.ones(N), x)


@program
def arguments_that_are_not_differentiated(x: Any) -> Any:
    shift = jnp.arange(3.0)
    return applied(jnp.sin, x, 3) + applied(lambda y: jnp.cos(y) + shift, x, jnp.arange(1.0, 4.0))


@program
def results_without_a_tangent(x: Any) -> Any:
    first, second, third = several(x)
    return first * second * third


@program
def rule_that_gives_zero(x: Any) -> Any:
    f = jax.custom_jvp(jnp.sin)
    f.defjvp(lambda primals, tangents: (f(*primals), jnp.zeros_like(primals[0])))
    return f(x) * x


@program
def rule_that_closes_over_a_value(x: Any) -> Any:
    weights = jnp.arange(3.0) + 1

    @jax.custom_jvp
    def f(y: Any) -> Any:
        return y * 2

    f.defjvp(lambda primals, tangents: (f(*primals), tangents[0] * weights * jnp.sin(primals[0])))
    return f(x)


@program
def rule_with_a_loop(x: Any) -> Any:
    @jax.custom_jvp
    def f(x: Any) -> Any:
        return jax.lax.fori_loop(0, 3, lambda _, y: jnp.sin(y), x)

    def step(t: Any, x: Any) -> Any:
        return t * jnp.cos(x), None

    @f.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        return f(*primals), jax.lax.scan(lambda t, _: step(t, primals[0]), tangents[0], None, 3)[0]

    return f(x)


@program
def rules_in_a_scan(x: Any) -> Any:
    return jax.lax.scan(lambda c, r: (straight(c * r) + c, bent(c)), x, jnp.arange(3.0))[1].sum(0)


@program
def rules_in_a_branch(x: Any) -> Any:
    return jax.lax.cond(jnp.sum(x) > 0, bent, lambda x: straight(x) * x, x)


@program
def rules_in_a_counted_loop(x: Any) -> Any:
    return jax.lax.fori_loop(0, 3, lambda _, s: bent(s) + s * 0.5, x)


@program
def rules_in_a_checkpoint(x: Any) -> Any:
    return jax.checkpoint(lambda x: bent(jnp.sin(x)) * straight(x))(x)


@program
def rules_under_vmap(x: Any) -> Any:
    return jax.vmap(lambda r: bent(r) * bent(jnp.sum(x) * r))(x)


# rules of custom_vjp


@jax.custom_vjp
def clipped(x: Any) -> Any:
    return x * 2.0


clipped.defvjp(lambda x: (clipped(x), x), lambda x, ct: (jnp.clip(ct, -1, 1) * x,))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def pulled(g: Any, x: Any, n: Any) -> Any:
    return g(x) * n


pulled.defvjp(lambda g, x, n: (pulled(g, x, n), (x, n)), lambda g, kept, ct: (g(kept[0]) * ct, None))


@jax.custom_vjp
def pair(x: Any, y: Any) -> Any:
    return x * y, x + y


def _pair_fwd(x: Any, y: Any) -> Any:
    return (x.value * y.value, x.value + y.value), (x.value, y.value, x.perturbed, y.perturbed)


def _pair_bwd(kept: Any, cts: Any) -> Any:
    x, y, *_ = kept
    first, second = (0 * x if isinstance(ct, SymbolicZero) else ct for ct in cts)
    return 2 * first * y + 5 * second * x, 2 * first * x + 7 * second


pair.defvjp(_pair_fwd, _pair_bwd, symbolic_zeros=True)


@program
def clipped_gradient(x: Any) -> Any:
    return clipped(x)


@program
def vjp_around_jvp(x: Any) -> Any:
    @jax.custom_vjp
    def f(x: Any) -> Any:
        return straight(x) * x

    f.defvjp(lambda x: (f(x), x), lambda x, ct: (ct * bent(x) * straight(x),))
    return f(x)


@program
def jvp_around_vjp(x: Any) -> Any:
    @jax.custom_jvp
    def f(x: Any) -> Any:
        return clipped(x) * jnp.sin(x)

    f.defjvp(lambda primals, tangents: (f(*primals), clipped(primals[0]) * tangents[0]))
    return f(x)


@program
def backward_function_of_fixed_arguments(x: Any) -> Any:
    return pulled(jnp.sin, x, jnp.arange(N))


@program
def cotangents_that_are_zero(x: Any) -> Any:
    return pair(x, jnp.sin(x))[0] + sum(pair(x, jnp.cos(x))) + pair(x, jnp.ones(N))[1]


@program
def functions_that_close_over_values(x: Any) -> Any:
    weights, others = jnp.arange(3.0) + 1, jnp.ones(3) * 2

    @jax.custom_vjp
    def f(y: Any) -> Any:
        return y * 2

    f.defvjp(lambda y: (f(y) * 1, (y, weights * y)), lambda kept, ct: (ct * kept[1] * kept[0] * others,))
    return f(x)


@program
def remat_optimized(x: Any) -> Any:
    f = jax.custom_vjp(jnp.sin)
    f.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (ct * 2 * jnp.cos(x),), optimize_remat=True)
    return f(x)


@program
def remat_optimized_with_residuals(x: Any) -> Any:
    f = jax.custom_vjp(jnp.sin)
    f.defvjp(
        lambda x: (jnp.sin(x), (x * 1, jnp.cos(x))), lambda kept, ct: (ct * kept[0] * kept[1],), optimize_remat=True
    )
    return f(x)


@program
def custom_gradient(x: Any) -> Any:
    return jax.custom_gradient(lambda x: (x**2, lambda ct: (ct * x * jnp.cos(x),)))(x)


@program
def closure_converted(x: Any) -> Any:
    s = jnp.sin(x)
    f, consts = closure_convert(lambda y: y * s, x)
    g = jax.custom_vjp(f)

    def bwd(kept: Any, ct: Any) -> Any:
        return 2 * f(ct, *kept[1]), *[ct for _ in kept[1]]

    g.defvjp(lambda y, *c: (f(y, *c), (y, c)), bwd)
    return g(x, *consts)


@program
def fixed_point(x: Any) -> Any:
    """Differentiated implicitly: the cotangent is a fixed point too."""

    def step(z: Any, a: Any) -> Any:
        return 0.3 * jnp.tanh(z) + a

    @jax.custom_vjp
    def solve(a: Any) -> Any:
        return jax.lax.fori_loop(0, 40, lambda _, z: step(z, a), jnp.zeros(N))

    def bwd(kept: Any, ct: Any) -> Any:
        z, a = kept
        pull = jax.vjp(step, z, a)[1]
        return (pull(jax.lax.fori_loop(0, 40, lambda _, u: ct + pull(u)[0], ct))[1],)

    solve.defvjp(lambda a: (lambda z: (z, (z, a)))(solve(a)), bwd)
    return solve(x)


@program
def ode(x: Any) -> Any:
    times = jnp.asarray([0.0, 0.5, 1.0])
    return odeint(lambda y, t, a: -a * y + jnp.sin(t), x, times, jnp.asarray(0.7), rtol=1e-6, atol=1e-6)[-1]


# linear functions with transposes of their own, and functions with maps of their own


@program
def linear_function(x: Any) -> Any:
    held = jnp.ones(N) * 3.0
    return x + linear_call(lambda r, v: v / r, lambda r, ct: 3 * ct / r, held, x**2)


@program
def linearized(x: Any) -> Any:
    y, push = jax.linearize(jnp.sin, x)
    return y * push(x)


@program
def transposed(x: Any) -> Any:
    return jax.linear_transpose(lambda v: M @ v, x)(jnp.sin(x))[0]


@program
def mapped_by_a_rule(x: Any) -> Any:
    f = jax.custom_batching.custom_vmap(jnp.sin)
    f.def_vmap(lambda size, batched, x: (jnp.sin(x) * 2, True))
    return jax.vmap(f)(x)


# roots and solvers


def _newton(f: Any, guess: Any) -> Any:
    def step(_: int, z: Any) -> Any:
        value, slope = jax.jvp(f, (z,), (jnp.ones_like(z),))
        return z - value / slope

    return jax.lax.fori_loop(0, 25, step, guess)


def _root(x: Any, solve: Any, **options: Any) -> Any:
    return jax.lax.custom_root(
        lambda z: z**3 + z - x, jnp.ones_like(x), solve, lambda g, y: y / g(jnp.ones_like(y)), **options
    )


@program
def root(x: Any) -> Any:
    return _root(x, _newton)


@program
def root_with_aux(x: Any) -> Any:
    y, aux = _root(x, lambda f, guess: (_newton(f, guess), jnp.sum(guess)), has_aux=True)
    return y * aux


@program
def root_of_a_system(x: Any) -> Any:
    def solve(f: Any, guess: Any) -> Any:
        return jax.lax.fori_loop(0, 10, lambda _, z: z - jnp.linalg.solve(jax.jacobian(f)(z), f(z)), guess)

    def tangent_solve(g: Any, y: Any) -> Any:
        return jnp.linalg.solve(jax.jacobian(g)(y), y)

    return jax.lax.custom_root(lambda z: jnp.tanh(M @ z) + z - x, jnp.zeros_like(x), solve, tangent_solve)


def symmetric(x: Any) -> Any:
    return S + jnp.outer(x, x)


def general(x: Any) -> Any:
    return M + jnp.outer(x, jnp.cos(x))


def _direct(matvec: Any, b: Any) -> Any:
    return jnp.linalg.solve(jax.jacobian(matvec)(b), b)


@program
def symmetric_solver(x: Any) -> Any:
    return jax.lax.custom_linear_solve(
        lambda v: symmetric(x) @ v, jnp.sin(x), lambda mv, b: cg(mv, b, tol=TOLERANCE)[0], symmetric=True
    )


@program
def solver_with_a_transpose(x: Any) -> Any:
    return jax.lax.custom_linear_solve(lambda v: general(x) @ v, jnp.sin(x), _direct, _direct)


@program
def solver_with_aux(x: Any) -> Any:
    def solve(matvec: Any, b: Any) -> Any:
        return _direct(matvec, b), jnp.sum(b)

    y, aux = jax.lax.custom_linear_solve(lambda v: general(x) @ v, jnp.sin(x), solve, solve, has_aux=True)
    return y * aux


@program
def solver_of_trees(x: Any) -> Any:
    def matvec(v: Any) -> Any:
        return {"a": symmetric(x) @ v["a"], "b": 2.0 * v["b"]}

    def solve(_: Any, b: Any) -> Any:
        return {"a": jnp.linalg.solve(symmetric(x), b["a"]), "b": b["b"] / 2.0}

    y = jax.lax.custom_linear_solve(matvec, {"a": x, "b": jnp.cos(x)}, solve, symmetric=True)
    return y["a"] * y["b"]


@program
def conjugate_gradients(x: Any) -> Any:
    return cg(lambda v: symmetric(x) @ v, jnp.sin(x), tol=TOLERANCE)[0]


@program
def generalized_residuals(x: Any) -> Any:
    return gmres(lambda v: general(x) @ v, jnp.sin(x), tol=TOLERANCE)[0]


@program
def biconjugate_gradients(x: Any) -> Any:
    return bicgstab(lambda v: general(x) @ v, jnp.sin(x), tol=TOLERANCE)[0]


# linear algebra


def _eigenvectors(x: Any) -> Any:
    values, vectors = jnp.linalg.eigh(symmetric(x))
    return (vectors * jnp.sqrt(values)) @ vectors.T @ x


def _singular_vectors(x: Any) -> Any:
    u, s, _ = jnp.linalg.svd(general(x))
    return (u * s**2) @ u.T @ x


PROGRAMS |= {
    "solve": lambda x: jnp.linalg.solve(general(x), jnp.sin(x)),
    "inv": lambda x: jnp.linalg.inv(general(x)) @ x,
    "det": lambda x: jnp.linalg.det(general(x)) * x,
    "slogdet": lambda x: jnp.linalg.slogdet(general(x))[1] * x,
    "cholesky": lambda x: jnp.linalg.cholesky(symmetric(x)) @ x,
    "eigh": lambda x: jnp.linalg.eigh(symmetric(x))[0],
    "eigenvectors": _eigenvectors,
    "svd": lambda x: jnp.linalg.svd(general(x), compute_uv=False),
    "singular_vectors": _singular_vectors,
    "qr": lambda x: jnp.linalg.qr(general(x))[1] @ x,
    "expm": lambda x: jsp.linalg.expm(general(x) / 8) @ x,
    "lstsq": lambda x: jnp.linalg.lstsq(general(x), jnp.sin(x))[0],
    "pinv": lambda x: jnp.linalg.pinv(general(x)) @ x,
    "cho_solve": lambda x: jsp.linalg.cho_solve(jsp.linalg.cho_factor(symmetric(x)), x),
    "lu_solve": lambda x: jsp.linalg.lu_solve(jsp.linalg.lu_factor(general(x)), x),
    "solve_triangular": lambda x: jsp.linalg.solve_triangular(jnp.tril(general(x)), x, lower=True),
    "solve_pos": lambda x: jsp.linalg.solve(symmetric(x), x, assume_a="pos"),
    "matrix_power": lambda x: jnp.linalg.matrix_power(general(x), -2) @ x,
    "cond": lambda x: jnp.linalg.cond(general(x)) * x,
    "tensorsolve": lambda x: jnp.linalg.tensorsolve(general(x), x),
    "norm": lambda x: jnp.linalg.norm(x) * x,
}

# functions of JAX with rules of their own

PROGRAMS |= {
    **{name: getattr(jax.nn, name) for name in ("relu", "relu6", "silu", "gelu", "softplus", "softmax", "log_softmax")},
    "logsumexp": lambda x: jsp.special.logsumexp(x) * x,
    "logaddexp": lambda x: jnp.logaddexp(x, jnp.sin(x)),
    "logit": lambda x: jsp.special.logit(jax.nn.sigmoid(x)),
    "xlogy": lambda x: jsp.special.xlogy(x**2, x**2 + 1),
    "xlog1py": lambda x: jsp.special.xlog1py(x, x**2),
    "ndtri": lambda x: jsp.special.ndtri(jax.nn.sigmoid(x)),
    "log_ndtr": jsp.special.log_ndtr,
    "entr": lambda x: jsp.special.entr(x**2 + 0.1),
    "i0e": jsp.special.i0e,
    "i1": jsp.special.i1,
    "digamma": lambda x: jsp.special.digamma(x**2 + 1),
    "gammaln": lambda x: jsp.special.gammaln(x**2 + 1),
    "erfinv": lambda x: jsp.special.erfinv(jnp.tanh(x)),
    "expi": lambda x: jsp.special.expi(x**2 + 1),
    "spence": lambda x: jsp.special.spence(x**2 + 1),
    "sinc": jnp.sinc,
    "gammainc": lambda x: jsp.special.gammainc(jnp.full(N, 2.0), x**2 + 1),
}
