"""What the other families leave out: statistics, special functions, `jax.lax` names, samples, products, factorings."""

from __future__ import annotations

from tests.random_choices import Choices, Expression, op


@op(2)
def statistics(d: Choices) -> Expression:
    v = d.summed(d.value("f", lambda x: x.ndim >= 1), 0.6)
    k = d.dim(v)
    one = d.one([None, k])
    forms = [
        f"m.{d.one(['quantile', 'nanquantile'])}({v.name}, {d.one([0.25, 0.6])}, axis={one!r})",
        f"m.percentile({v.name}, 30.0, axis={one!r}, keepdims={d.flip()})",
        f"m.{d.one(['nanmedian', 'nanmean', 'nanmin', 'nanvar'])}({v.name}, axis={one!r})",
        f"m.{d.one(['nancumsum', 'nancumprod'])}(0.5 * m.tanh({v.name}), axis={k})",
        f"m.logmeanexp({v.name}, axis={one!r})",
        f"m.trapezoid({v.name}, axis={k})",
        f"m.gradient({v.name}, axis={k})" if v.shape[k] > 1 else f"m.ediff1d({v.name})",
        f"m.unwrap({v.name}, axis={k})",
        f"m.cumulative_prod(0.5 + 0.3 * m.tanh({v.name}), axis={k})",
        f"m.{d.one(['reduce_sum', 'reduce_max', 'reduce_min'])}({v.name}, ({k},))",
        f"m.reduce_prod(0.5 + 0.3 * m.tanh({v.name}), ({k},))",
    ]
    if v.ndim == 2:
        forms += [f"m.cov({v.name}, rowvar={d.flip()})"] if min(v.shape) > 1 else []
    if v.ndim == 1:
        forms += [f"m.polyval(0.5 * {v.name}, {d.one(['0.5', v.name])})", f"m.vander({v.name}, 3)"]
    return d.one(forms), v.bound * 8 + 4


@op(2)
def special(d: Choices) -> Expression:
    v = d.summed(d.value(), 0.6)
    w = d.summed(d.partner(v), 0.6)
    a, b = f"(1.5 + m.abs({v.name}))", f"(1.5 + m.abs({w.name}))"
    forms = [
        f"m.exp1({a})", f"m.expi({a})", f"m.gamma({a})", f"m.bessel_i1e({v.name})",
        f"m.beta({a}, {b})", f"m.polygamma(1.0, {a})", f"m.gammainc({a}, {b})", f"m.gammaincc(1.5, {b})",
        f"m.copysign({v.name} * 0 + 1.5, {w.name} + 0.0107)",
        f"m.clamp({v.name} * 0 - 0.5, {v.name}, {v.name} * 0 + 0.5)",
        f"m.integer_pow({v.name}, {d.one([1, 2, 3])})", f"m.reduce_precision({v.name}, 8, 23)",
        f"m.mul({v.name}, {v.name})", f"m.sub({v.name}, 0.5 * {v.name})", f"m.neg({v.name})",
        f"m.optimization_barrier({v.name})", f"m.angle({v.name} + 1.5j)",
        f"m.select_n({v.name} > 0.1931, {v.name}, 0.5 * {v.name})" if v.name[0] == "x" else f"m.copy({v.name})",
    ]  # fmt: skip
    if v.name[0] == "x":
        forms += [f"m.divmod({v.name} * 3.01, 0.73)[1]", f"m.modf({v.name} * 3.01)[0]", f"m.fmod({v.name}, 0.37)"]
    return d.one(forms), max(v.bound, 1) ** 3 * 8 + w.bound


@op(1.5)
def whole_numbers(d: Choices) -> Expression:
    v = d.value("i")
    w = d.partner(v, "i")
    forms = ["m.bitwise_and({a}, {b})", "m.bitwise_or({a}, {b})", "m.bitwise_xor({a}, {b})", "m.bitwise_not({a})",
             "m.left_shift({a}, 1)", "m.right_shift({a}, 1)", "m.lcm(m.abs({a}) % 7, 3)", "m.population_count({a})",
             "m.clz({a})", "m.shift_right_logical(m.astype({a}, 'i32'), 2)", "m.div(m.astype({a}, 'i32'), 3)",
             "m.rem(m.astype({a}, 'i32'), 4)", "m.divmod({a}, 3)[0]",
             "m.lt({a}, {b})", "m.ne({a}, {b})", "m.logical_or({a} > 1, {b} > 2)", "m.invert({a})",
             "m.max({a}, axis=None)", "m.prod({a} % 3, axis=None)", "m.astype({a}, 'i16')", "m.astype({a}, 'u32')",
             "m.tri(4, 8, 1) * m.sum({a})", "m.nanmax({a})", "m.argmax({a})", "m.clip({a}, 0, 3)",
             "m.where({a} > 1, {a}, {b})", "m.take({a}, {b} % 4, mode='clip')",
             "m.einsum('...,...->...', {a}, {b})"]  # fmt: skip
    return d.one(forms).format(a=v.name, b=w.name), 16.0


@op(1.5)
def by_position(d: Choices) -> Expression:
    """Arrays that are known by the positions of their elements."""
    n, k = d.one([4, 8]), d.one([-1, 0, 1])
    pair, row = "f32" + d.type((n, 4)), "f32" + d.type((n,))
    forms = [
        *(f"m.eye({n}, 4, {k}, type={pair!r})", f"m.tri({n}, 4, {k}, type={pair!r})"),
        f"m.linspace(0.0, 1.0, {n}, endpoint={d.flip()}, type={row!r})",
        *(f"m.geomspace(1.0, 4.0, {n}, type={row!r})", f"m.logspace(0.0, 1.0, {n}, type={row!r}) * 0.1"),
        f"m.broadcasted_iota('f32', ({n}, 4), {d.one([0, 1])}, type={pair!r})",
        f"m.iota('f32', {n}, type={row!r})",
    ]
    return d.one(forms), 8.0


SAMPLES = (
    "exponential", "gumbel", "laplace", "logistic", "rademacher", "truncated_normal",
)  # fmt: skip


@op(1)
def generated(d: Choices) -> Expression:
    shape = d.one([v.shape for v in d.pool if v.kind == "f"])
    text = "f32" + d.type(shape)
    name = d.one(SAMPLES)
    given = {"rademacher": f"{'i32' + d.type(shape)!r}", "truncated_normal": f"-1.0, 1.5, {text!r}"}
    if d.flip(0.3):
        v = d.summed(d.value("f", lambda x: x.ndim >= 1 and x.name[0] == "x"))
        return f"m.random.categorical(m.random.key(9), {v.name} * 2, axis={d.dim(v)})", 4.0
    return f"m.random.{name}(m.random.key(9), {given.get(name, repr(text))})", 8.0


@op(2)
def products_of_dims(d: Choices) -> Expression:
    """Products that say by numbers which dims meet."""
    v = d.value("f", lambda x: 1 <= x.ndim <= 3)
    w = d.summed(d.value("f", lambda x: 1 <= x.ndim <= 3), 0.7)
    pairs = [(i, j) for i, n in enumerate(v.shape) for j, k in enumerate(w.shape) if n == k]
    bound = v.bound * w.bound * 8
    if d.flip(0.3) and v.ndim == w.ndim <= 2:
        return f"m.kron({v.name}, {w.name})", bound
    (i, j) = d.one(pairs)
    batch = [(a, b) for a, b in pairs if a != i and b != j]
    both = d.one([None, *batch])
    numbers = f"((({i},), ({j},)), {'((), ())' if both is None else f'(({both[0]},), ({both[1]},))'})"
    forms = [f"m.dot_general({v.name}, {w.name}, {numbers})"] * 3
    forms += [f"m.tensordot({v.name}, {w.name}, axes=([{i}], [{j}]))"]
    if v.ndim == w.ndim == 3 and v.shape[0] == w.shape[0] and v.shape[2] == w.shape[1]:
        forms += [f"m.batch_matmul({v.name}, {w.name})"] * 2
    return d.one(forms), bound


@op(1)
def factored(d: Choices) -> Expression:
    v = d.summed(d.value("f", lambda x: x.ndim >= 2 and x.shape[-1] == x.shape[-2] <= 8))
    n = v.shape[-1]
    safe = f"(0.2 * {v.name} + {n + 1.5} * jnp.eye({n}) + jnp.diag(jnp.arange({n}, dtype=np.float32)))"
    both = f"({safe} + m.matrix_transpose({safe}))"
    forms = [
        *(f"m.linalg.qr({safe})[1]", f"m.linalg.svdvals({safe})", f"m.linalg.eigvalsh({both})"),
        *(f"m.linalg.eigh({both})[0]", f"m.linalg.expm(0.1 * {v.name})", f"m.linalg.pinv({safe})"),
        f"m.linalg.matrix_rank({safe})",
        f"m.linalg.lu({safe})[2]" if v.ndim == 2 else f"m.linalg.det({safe} * {0.4 / n})",
        f"m.linalg.cho_solve((m.linalg.cholesky({both}), True), {v.name})",
        f"m.linalg.tensorinv(m.reshape({safe}, (1, {n}, {n})), 2)" if v.ndim == 2 else f"m.linalg.inv({safe})",
        f"m.linalg.cond({safe})",
        f"m.linalg.block_diag({v.name}, {v.name})" if v.ndim == 2 else f"m.linalg.det({safe} * {0.4 / n})",
    ]
    return d.one(forms), 16.0


@op(1)
def more_spectra(d: Choices) -> Expression:
    v = d.value("f", lambda x: x.ndim >= 2 and all(n > 1 for n in x.shape))
    forms = [
        *(f"m.real(m.fft.ifft2({v.name}))", f"m.imag(m.fft.ifftn({v.name}, axes=(0,)))"),
        *(f"m.fft.irfft2(m.fft.rfft2({v.name}))", f"m.fft.irfftn(m.fft.rfftn({v.name}, axes=(-1,)), axes=(-1,))"),
        *(f"m.real(m.fft.ihfft({v.name}))", f"m.real(m.complex({v.name}, {v.name}) * (1 - 2j))"),
    ]
    return d.one(forms), v.bound * 8
