"""Rows against their primitives: values and derivatives of a lifted program on a mesh, beside those of one device."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import shtypes as sh
from shtypes.types import ShType
from tests import tolerance
from tests.compiling import compiled
from tests.denotation import denoted
from tests.lifting.row_cases.case import Case
from tests.lifting.row_layouts import MESH, layouts
from tests.random_programs import spread

#: What is computed of a case, by the order of its derivatives.
MODES: Final = {"value": 0, "jvp": 1, "vjp": 1, "jvp of vjp": 2, "vjp of jvp": 2}


class Found(NamedTuple):
    """What differs.

    Attributes:
        case: The case.
        mode: What was computed.
        types: The operands' types.
        what: How it differs.
    """

    case: Case
    mode: str
    types: str
    what: str

    def __str__(self) -> str:
        return f"{self.case.id}; {self.mode} of {self.types}: {self.what}"


# what is computed


def _is_live(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.inexact))


def _live(case: Case) -> tuple[int, ...]:
    floats = tuple(i for i, x in enumerate(case.operands) if _is_live(x))
    return floats if case.live is None else case.live


def _outcomes(f: Callable[..., Any], live: Sequence[int], mode: str, xs: Any, vs: Any, cts: Any) -> list[Any]:
    """Values or derivatives of a function, of typed or plain arrays.

    Args:
        f: The function.
        live: The operands that are differentiated.
        mode: One of `MODES`.
        xs: The operands.
        vs: Tangents of the live ones.
        cts: Cotangents of the results that have one.
    """
    if mode == "value":
        return list(jax.tree.leaves(f(*xs), is_leaf=_is_array))

    def of_live(*some: Any) -> list[Any]:
        full = list(xs)
        for i, x in zip(live, some, strict=True):
            full[i] = x
        return [y for y in jax.tree.leaves(f(*full), is_leaf=_is_array) if _is_live(y)]

    at = [xs[i] for i in live]

    def pulled(*some: Any) -> Any:
        return list(jax.vjp(of_live, *some)[1](cts))

    def pushed(*some: Any) -> Any:
        return list(jax.jvp(of_live, some, tuple(vs))[1])

    found = {
        "jvp": lambda: pushed(*at),
        "vjp": lambda: pulled(*at),
        "jvp of vjp": lambda: jax.jvp(pulled, tuple(at), tuple(vs))[1],
        "vjp of jvp": lambda: jax.vjp(pushed, *at)[1](cts),
    }[mode]()
    return list(jax.tree.leaves(found, is_leaf=_is_array))


def _is_array(x: Any) -> bool:
    return isinstance(x, sh.Array)


def _moderate(shape: tuple[int, ...], dtype: Any, seed: str) -> Any:
    """A direction: numbers of both signs that no sum makes large."""
    rng = np.random.default_rng(zlib.crc32(seed.encode()))
    x = rng.uniform(0.5, 1.5, shape) * rng.choice((-1.0, 1.0), shape)
    return (x + 1j * rng.uniform(-1, 1, shape) if np.dtype(dtype).kind == "c" else np.asarray(x)).astype(dtype)


class Reference(NamedTuple):
    """What one device computes of a case.

    Attributes:
        vs: The tangents.
        cts: The cotangents.
        values: The results of each mode that JAX has.
        errors: How far rounding may take each.
    """

    vs: list[Any]
    cts: list[Any]
    values: dict[str, Any]
    errors: dict[str, Any]


def references(cases: Sequence[Case], most: int) -> list[Reference]:
    """What one device computes of cases, compiled together."""
    directions, modes = [], []
    for case in cases:
        live = _live(case)
        outs = [y for y in jax.tree.leaves(jax.eval_shape(case.fn, *case.operands)) if _is_live(y)]
        vs = [_moderate(np.shape(case.operands[i]), case.operands[i].dtype, f"v{i}") for i in live]
        cts = [_moderate(y.shape, y.dtype, f"c{i}") for i, y in enumerate(outs)]
        directions.append((vs, cts))
        modes.append([m for m, n in MODES.items() if n <= min(most, case.orders) and _has(case, m, vs, cts)])

    def run(given: Any) -> Any:
        return [
            {m: _outcomes(case.fn, _live(case), m, *operands) for m in own}
            for case, own, operands in zip(cases, modes, given, strict=True)
        ]

    given = [(list(case.operands), *d) for case, d in zip(cases, directions, strict=True)]
    values, errors = tolerance.computed(run, given)
    return [Reference(*d, v, e) for d, v, e in zip(directions, values, errors, strict=True)]


def _has(case: Case, mode: str, vs: Any, cts: Any) -> bool:
    """Whether JAX has such a derivative of a case."""
    if mode == "value":
        return True
    if not vs or not cts:
        return False
    try:
        jax.eval_shape(functools.partial(_outcomes, case.fn, _live(case), mode), list(case.operands), vs, cts)
    except (NotImplementedError, TypeError, ValueError, AssertionError, KeyError, IndexError):
        return False
    return True


def _array(x: Any, t: Any) -> Any:
    """A typed value; its pending sums are spread."""
    return spread(np.asarray(x), str(t)) if t.axes(sh.State.UNREDUCED) else sh.array(x, t)


# comparing


def problems(cases: Sequence[Case], *, most: int = 2, count: int = 2, seed: int = 0) -> list[Found]:
    """What differs between the rows of cases and their primitives.

    Args:
        cases: The cases; all of 64 bits, or none.
        most: Up to which order they are differentiated.
        count: How many layouts of each are tried beside the replicated one.
        seed: Chooses them.
    """
    found: list[Found] = []
    with jax.enable_x64(any(case.x64 for case in cases)):
        wanted = references(cases, most)
        with sh.use_mesh(sh.make_mesh(MESH)):
            runs = [
                (case, reference, types)
                for case, reference in zip(cases, wanted, strict=True)
                for types in layouts(case, count, seed)
            ]
            _run(runs, found)
    return found


def _run(runs: Sequence[Any], found: list[Found]) -> None:
    operands, failed = {}, set()
    for at, (case, reference, types) in enumerate(runs):
        try:
            operands[at] = _operands(case, reference, types)
        except Exception as error:
            failed.add(at)
            found.append(Found(case, "value", _shown(types), _said(error)))

    def run(given: Any) -> Any:
        outs: dict[Any, Any] = {}
        for at, own in given.items():
            case, reference, types = runs[at]
            for mode in reference.values:
                try:
                    outs[at, mode] = _outcomes(sh.lift(case.fn), _live(case), mode, *own)
                except Exception as error:
                    found.append(Found(case, mode, _shown(types), _said(error)))
        return outs

    before = len(found)
    try:
        lowered = sh.jit(run).lower(operands)
        results = jax.block_until_ready(compiled(lowered, simplified=len(operands) > 1)(operands))
    except Exception as error:
        del found[before:]
        if len(operands) == 1:
            case, _, types = runs[next(iter(operands))]
            found.append(Found(case, "compiled", _shown(types), _said(error)))
            return
        half = len(runs) // 2
        _run([r for i, r in enumerate(runs[:half]) if i not in failed], found)
        _run([r for i, r in enumerate(runs[half:], half) if i not in failed], found)
        return
    for (at, mode), ys in results.items():
        case, reference, types = runs[at]
        what = _difference(case, reference, types, mode, ys)
        if what:
            found.append(Found(case, mode, _shown(types), what))


def _operands(case: Case, reference: Reference, types: Sequence[Any]) -> Any:
    xs = [_array(x, t) for x, t in zip(case.operands, types, strict=True)]
    vs = [_array(v, types[i]) for i, v in zip(_live(case), reference.vs, strict=True)]
    live = [t for t in _result_types(case, types) if _is_live(t)]
    cts = [_array(c, t.cotangent()) if isinstance(t, ShType) else c for c, t in zip(reference.cts, live, strict=True)]
    return xs, vs, cts


def _result_types(case: Case, types: Sequence[Any]) -> list[Any]:
    """The types of a case's results; of those that depend on no typed value, the shape and dtype."""
    outs: list[Any] = []

    def run(*xs: Any) -> None:
        made = jax.tree.leaves(sh.lift(case.fn)(*xs), is_leaf=_is_array)
        outs.extend(y.type if _is_array(y) else jax.ShapeDtypeStruct(y.shape, y.dtype) for y in made)

    jax.eval_shape(run, *map(sh.abstract_array, types))
    return outs


def _shown(types: Sequence[Any]) -> str:
    return ", ".join(map(str, types))


def _said(error: BaseException) -> str:
    first = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {first[:200]}"


def _difference(case: Case, reference: Reference, types: Sequence[Any], mode: str, ys: Any) -> str:
    wanted, errors = reference.values[mode], reference.errors[mode]
    if len(ys) != len(wanted):
        return f"{len(ys)} results for {len(wanted)}"
    pending = any(t.axes(sh.State.UNREDUCED) for t in types)
    if mode != "value":
        pending = pending or any(t.axes(sh.State.REDUCED) for t in types)  # the cotangents are
        if pending and case.rounds:
            return ""
    for y, right, error in zip(ys, wanted, errors, strict=True):
        summed = pending or (_is_array(y) and bool(y.type.axes(sh.State.UNREDUCED)))
        try:
            mine = denoted(y) if _is_array(y) else np.asarray(y)
        except AssertionError as wrong:
            return f"replicas differ: {str(wrong)[:80]}"
        if mine.dtype != right.dtype or mine.shape != right.shape:
            return f"{mine.dtype}{list(mine.shape)} for {right.dtype}{list(right.shape)}"
        close = case.close if mode == "value" else "sums"
        if summed and right.dtype.kind not in "iub":
            close, kept = "sums", _has_terms(right)
            mine, right = np.where(kept, mine, 0), np.where(kept, right, 0)
        what = _apart(mine, right, close, error + _error_of_terms(case, types))
        if what:
            return what
    return ""


def _error_of_terms(case: Case, types: Sequence[Any]) -> float:
    """How far the terms of pending operands are from them, relative to these: sums of terms up to 8 are rounded."""
    return sum(
        8 * tolerance.eps(x.dtype) / max(float(np.abs(x).max(initial=0)), 1e-6)
        for x, t in zip(map(np.asarray, case.operands), types, strict=True)
        if t.axes(sh.State.UNREDUCED) and x.dtype.kind not in "iub"
    )


def _has_terms(x: Any) -> Any:
    """Where a value is the sum of terms: what is infinite, or nearly so, has infinite terms of both signs."""
    about: Any = jnp
    with np.errstate(invalid="ignore"):
        return np.abs(_wide(x)) < float(about.finfo(x.dtype).max) / 64


def _wide(x: Any) -> Any:
    return np.asarray(x).astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def _flushed(x: Any, dtype: Any) -> Any:
    """Subnormal numbers are zeros, as XLA makes of some of them on some threads."""
    about: Any = jnp  # its finfo has no annotations
    parts = np.ascontiguousarray(x).view(np.float64)
    with np.errstate(invalid="ignore"):
        kept = np.where(np.abs(parts) < float(about.finfo(dtype).tiny), np.copysign(0.0, parts), parts)
    return kept.view(x.dtype).reshape(x.shape)


def _apart(mine: Any, right: Any, close: str, error: float) -> str:
    """How two arrays differ; empty if only as much as they may."""
    if right.dtype.kind in "iub" or right.dtype == jax.dtypes.float0:
        return "" if np.array_equal(mine, right) else f"{mine.ravel()[:8]} for {right.ravel()[:8]}"
    a, b = _flushed(_wide(mine), right.dtype), _flushed(_wide(right), right.dtype)
    for part in ("real", "imag") if right.dtype.kind == "c" else ("real",):
        p, q = getattr(a, part), getattr(b, part)
        finite = np.isfinite(p) & np.isfinite(q)
        if not (finite | (p == q) | (np.isnan(p) & np.isnan(q))).all():
            return f"{part} of {mine.ravel()[:8]} for {right.ravel()[:8]}"
        if close != "sums" and not ((np.signbit(p) == np.signbit(q)) | (q != 0) | np.isnan(q)).all():
            return f"signs of zeros: {mine.ravel()[:8]} for {right.ravel()[:8]}"
    if close == "bits":
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        return "" if same.all() else f"{mine[~same].ravel()[:6]} for {right[~same].ravel()[:6]}"
    eps = tolerance.eps(right.dtype)
    if close == "ulps":
        about: Any = jnp
        least = float(about.finfo(right.dtype).smallest_subnormal) + float(about.finfo(right.dtype).tiny) * (eps < 1e-3)
        with np.errstate(invalid="ignore"):
            off = np.abs(np.where(np.isfinite(a), a, 0) - np.where(np.isfinite(b), b, 0))
            allowed = max(error, tolerance.FUNCTION * eps) * np.abs(np.where(np.isfinite(b), b, 0)) + least
        return (
            ""
            if (off <= allowed).all()
            else f"off by {np.max(off / allowed):.3g}: {mine[off > allowed][:4]} for {right[off > allowed][:4]}"
        )
    off = tolerance.off_by(mine, right)
    most = max(error, tolerance.DEVICES * eps)
    return "" if off <= most else f"off by {off:.2g} ({most:.2g}): {mine.ravel()[:6]} for {right.ravel()[:6]}"
