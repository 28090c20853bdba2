"""Functions of whole matrices and lines: `linalg` and `fft`."""

from __future__ import annotations

from tests.random_choices import Choices, Expression, op


@op(2)
def spectra(d: Choices) -> Expression:
    v = d.value("f", lambda x: x.ndim >= 1 and all(n > 1 for n in x.shape))
    k = d.dim(v)
    forms = [
        *(f"m.real(m.fft.fft({v.name}, axis={k}))", f"m.imag(m.fft.fft({v.name}))"),
        f"m.real(m.fft.ifft(m.fft.fft({v.name}, axis={k}), axis={k}))",
        f"m.fft.irfft(m.fft.rfft({v.name}, axis={k}), axis={k})",
        *(f"m.abs(m.fft.rfft({v.name}, axis={k}) + (9 + 2j))", f"m.fft.fftshift({v.name}, axes={k})"),
        *(f"m.fft.ifftshift({v.name}, axes={k})", f"m.real(m.fft.hfft({v.name}, axis={k}))"),
        *(f"m.real(({v.name} + 1j) * (0.5 - 2j))", f"m.imag(({v.name} - 2j) * {v.name})"),
        f"m.imag(m.conj(m.fft.fft({v.name}, axis={k})))",
    ]
    if v.ndim >= 2:
        forms += [f"m.real(m.fft.fft2({v.name}))", f"m.imag(m.fft.fftn({v.name}))"]
    return d.one(forms), v.bound * 8


@op(2)
def matrices(d: Choices) -> Expression:
    v = d.value("f", lambda x: x.ndim >= 2 and x.shape[-1] == x.shape[-2] <= 8)
    w = d.value("f", lambda x: x.shape == v.shape)
    n = v.shape[-1]
    safe = f"(0.2 * {v.name} + {n + 1.5} * jnp.eye({n}))"
    forms = [
        *(f"m.linalg.solve({safe}, {w.name})", f"m.linalg.inv({safe})", f"m.linalg.det({safe} * {0.4 / n})"),
        *(f"m.linalg.slogdet({safe})[1]", f"m.linalg.solve_triangular({safe}, {w.name}, lower={d.flip()})"),
        *(f"m.linalg.matrix_power({v.name}, 2)", f"m.linalg.cholesky({safe} + m.matrix_transpose({safe}))"),
        *(f"m.linalg.norm({safe})", f"m.linalg.matrix_norm({safe})", f"m.linalg.multi_dot([{v.name}, {w.name}])"),
    ]
    return d.one(forms), (v.bound * w.bound + 1) * 8


@op(2)
def products(d: Choices) -> Expression:
    v = d.value("f", lambda x: x.ndim == 1)
    w = d.value("f", lambda x: 1 <= x.ndim <= 2 and x.shape[-1] == v.shape[0])
    forms = [f"m.outer({v.name}, {v.name})", f"m.inner({w.name}, {v.name})", f"m.vdot({v.name}, {v.name})"]
    forms += [f"m.vecdot({w.name}, {v.name})"]
    if w.ndim == 2:
        forms += [f"m.matvec({w.name}, {v.name})", f"m.vecmat({v.name}, m.matrix_transpose({w.name}))"]
        to = d.type((w.shape[0],))
        forms += [f'm.einsum("ij,j->i", {w.name}, {v.name}, out="{to}")'] * 2
    return d.one(forms), v.bound * w.bound * 8
