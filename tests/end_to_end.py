"""Typed programs against the same programs on one device: values, gradients, and the gradients' types.

A case is one expression, ``lambda m, *args: ...``, run twice: with ``m`` the typed functions on typed values, and with
``m`` JAX's own on plain arrays. Many cases share one compilation.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import jax.scipy.special
import numpy as np

import shtypes as sh
from tests import tolerance
from tests.denotation import denoted

T = TypeVar("T")

#: Whether `make test-all` runs, which generates more of everything.
WIDE = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"


def some(few: T, many: T) -> T:
    """How many to generate, or which: ``few``, and ``many`` in the wide half of the tests."""
    return many if WIDE else few


MESHES = ({"x": 2}, {"x": 4}, {"x": 2, "y": 2}, {"x": 2, "y": 4})


class Reference:
    """JAX's own functions under one roof; a reshard does nothing to a global value."""

    def __getattr__(self, name: str) -> Any:
        for module in (jnp, jax.nn, jax.lax, jax.scipy.special):
            if hasattr(module, name):
                return getattr(module, name)
        raise AttributeError(name)

    @staticmethod
    def reshard(_x: Any, /, *args: Any, **kwargs: Any) -> Any:
        return _x

    all_reduce = reduce_scatter = all_gather = all_to_all = shard = reshard

    @staticmethod
    def astype(x: Any, dtype: Any, **kwargs: Any) -> Any:
        from shtypes.types import dtypes

        return x.astype(dtypes.to_numpy(dtypes.from_any(dtype)))


REFERENCE = Reference()


@dataclass(frozen=True)
class Case:
    """One expression on given operands.

    Attributes:
        fn: ``(m, *operands) -> result``.
        operands: Host arrays.
        types: Their types, or None for an operand that stays a plain array.
        out: The type that the result must have; None for any.
        growth: By how much more than rounding the problem makes errors larger: its condition number.
        grad: Whether gradients are compared.
        id: For messages.
    """

    fn: Callable[..., Any]
    operands: tuple[Any, ...]
    types: tuple[Any, ...]
    out: str | None = None
    growth: float = 1.0
    grad: bool = True
    id: str = ""
    differentiated: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        places = [
            i
            for i, (x, t) in enumerate(zip(self.operands, self.types, strict=True))
            if t is not None and jnp.issubdtype(np.asarray(x).dtype, jnp.inexact)
        ]
        object.__setattr__(self, "differentiated", tuple(places) if self.grad else ())

    @property
    def label(self) -> str:
        return f"{self.id}({', '.join(map(str, self.types))})"


def invariant(x: Any) -> Any:
    """The value as a plain array: reshard to invariant on every axis."""
    t = sh.typeof(x)
    dims = [sh.Dim(d.size) for d in t.dims]
    whole = sh.ShType(t.mesh, t.dtype_name, dims, dict.fromkeys(t.mesh.axis_names, sh.State.INVARIANT))
    return sh.reshard(x, whole).to_jax()


def host(x: Any) -> np.ndarray[Any, Any]:
    """The denoted value on the host."""
    if not isinstance(x, sh.Array):
        return np.asarray(x)
    return denoted(x) if isinstance(x.data.dtype, np.dtype) else np.asarray(invariant(x))


def weights(shape: Sequence[int]) -> np.ndarray[Any, Any]:
    """Fixed random weights."""
    return np.random.default_rng(int(np.prod(shape, dtype=int)) + 7).uniform(0.5, 1.5, shape).astype(np.float32)


def _loss(m: Any, y: Any) -> Any:
    """A real scalar that every element of ``y`` moves differently."""
    if not jnp.issubdtype(y.dtype, jnp.inexact):
        return None
    if jnp.issubdtype(y.dtype, jnp.complexfloating):
        y = m.real(y) + 2 * m.imag(y)
    if y.dtype.itemsize < 4:
        y = m.astype(y, "f32")
    total = m.sum(y * weights(y.shape))
    if m is not sh:
        return total
    t = sh.typeof(total)  # unreduced on each axis: that is free
    return sh.reshard(total, t.replace(states=dict.fromkeys(t.mesh.axis_names, sh.State.UNREDUCED)))


def typed_operands(case: Case) -> list[Any]:
    """The operands as typed values."""
    return [x if t is None else sh.array(x, t) for x, t in zip(case.operands, case.types, strict=True)]


def _outcome(m: Any, case: Case, operands: Sequence[Any]) -> tuple[Any, list[Any]]:
    """The value and the gradients of one case, under tracing or not."""
    chosen = case.differentiated

    def loss(*parts: Any) -> Any:
        merged = list(operands)
        for i, part in zip(chosen, parts, strict=True):
            merged[i] = part
        y = case.fn(m, *merged)
        total = _loss(m, y) if chosen else None
        return (m.zeros(()) if total is None else total), y

    if not chosen:
        return loss()[1], []
    grad = sh.grad if m is sh else jax.grad
    grads, y = grad(loss, argnums=tuple(range(len(chosen))), has_aux=True)(*[operands[i] for i in chosen])
    return y, list(grads)


def typed_outcome(case: Case, operands: Sequence[Any]) -> tuple[Any, list[Any]]:
    """The typed value and gradients."""
    return _outcome(sh, case, operands)


#: Outcomes on one device by expression and operands, which are kept alive so that an id names one.
_known: dict[Any, tuple[Any, Any]] = {}


def _references(cases: Sequence[Case]) -> list[Any]:
    """Value and gradients of each case on one device, and how far rounding takes each; new ones compiled together."""
    keys = [(c.fn, tuple(map(id, c.operands)), c.differentiated) for c in cases]
    new = {key: case for key, case in zip(keys, cases, strict=True) if key not in _known}

    def run(all_operands: list[list[Any]]) -> list[Any]:
        return [_outcome(REFERENCE, c, ops) for c, ops in zip(new.values(), all_operands, strict=True)]

    if new:
        given = [[jnp.asarray(x) for x in c.operands] for c in new.values()]
        found, errors = tolerance.computed(run, given)
        for (key, case), out, off in zip(new.items(), found, errors, strict=True):
            _known[key] = case.operands, (out, off)
    return [_known[key][1] for key in keys]


def close(found: Any, wanted: Any, what: str, roundings: float | None = None) -> None:
    """As `tests.tolerance.assert_close`, for results that have the reference's dtype too."""
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert found.dtype == wanted.dtype, f"{what}: dtype {found.dtype}, not {wanted.dtype}"
    tolerance.assert_close(found, wanted, roundings, what)


def check(mesh: Any, cases: Iterable[Case], *, eager: bool = False) -> None:
    """Compares all cases with one device: under one `jax.jit`, or each by itself.

    Values, gradients, the types of results that cases name, and that gradients have the cotangent types.
    """
    cases = list(cases)
    wanted = _references(cases)
    with sh.use_mesh(mesh):
        operands = [typed_operands(c) for c in cases]

        def run(all_operands: list[list[Any]]) -> Any:
            return [typed_outcome(c, ops) for c, ops in zip(cases, all_operands, strict=True)]

        found = jax.block_until_ready(run(operands) if eager else jax.jit(run)(operands))
        plain = jax.tree.map(host, found, is_leaf=lambda x: isinstance(x, sh.Array))
        for case, given, typed, mine, theirs in zip(cases, operands, found, plain, wanted, strict=True):
            _compare(case, given, typed, mine, theirs)


def _compare(case: Case, operands: Sequence[Any], typed: Any, mine: Any, theirs: Any) -> None:
    if case.out is not None:
        value = typed[0]
        wanted = sh.ShType.parse(case.out, value.type.mesh, like=value.type)
        assert value.type == wanted, f"{case.label}: {value.type}, not {wanted}"
    (right, right_grads), (error, errors) = theirs
    _near(mine[0], right, case.growth * error, f"{case.label}: value")
    for i, grad, a, b, most in zip(case.differentiated, typed[1], mine[1], right_grads, errors, strict=True):
        assert grad.type == operands[i].type.cotangent(), f"{case.label}: gradient {i} is {grad.type}"
        _near(a, b, case.growth * most, f"{case.label}: gradient {i}")


def _near(found: Any, wanted: Any, most: float, what: str) -> None:
    assert found.dtype == wanted.dtype, f"{what}: dtype {found.dtype}, not {wanted.dtype}"
    tolerance.assert_within(found, wanted, most, what)


# types


def source(fn: Any) -> str:
    """The body of a lambda: an id for a test."""
    if fn.__name__ != "<lambda>":
        return str(fn.__name__)
    return inspect.getsource(fn).strip().strip(",").split(": ", 1)[1]


def assignments(mesh: Any, shape: Sequence[int], states: str = "SRIU") -> Iterator[str]:
    """Every type text for an array of this shape: each axis sharded on a dim or in one of the other states."""

    def extend(axes: Sequence[str], dims: tuple[tuple[str, ...], ...], rest: tuple[str, ...]) -> Iterator[str]:
        if not axes:
            parts = [f"{n}@({','.join(on)})" if on else str(n) for n, on in zip(shape, dims, strict=True)]
            yield f"[{', '.join(parts)}]{{{', '.join(rest)}}}" if rest else f"[{', '.join(parts)}]"
            return
        axis, others = axes[0], axes[1:]
        for letter in states:
            if letter != "S":
                yield from extend(others, dims, (*rest, f"{letter}:{axis}"))
                continue
            for d, n in enumerate(shape):
                on = (*dims[d], axis)
                if n % int(np.prod([mesh.shape[a] for a in on])) == 0:
                    yield from extend(others, (*dims[:d], on, *dims[d + 1 :]), rest)

    yield from extend(list(mesh.axis_names), ((),) * len(shape), ())


def types_or_refuses(case: Case, *, advised: bool = True) -> bool:
    """Whether the case types. It may refuse with a `ShardingTypeError` in the message shape, and in no other way.

    Unless it is ``advised`` the fixes of the error are not read, which takes most of the time.
    """
    operands = [
        x if t is None else sh.abstract_array(t, shape=np.shape(x), dtype=str(np.asarray(x).dtype))
        for x, t in zip(case.operands, case.types, strict=True)
    ]
    typed = [i for i, t in enumerate(case.types) if t is not None]

    refused: list[sh.ShardingTypeError] = []

    def run(*parts: Any) -> Any:
        merged = list(operands)
        for i, part in zip(typed, parts, strict=True):
            merged[i] = part
        try:
            return case.fn(sh, *merged)
        except sh.ShardingTypeError as error:  # before JAX rewrites its traceback, which is slow
            refused.append(error)

    jax.eval_shape(run, *[operands[i] for i in typed])
    if not refused:
        return True
    (refusal,) = refused
    text = str(refusal) if advised else f"{refusal.what} {refusal.why}"
    assert "please report" not in text, f"{case.label}: {refusal}"
    assert refusal.where, f"{case.label} has no place: {refusal}"
    return False


def sampled(
    mesh: Any, fn: Callable[..., Any], *operands: Any, id: str, count: int = 40, seed: int = 0, **options: Any
) -> list[Case]:
    """Cases of one expression over random assignments of types; the ones that refuse are checked to do so properly."""
    rng = np.random.default_rng(seed)
    states = ["SRI" if np.asarray(x).dtype == bool else "SRIU" for x in operands]  # truth values are not summed
    choices = [list(assignments(mesh, np.shape(x), own)) for x, own in zip(operands, states, strict=True)]
    total = int(np.prod([len(c) for c in choices]))
    picks = rng.permutation(total)[:count] if total <= 100_000 else rng.integers(0, total, count)
    cases = []
    with sh.use_mesh(mesh):
        for i, pick in enumerate(picks):
            places = np.unravel_index(int(pick), [len(c) for c in choices])
            types = tuple(c[int(p)] for c, p in zip(choices, places, strict=True))
            case = Case(fn, operands, types, id=id, **options)
            if types_or_refuses(case, advised=(i + seed) % 8 == 0):
                cases.append(case)
    return cases
