"""The names of `sh.random`, as type checkers see them. Written by `python generate/stubs.py`."""

from typing import Any

from shtypes.core.array import Array as Array
from shtypes.numerics.random.choices import categorical as categorical
from shtypes.numerics.random.choices import choice as choice
from shtypes.numerics.random.choices import permutation as permutation
from shtypes.numerics.random.keys import clone as clone
from shtypes.numerics.random.keys import fold_in as fold_in
from shtypes.numerics.random.keys import key as key
from shtypes.numerics.random.keys import key_data as key_data
from shtypes.numerics.random.keys import key_impl as key_impl
from shtypes.numerics.random.keys import split as split
from shtypes.numerics.random.keys import wrap_key_data as wrap_key_data
from shtypes.numerics.random.replicated import ball as ball
from shtypes.numerics.random.replicated import dirichlet as dirichlet
from shtypes.numerics.random.replicated import gamma as gamma
from shtypes.numerics.random.replicated import multinomial as multinomial
from shtypes.numerics.random.replicated import multivariate_normal as multivariate_normal
from shtypes.numerics.random.replicated import orthogonal as orthogonal
from shtypes.numerics.random.samples import bernoulli as bernoulli
from shtypes.numerics.random.samples import randint as randint
from shtypes.numerics.random.samples import uniform as uniform

def beta(
    key: Any, a: Any, b: Any, type: Any = None, dtype: Any = None, *, shape: Any = None, mesh: Any = None
) -> Array: ...
def binomial(
    key: Any, n: Any, p: Any, type: Any = None, dtype: Any = None, *, shape: Any = None, mesh: Any = None
) -> Array: ...
def bits(key: Any, type: Any = None, dtype: Any = None, *, shape: Any = None, mesh: Any = None) -> Array: ...
def cauchy(key: Any, type: Any = None, dtype: Any = None, *, shape: Any = None, mesh: Any = None) -> Array: ...
def chisquare(
    key: Any, df: Any, type: Any = None, dtype: Any = None, *, shape: Any = None, mesh: Any = None
) -> Array: ...
def double_sided_maxwell(
    key: Any, loc: Any, scale: Any, type: Any = None, dtype: Any = None, *, shape: Any = None, mesh: Any = None
) -> Array: ...
def exponential(key: Any, type: Any = None, dtype: Any = None, *, shape: Any = None, mesh: Any = None) -> Array: ...
def f(
    key: Any, dfnum: Any, dfden: Any, type: Any = None, dtype: Any = None, *, shape: Any = None, mesh: Any = None
) -> Array: ...
def generalized_normal(
    key: Any, p: Any, type: Any = None, dtype: Any = None, *, shape: Any = None, mesh: Any = None
) -> Array: ...
def geometric(
    key: Any, p: Any, type: Any = None, dtype: Any = None, *, shape: Any = None, mesh: Any = None
) -> Array: ...
def gumbel(key: Any, type: Any = None, dtype: Any = None, *, shape: Any = None, mesh: Any = None) -> Array: ...
def laplace(key: Any, type: Any = None, dtype: Any = None, *, shape: Any = None, mesh: Any = None) -> Array: ...
def loggamma(
    key: Any, a: Any, type: Any = None, dtype: Any = None, *, shape: Any = None, mesh: Any = None
) -> Array: ...
def logistic(key: Any, type: Any = None, dtype: Any = None, *, shape: Any = None, mesh: Any = None) -> Array: ...
def lognormal(
    key: Any, sigma: float = 1.0, type: Any = None, dtype: Any = None, *, shape: Any = None, mesh: Any = None
) -> Array: ...
def maxwell(key: Any, type: Any = None, dtype: Any = None, *, shape: Any = None, mesh: Any = None) -> Array: ...
def normal(key: Any, type: Any = None, dtype: Any = None, *, shape: Any = None, mesh: Any = None) -> Array: ...
def pareto(key: Any, b: Any, type: Any = None, dtype: Any = None, *, shape: Any = None, mesh: Any = None) -> Array: ...
def poisson(
    key: Any, lam: Any, type: Any = None, dtype: Any = None, *, shape: Any = None, mesh: Any = None
) -> Array: ...
def rademacher(key: Any, type: Any = None, dtype: Any = None, *, shape: Any = None, mesh: Any = None) -> Array: ...
def rayleigh(
    key: Any, scale: Any, type: Any = None, dtype: Any = None, *, shape: Any = None, mesh: Any = None
) -> Array: ...
def t(key: Any, df: Any, type: Any = None, dtype: Any = None, *, shape: Any = None, mesh: Any = None) -> Array: ...
def triangular(
    key: Any,
    left: Any,
    mode: Any,
    right: Any,
    type: Any = None,
    dtype: Any = None,
    *,
    shape: Any = None,
    mesh: Any = None,
) -> Array: ...
def truncated_normal(
    key: Any, lower: Any, upper: Any, type: Any = None, dtype: Any = None, *, shape: Any = None, mesh: Any = None
) -> Array: ...
def wald(key: Any, mean: Any, type: Any = None, dtype: Any = None, *, shape: Any = None, mesh: Any = None) -> Array: ...
def weibull_min(
    key: Any,
    scale: Any,
    concentration: Any,
    type: Any = None,
    dtype: Any = None,
    *,
    shape: Any = None,
    mesh: Any = None,
) -> Array: ...
