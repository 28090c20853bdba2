"""For each primitive that `lift` evaluates, a small plain program that has it: ``primitive: expression``."""

from __future__ import annotations

from typing import Final

from tests.peers.programs import Program, program

TEXTS: Final = """
abs: jnp.abs(a)
acos: jax.lax.acos(a / 2)
acosh: jax.lax.acosh(a * a + 2)
add: a + v
add_any: jax.grad(lambda x: jnp.sum(jnp.sin(x) * jnp.cos(x)))(a)
and: n & y
approx_top_k: jax.lax.approx_max_k(a, 2)[0]
argmax: jnp.argmax(a, 1)
argmin: jnp.argmin(a, 1)
asin: jax.lax.asin(a / 2)
asinh: jax.lax.asinh(a)
atan: jax.lax.atan(a)
atan2: jnp.arctan2(a, b)
atanh: jax.lax.atanh(a / 2)
bessel_i0e: jax.lax.bessel_i0e(a)
bessel_i1e: jax.lax.bessel_i1e(a)
bitcast_convert_type: jax.lax.bitcast_convert_type(n, jnp.uint32)
broadcast_in_dim: jnp.broadcast_to(v, (4, 8))
cbrt: jnp.cbrt(a)
ceil: jnp.ceil(a)
cholesky: jnp.linalg.cholesky(jnp.eye(4) * 9 + t @ jnp.swapaxes(t, 1, 2))
cholesky_update: jax.lax.linalg.cholesky_update(q[:4, :4] + 9 * jnp.eye(4), q[0])
clamp: jax.lax.clamp(-0.5, a, 0.5)
clz: jax.lax.clz(n)
complex: jax.lax.complex(a, b)
composite: jax.lax.composite(lambda x: jnp.sin(x) * 2, name='my.own')(a)
concatenate: jnp.concatenate([a, b], 1)
cond: jax.lax.cond(e > 1, lambda x: x * 2, jnp.sin, a)
conj: jnp.conj(z)
conv_general_dilated: jax.lax.conv(t[:, :, None], jnp.ones((3, 4, 1, 2)), (1, 1), 'SAME')
convert_element_type: a.astype(jnp.bfloat16)
copy: jnp.array(a, copy=True)
cos: jnp.cos(a)
cosh: jnp.cosh(a)
cumlogsumexp: jax.lax.cumlogsumexp(a, 1, reverse=True)
cummax: jax.lax.cummax(a, 1, reverse=True)
cummin: jax.lax.cummin(a, 1)
cumprod: jax.lax.cumprod(a, 1, reverse=True)
cumsum: jax.lax.cumsum(a, 1, reverse=True)
custom_jvp_call: jax.nn.relu(a)
custom_linear_solve: jnp.linalg.solve(t + 9 * jnp.eye(4), g)
custom_vjp_call: OWN_VJP(a)
custom_vmap_call: OWN_VMAP(a)
digamma: jax.lax.digamma(a + 3)
div: a / b
dot_general: jnp.einsum('bij,bjk->bik', t, g)
dynamic_slice: jax.lax.dynamic_slice(a, (0, e), (4, 3))
dynamic_update_slice: jax.lax.dynamic_update_slice(a, b[:, :3], (0, e))
eig: jnp.abs(jnp.sum(jnp.linalg.eigvals(t), -1))
eigh: jnp.linalg.eigvalsh(t + jnp.swapaxes(t, 1, 2))
eq: n == y
erf: jax.lax.erf(a)
erf_inv: jax.lax.erf_inv(a / 4)
erfc: jax.lax.erfc(a)
exp: jnp.exp(a)
exp2: jnp.exp2(a)
expm1: jnp.expm1(a)
fft: jnp.real(jnp.fft.fft(a))
floor: jnp.floor(a)
gather: a[:, i]
ge: a >= b
geqrf: jnp.linalg.qr(t, mode='raw')[0]
gt: a > b
hessenberg: jax.lax.linalg.hessenberg(t)[0]
householder_product: jax.lax.linalg.householder_product(t, t[:, 0])
igamma: jax.lax.igamma(a + 3, b + 3)
igamma_grad_a: jax.grad(lambda x, y: jnp.sum(jax.lax.igamma(x, y)))(a + 3, b + 3)
igammac: jax.lax.igammac(a + 3, b + 3)
imag: jnp.imag(z)
integer_pow: a ** 3
is_finite: jnp.isfinite(a)
jit: jax.jit(jnp.sin)(a)
le: a <= b
lgamma: jax.lax.lgamma(a + 3)
linear_call: jax.custom_derivatives.linear_call(lambda r, x: x * r, lambda r, ct: ct * r, jnp.ones((4, 8)), a)
log: jnp.log(a + 3)
log1p: jnp.log1p(a * a)
log2: jax.lax.log2(a * a + 1)
one_minus_square: jax.lax.one_minus_square_p.bind(a)
polynomial: jax.lax.polynomial_p.bind(a, 1.0, 2.0, 3.0)
logistic: jax.nn.sigmoid(a)
lt: a < b
lu: jax.scipy.linalg.lu_factor(t)[0]
lu_pivots_to_permutation: jax.lax.linalg.lu_pivots_to_permutation(jnp.clip(n[:, :4], 3, 3), 4)
max: jnp.maximum(a, b)
min: jnp.minimum(a, b)
mul: a * b
name: jax.ad_checkpoint.checkpoint_name(a, 'kept')
ne: n != y
neg: -a
nextafter: jnp.nextafter(a, b)
not: ~p
optimization_barrier: jax.lax.optimization_barrier(a)
or: p | (a > 0)
pad: jax.lax.pad(a, 1.0, ((0, 0, 0), (1, 2, 1)))
platform_index: jax.lax.platform_dependent(a, default=lambda x: x * 3)
pmax: jax.vmap(lambda x: x - jax.lax.pmax(x, 'i'), in_axes=1, axis_name='i')(a)
pmin: jax.vmap(lambda x: x - jax.lax.pmin(x, 'i'), in_axes=1, axis_name='i')(a)
polygamma: jax.lax.polygamma(2.0, a * a + 1)
population_count: jax.lax.population_count(n)
pow: jnp.power(a + 3, b)
psum: jax.vmap(lambda x: x - jax.lax.psum(x, 'i'), in_axes=1, axis_name='i')(a)
pure_callback: jax.pure_callback(np.sin, jax.ShapeDtypeStruct((4, 8), np.float32), a)
qr: jnp.abs(jax.lax.linalg.qr(t, pivoting=False)[1])
ragged_dot_general: jax.lax.ragged_dot(a, t[:1, :, :2].reshape(1, 8, 1), jnp.array([4]))
random_bits: jax.random.uniform(jax.random.key(e), (4,))
random_clone: jax.random.key_data(jax.random.clone(jax.random.key(e)))
random_fold_in: jax.random.key_data(jax.random.fold_in(jax.random.key(0), e))
random_gamma: jax.random.gamma(jax.random.key(0), a + 3)
random_seed: jax.random.key_data(jax.random.key(e))
random_split: jax.random.key_data(jax.random.split(jax.random.key(e)))
random_unwrap: jax.random.key_data(jax.random.key(e))
random_wrap: jax.random.uniform(jax.random.wrap_key_data(jnp.stack([e, e]).astype(jnp.uint32)), (4,))
real: jnp.real(z)
reduce: jax.lax.reduce(a, np.float32(1), lambda x, y: x * y + 0, (1,))
reduce_and: jnp.all(p, 1)
reduce_max: jnp.max(a, 1)
reduce_min: jnp.min(a, 1)
reduce_or: jnp.any(p, 1)
reduce_precision: jax.lax.reduce_precision(a, 5, 10)
reduce_prod: jnp.prod(a, 1)
reduce_sum: jnp.sum(a, 1)
reduce_window: jax.lax.reduce_window(a, 1.0, lambda x, y: x * y + 0, (1, 2), (1, 2), 'VALID')
reduce_window_max: jax.lax.reduce_window(a, -jnp.inf, jax.lax.max, (1, 2), (1, 2), 'VALID')
reduce_window_min: jax.lax.reduce_window(a, jnp.inf, jax.lax.min, (1, 2), (1, 2), 'VALID')
reduce_window_sum: jax.lax.reduce_window(a, 0.0, jax.lax.add, (1, 2), (1, 2), 'VALID')
reduce_xor: jax.lax.reduce_xor(n, (1,))
regularized_incomplete_beta: jax.lax.betainc(a + 3, b + 3, jax.nn.sigmoid(c))
rem: jax.lax.rem(n, y + 1)
remat2: jax.checkpoint(lambda x: jnp.sin(jnp.cos(x)))(a)
reshape: a.reshape(4, 2, 4)
rev: a[:, ::-1]
rng_bit_generator: jax.lax.rng_bit_generator(jnp.stack([e, e, e, e]).astype(jnp.uint32), (4,))[1]
round: jnp.round(a)
rsqrt: jax.lax.rsqrt(a + 3)
scan: jax.lax.scan(lambda c, x: (c + x, c * x), v, a)[1]
scatter: a.at[:, i].set(0.0)
scatter-add: a.at[:, i].add(1.0)
scatter-max: a.at[:, i].max(0.5)
scatter-min: a.at[:, i].min(0.5)
scatter-mul: a.at[:, i].multiply(2.0, unique_indices=True)
scatter-sub: a.at[:, i].subtract(1.0)
schur: jnp.abs(jax.lax.linalg.schur(t + jnp.swapaxes(t, 1, 2))[0])
select_and_gather_add: jax.jvp(lambda x: WINDOW(x), (a,), (b,))[1]
select_and_scatter_add: jax.grad(lambda x: jnp.sum(WINDOW(x)))(a)
select_n: jnp.where(p, a, b)
shift_left: n << 2
shift_right_arithmetic: n >> 1
shift_right_logical: jax.lax.shift_right_logical(n, y)
sign: jnp.sign(a)
sin: jnp.sin(a)
sinh: jnp.sinh(a)
slice: a[:, 1:7:2]
sort: jax.lax.sort((y, a), dimension=1, num_keys=1)[1]
split: jnp.split(a, 2, 1)[0]
sqrt: jnp.sqrt(a + 3)
square: jnp.square(a)
squeeze: jnp.squeeze(k, 1)
stack: jnp.stack([a, b], 1)
stop_gradient: jax.lax.stop_gradient(a) * a
sub: a - b
svd: jnp.linalg.svd(t, compute_uv=False)
symmetric_product: jax.lax.linalg.symmetric_product(t, g)
tan: jnp.tan(a)
tanh: jnp.tanh(a)
threefry2x32: jax.extend.random.threefry2x32_p.bind(*map(jnp.uint32, (n, n, y, y)))[0]
tile: jnp.tile(a, (1, 2))
top_k: jax.lax.top_k(a, 3)[0]
transpose: a.T
triangular_solve: jax.lax.linalg.triangular_solve(jnp.tril(t) + 5 * jnp.eye(4), g, lower=True)
tridiagonal: jax.lax.linalg.tridiagonal(t + jnp.swapaxes(t, 1, 2))[0]
tridiagonal_solve: jax.lax.linalg.tridiagonal_solve(t[:, 0], t[:, 1] + 9, t[:, 2], g)
unstack: jnp.unstack(a, axis=1)[3]
while: jax.lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * 2), (0, a))[1]
xor: n ^ y
zeta: jax.lax.zeta(a * a + 2, b * b + 1)
"""


def primitive_programs() -> dict[str, Program]:
    """By primitive."""
    pairs = (line.split(": ", 1) for line in TEXTS.strip().splitlines())
    return {name: program(text) for name, text in pairs}
