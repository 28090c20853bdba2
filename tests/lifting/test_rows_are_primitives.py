"""What a row makes of a primitive is the primitive: its values, its derivatives, and what runs on each device."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.interpreters import ad
from jax.interpreters.partial_eval import dce_jaxpr

import shtypes as sh
from shtypes._compat import _accumulating_rules
from shtypes._compat.jaxprs import inner_jaxprs, jaxpr_of
from shtypes.core.callbacks import HostFunction
from shtypes.core.derived_fns import Jvp, Transpose, Vmap
from shtypes.core.elementwise_fns import Full, Identity
from shtypes.core.local import Local
from shtypes.core.operation import applied_by
from shtypes.core.shard_fn import Linear
from shtypes.evaluation.bound_primitive import LINEAR, Bound
from shtypes.evaluation.table import BODIES, EXCEPTIONS, ROWS
from shtypes.lifting.lift import lift
from shtypes.types import dtypes
from tests.denotation import denoted
from tests.lifting.row_cases import bits, products
from tests.lifting.row_cases import elementwise as elementwise_cases
from tests.lifting.row_cases import lookups as lookup_cases
from tests.lifting.row_cases import reductions as reduction_cases
from tests.lifting.row_cases import shapes as shape_cases
from tests.lifting.row_cases.case import Case
from tests.lifting.row_checks import problems
from tests.lifting.row_layouts import MESH, layouts
from tests.lifting.test_primitives import defined

pytestmark = pytest.mark.one_in(9)

#: Rows that no case reaches, and where they are tested.
ELSEWHERE: Final = {
    "debug_callback": "tests/lifting/test_raising_callbacks.py: it gives nothing back",
    "debug_print": "as above",
    "io_callback": "it is refused",
    "full_like": "ours: tests/lifting/test_lift.py",
    "select_and_scatter": "what XLA makes of a window's gradient",
}
#: So many parts have the cases of a wide run.
PARTS: Final = 64


@functools.cache
def cases() -> tuple[Case, ...]:
    """All cases."""
    files = (elementwise_cases, shape_cases, reduction_cases, products, lookup_cases, bits)
    return tuple(case for file in files for case in file.cases())


def _of_one_width(some: list[Case]) -> list[list[Case]]:
    return [part for wide in (False, True) if (part := [case for case in some if case.x64 == wide])]


def test_every_row_has_cases() -> None:
    rowed = set(ROWS) - set(BODIES)
    covered = {case.primitive for case in cases()}
    left = sorted((rowed & defined()) - covered - set(ELSEWHERE))
    assert not left, f"no case has {left}: add cases to the file of their family in tests/lifting/row_cases/"
    assert sorted(covered - rowed - set(BODIES)) == []
    assert sorted(covered & set(ELSEWHERE)) == []
    assert len({case.id for case in cases()}) == len(cases()) > 2000


def test_every_case_has_its_primitive() -> None:
    """Of each tenth: the others are the same functions on other operands."""
    for case in cases()[::10]:
        with jax.enable_x64(case.x64):
            found = set(_names(jax.make_jaxpr(case.fn)(*case.operands)))
        assert case.primitive in found, case.id


def _names(jaxpr: Any) -> Iterator[str]:
    for eqn in jaxpr_of(jaxpr).eqns:
        yield eqn.primitive.name
        for inner, _ in inner_jaxprs(eqn):
            yield from _names(inner)


@pytest.mark.parametrize("part", [0, *(pytest.param(i, marks=pytest.mark.nightly) for i in range(1, 8))])
def test_rows_have_the_values_and_derivatives_of_their_primitives(part: int) -> None:
    """A few of each file, with their first derivatives."""
    some = [case for i, case in enumerate(cases()) if i % 352 == 44 * part]
    assert [str(p) for own in _of_one_width(some) for p in problems(own, most=1, count=1, seed=part)] == []


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(PARTS))
def test_every_row_has_the_values_and_derivatives_of_its_primitive(part: int) -> None:
    some = list(cases()[part::PARTS])
    assert [str(p) for own in _of_one_width(some) for p in problems(own, count=2, seed=part)] == []


# in what a primitive is linear

#: Primitives that JAX transposes, and that take no pending sums.
TRANSPOSED: Final = {
    **dict.fromkeys(("debug_callback", "debug_print", "io_callback"), "the host sees the values"),
    "polynomial": "JAX transposes it in its coefficients, of which a pending sum counts once",
    "reduce_precision": "JAX takes rounding for linear",
    "scatter": "of positions that are equal, any update may win",
    "select_and_gather_add": "JAX wants its tangents to be sharded as the operand is",
    "stop_gradient": "its transpose is one of Lineax, where a test has loaded that",
    "tie": "its result is its operand",
}


def test_what_jax_transposes_is_linear_or_has_a_reason() -> None:
    transposed = {p.name for p in (*ad.primitive_transposes, *_accumulating_rules)} & set(ROWS) - set(BODIES)
    left = sorted(transposed - set(LINEAR) - set(TRANSPOSED))
    assert not left, f"{left} are refused pending sums: say in `LINEAR` of bound_primitive.py in what each is linear"
    assert not set(TRANSPOSED) & set(LINEAR)


def _bound_alone(case: Case) -> Any:
    """The equation of a case that is one primitive of its operands, all inexact where it is linear; else None."""
    traced = jaxpr_of(jax.make_jaxpr(case.fn)(*case.operands))
    jaxpr: Any = dce_jaxpr(traced, [True] * len(traced.outvars), instantiate=True)[0]
    while len(jaxpr.eqns) == 1 and jaxpr.eqns[0].invars == jaxpr.invars:
        (eqn,) = jaxpr.eqns
        if eqn.primitive.name != case.primitive:
            jaxpr = jaxpr_of(eqn.params["jaxpr"])
            continue
        nonlinear = range(len(eqn.invars))[LINEAR[case.primitive].nonlinear]
        variables = [*(v for i, v in enumerate(eqn.invars) if i not in nonlinear), *eqn.outvars]
        return eqn if all(v.aval.dtype in (np.float16, np.float32, np.complex64) for v in variables) else None
    return None


@pytest.mark.one_in(1)
@pytest.mark.parametrize("name", LINEAR)
def test_a_primitive_is_linear_in_what_the_table_says(name: str) -> None:
    """By sums of whole numbers, which floats have exactly, of the first case that is the primitive alone."""
    found = ((case, _bound_alone(case)) for case in cases() if case.primitive == name and not case.x64)
    case, eqn = next(each for each in found if each[1] is not None)
    kind, nonlinear = LINEAR[name].within((), len(eqn.invars))
    rng, linear = np.random.default_rng(0), [i for i in range(len(eqn.invars)) if i not in nonlinear]

    def whole(v: Any) -> Any:
        return rng.integers(-8, 8, v.aval.shape).astype(v.aval.dtype)

    def applied(places: Sequence[int], values: Sequence[Any]) -> list[Any]:
        operands = list(others)
        for i, x in zip(places, values, strict=True):
            operands[i] = x
        results = jax.jit(functools.partial(eqn.primitive.bind, **eqn.params))(*operands)
        return [np.asarray(y) for y in jax.tree.leaves(results)]

    def other(i: int, x: Any) -> Any:  # a denominator is no zero
        return 2.0 ** rng.integers(0, 3, x.shape).astype(x.dtype) if x.dtype.kind == "f" and i in nonlinear else x

    others = [
        whole(v) if i in linear else other(i, x) for i, (v, x) in enumerate(zip(eqn.invars, case.operands, strict=True))
    ]
    for places in [[i] for i in linear] if kind is Linear.MULTILINEAR else [linear]:
        xs, ys = ([whole(eqn.invars[i]) for i in places] for _ in range(2))
        both = applied(places, [x + y for x, y in zip(xs, ys, strict=True)])
        for total, *parts in zip(both, applied(places, xs), applied(places, ys), strict=True):
            largest = max(float(np.abs(part).max(initial=0)) for part in parts)
            np.testing.assert_allclose(total, sum(parts), rtol=0, atol=16 * float(np.finfo(np.float32).eps) * largest)
    for pending in (i for i in nonlinear if case.operands[i].dtype.kind == "f"):
        texts = [f"{dtypes.from_numpy(x.dtype)}[{','.join(map(str, x.shape))}]" for x in case.operands]
        texts[pending] += "{U:x}"
        with sh.use_mesh(sh.abstract_mesh({"x": 2})), pytest.raises(sh.ShardingTypeError, match="is nonlinear in"):
            jax.make_jaxpr(lift(case.fn))(*map(sh.abstract_array, texts))


# what runs on each device


def _local_functions(jaxpr: Any) -> Iterator[Any]:
    for eqn in jaxpr_of(jaxpr).eqns:
        applied = applied_by(eqn)
        if isinstance(applied, Local):
            fn: Any = applied.fn
            while isinstance(fn, (Jvp, Transpose, Vmap, HostFunction)):
                fn = fn.fn
            yield fn
        for inner, _ in inner_jaxprs(eqn):
            yield from _local_functions(inner)


@pytest.mark.parametrize("part", [0, *(pytest.param(i, marks=pytest.mark.nightly) for i in range(1, 8))])
def test_each_device_runs_the_primitive(part: int) -> None:
    """On replicated operands without exception but that of the dot; on sharded ones where the table has none."""
    for case in cases()[part * 5 :: 40]:
        # x64 mode is a part of what types
        with sh.use_mesh(sh.make_mesh(MESH)), jax.enable_x64(case.x64):
            for i, types in enumerate(layouts(case, 1, part)):
                excepted = case.primitive in EXCEPTIONS and (i > 1 or case.primitive == "dot_general")
                for fn in _local_functions(jax.make_jaxpr(lift(case.fn))(*map(sh.abstract_array, types))):
                    assert isinstance(fn, (Bound, Identity, Full)) or excepted, f"{case.id}: {fn!r} of {types}"


# sums that a program accumulates in wider floats than it gives


def _mean(x: Any) -> Any:
    return jnp.mean(x)


def _mean_of_rows(x: Any) -> Any:
    return jnp.mean(x, 0, keepdims=True)


def _sum(x: Any) -> Any:
    return jnp.sum(x)


def _own_mean(x: Any) -> Any:
    return (jnp.sum(x.astype(jnp.float32)) * np.float32(1 / x.size)).astype(x.dtype)


@pytest.mark.parametrize("f", [_mean, _mean_of_rows, _own_mean])
@pytest.mark.parametrize("lies", ["[131072@x, 2]", "[131072@(x,y), 2]", "[131072, 2]{U:x}", "[131072@y, 2]{U:x}"])
def test_a_mean_of_more_elements_than_f16_has_numbers_is_added_up_in_f32(f: Any, lies: str) -> None:
    x = (np.random.default_rng(0).normal(size=(131072, 2)) + 1).astype(np.float16)
    with sh.use_mesh(sh.make_mesh(MESH)):
        y = sh.lift(f)(sh.array(x, f"f16{lies}"))
        assert y.type.dtype == np.float16
        assert y.type.axes(sh.State.UNREDUCED) == tuple(
            a for a in MESH if f"@{a}" in lies or f"({a}" in lies or f",{a})" in lies or f"U:{a}" in lies
        )
        terms = 8  # each is rounded once, and so is each partial sum of them
        np.testing.assert_allclose(
            np.asarray(denoted(y), float),
            np.asarray(f(jnp.asarray(x)), float),
            rtol=terms * float(np.finfo(np.float16).eps),
        )


def test_a_sum_of_numbers_that_f16_does_not_reach_is_finite_where_its_terms_are() -> None:
    """The program adds in f32, so that no partial sum within a device overflows."""
    x = np.asarray([60000, 60000, -60000, -60000, -1, 0, 0, 2] * 2, np.float16)
    with sh.use_mesh(sh.make_mesh(MESH)):
        y = sh.lift(_sum)(sh.array(x, "f16[16@x]"))
        assert str(y.type) == "f16[]{U:x}"
        assert denoted(y) == np.asarray(_sum(jnp.asarray(x))) == 2


def test_a_pending_sum_that_was_wide_from_the_start_is_not_narrowed() -> None:
    with sh.use_mesh(sh.make_mesh(MESH)):
        x = sh.ones("f32[8@x, 4]")
        with pytest.raises(sh.ShardingTypeError, match="would round each term"):
            sh.lift(lambda x: jnp.sum(x, 0).astype(jnp.bfloat16))(x)
        with pytest.raises(sh.ShardingTypeError, match="would round each term"):  # to another dtype than before
            sh.lift(lambda x: jnp.sum(x.astype(jnp.float32), 0).astype(jnp.float16))(x.astype("bf16"))


def test_the_gradient_of_a_narrow_mean_is_that_of_one_device() -> None:
    x = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float16)
    with sh.use_mesh(sh.make_mesh(MESH)):
        found = sh.grad(lambda x: sh.all_reduce(sh.lift(_mean)(x)))(sh.array(x, "f16[64@x, 4]"))
        np.testing.assert_array_equal(denoted(found), jax.jit(jax.grad(_mean))(jnp.asarray(x)))


# 64 bits in a scope of the program


def _wide(x: Any) -> Any:
    with jax.enable_x64(True):
        y = jax.lax.convert_element_type(x, np.float64)
        y = jax.lax.mul(y, np.float64(0.1)) + jax.lax.full_like(y, 1e-12)
        y = jax.lax.cumsum(y, 0) / 3.0 + 0 * jax.lax.dynamic_slice(y, (np.int64(1), np.int64(0)), (1, 8))
        y = jax.lax.reduce_max(y.reshape(2, 2, 8), (0,)) + jax.lax.pad(y, np.float64(0.3), ((-1, -1, 0), (0, 0, 0)))
        return jax.lax.convert_element_type(y * 1e6, np.float32)


def test_rows_keep_64_bits_whatever_the_mode_is_where_they_are_evaluated() -> None:
    x = np.arange(32, dtype=np.float32).reshape(4, 8)

    def loss(x: Any) -> Any:
        return jnp.sum(_wide(x) * 1e-3)

    with sh.use_mesh(sh.make_mesh(MESH)):
        typed = sh.array(x, "f32[4, 8@y]")
        for run in (sh.lift(_wide), sh.jit(sh.lift(_wide))):
            np.testing.assert_array_equal(denoted(run(typed)), jax.jit(_wide)(x))
        gradient = sh.jit(sh.grad(lambda x: sh.all_reduce(sh.lift(loss)(x))))(typed)
    with jax.enable_x64(True):  # where JAX transposes a padding of 64 bits
        wanted = jax.jit(jax.grad(loss))(jnp.asarray(x))
    np.testing.assert_allclose(denoted(gradient), wanted, rtol=1e-6)
