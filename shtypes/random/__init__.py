"""`sh.random`: the functions of `jax.random` for typed arrays.

A key and a type stand for one global array, the one that `jax.random` draws with that key: its numbers do not depend on
the mesh, and each device makes its own part of them and nothing more. Where the type is sharded that part is a slice,
where it is unreduced the draw is on index 0, and where it is varying the device's index is folded into the key.

The bits are equal, and so are integers, bools and numbers of the unit interval. What is made of those by logarithms and
error functions may differ in the last bits, as two calls of `jax.random` do that XLA compiles with other code around.

Some distributions are drawn by rejection, or all at once (`gamma`, `poisson`, `orthogonal`, ...). Their numbers do not
depend on the mesh either, but each device makes all of them and keeps its own part; their docstrings say so.
"""

from shtypes.random.choices import categorical as categorical
from shtypes.random.choices import choice as choice
from shtypes.random.choices import permutation as permutation
from shtypes.random.draws import bernoulli as bernoulli
from shtypes.random.draws import bits as bits
from shtypes.random.draws import cauchy as cauchy
from shtypes.random.draws import exponential as exponential
from shtypes.random.draws import geometric as geometric
from shtypes.random.draws import gumbel as gumbel
from shtypes.random.draws import laplace as laplace
from shtypes.random.draws import logistic as logistic
from shtypes.random.draws import lognormal as lognormal
from shtypes.random.draws import normal as normal
from shtypes.random.draws import pareto as pareto
from shtypes.random.draws import rademacher as rademacher
from shtypes.random.draws import randint as randint
from shtypes.random.draws import rayleigh as rayleigh
from shtypes.random.draws import triangular as triangular
from shtypes.random.draws import truncated_normal as truncated_normal
from shtypes.random.draws import uniform as uniform
from shtypes.random.draws import weibull_min as weibull_min
from shtypes.random.keys import clone as clone
from shtypes.random.keys import fold_in as fold_in
from shtypes.random.keys import key as key
from shtypes.random.keys import key_data as key_data
from shtypes.random.keys import key_impl as key_impl
from shtypes.random.keys import split as split
from shtypes.random.keys import wrap_key_data as wrap_key_data
from shtypes.random.whole import ball as ball
from shtypes.random.whole import beta as beta
from shtypes.random.whole import binomial as binomial
from shtypes.random.whole import chisquare as chisquare
from shtypes.random.whole import dirichlet as dirichlet
from shtypes.random.whole import double_sided_maxwell as double_sided_maxwell
from shtypes.random.whole import f as f
from shtypes.random.whole import gamma as gamma
from shtypes.random.whole import generalized_normal as generalized_normal
from shtypes.random.whole import loggamma as loggamma
from shtypes.random.whole import maxwell as maxwell
from shtypes.random.whole import multinomial as multinomial
from shtypes.random.whole import multivariate_normal as multivariate_normal
from shtypes.random.whole import orthogonal as orthogonal
from shtypes.random.whole import poisson as poisson
from shtypes.random.whole import t as t
from shtypes.random.whole import wald as wald
