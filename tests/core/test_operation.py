"""Operations know their operands' types, and leave nothing behind in JAX's tables."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax._src.interpreters import ad, batching
from jax.extend.core import check_jaxpr

import shtypes as sh
from shtypes.core.elementwise_fns import NamedFn
from shtypes.core.jax_type import as_jax_type
from shtypes.core.local import Local
from shtypes.core.operation import Operation, applied_by

MESH = sh.abstract_mesh({"x": 2})


def types(*texts: str) -> tuple[Any, ...]:
    return tuple(as_jax_type(sh.ShType.parse(text, MESH)) for text in texts)


def exp_of(text: str) -> Operation:
    t = types(text)
    return Local(NamedFn("exp", jax.numpy.exp, per_element=True), t, t)


def test_an_operation_refuses_operands_of_another_type() -> None:
    exp = exp_of("f32[8]")
    x = sh.abstract_array("f32[8]{U:x}", MESH)
    with pytest.raises(sh.ShardingTypeError, match=r"`exp` was given f32\[8\]\{U:x\} instead of f32\[8\]"):
        jax.make_jaxpr(lambda x: exp.bind(x)[0])(x)


@pytest.mark.parametrize("text", ["f32[8]{U:x}", "f32[8@x]", "f32[4]", "bf16[8]"])
def test_jax_finds_a_typed_program_wrong_whose_operands_changed(text: str) -> None:
    closed = jax.make_jaxpr(lambda x: sh.exp(x) * 2)(sh.abstract_array("f32[8]", MESH))
    check_jaxpr(closed.jaxpr)
    first, *rest = closed.jaxpr.eqns
    broken = closed.jaxpr.replace(eqns=[first.replace(params={"operation": exp_of(text)}), *rest])
    with pytest.raises(TypeError):
        check_jaxpr(broken)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: sh.reshard(x, x="R"),
        lambda x: sh.einsum("i,ij->j", x, sh.ones("f32[8@x,4]"), out="[_@x]", overlap=True),
        sh.vmap(lambda x: sh.lax.psum(x * 1.0, "x")),
    ],
    ids=["reshard", "ring", "collective"],
)
def test_every_kind_of_operation_is_checked_again(f: Any) -> None:
    with sh.use_mesh(MESH):
        closed = jax.make_jaxpr(f)(sh.abstract_array("f32[8@x]"))
    check_jaxpr(closed.jaxpr)
    found = [applied_by(eqn) for eqn in closed.jaxpr.eqns if isinstance(applied_by(eqn), Operation)]
    assert found
    for operation in found:
        with pytest.raises(sh.ShardingTypeError, match="instead of"):
            operation.abstract_eval(*types("f32[3]"))


def test_equal_operations_are_one_parameter_and_dim_names_tell_them_apart() -> None:
    assert exp_of("f32[8]") == exp_of("f32[8]")
    assert hash(exp_of("f32[8]")) == hash(exp_of("f32[8]"))
    assert exp_of("f32[seq=8]") != exp_of("f32[8]")
    assert exp_of("f32[8]") != exp_of("f32[8@x]")


@pytest.mark.parametrize("run", [lambda f, x: f(x), lambda f, x: sh.jit(f)(x)], ids=["eager", "jit"])
def test_changing_numbers_leave_nothing_in_the_tables_of_jax(run: Any) -> None:
    with sh.use_mesh(sh.make_mesh({"x": 2})):
        x = sh.array(np.ones(8), "f32[8@x]")

        def step(number: float) -> None:
            run(sh.grad(lambda x: sh.sum(sh.maximum(x * number, number))), x)

        step(0.5)
        tables = (ad.primitive_jvps, ad.primitive_transposes, batching.fancy_primitive_batchers)
        before = [len(table) for table in tables]
        for i in range(5):
            step(1.0 + i)
        assert [len(table) for table in tables] == before


def test_what_is_applied_again_to_operands_of_the_same_types_is_the_same_operation() -> None:
    def twice(x: Any) -> Any:
        return [sh.reshard(sh.exp(x), "[_]") for _ in range(2)]

    first, other = (sh.abstract_array(text, MESH) for text in ("f32[8@x]", "f32[4@x]"))
    with sh.use_mesh(MESH):
        applied, others = ([applied_by(eqn) for eqn in jax.make_jaxpr(twice)(x).eqns] for x in (first, other))
    assert len(applied) == 4
    assert applied[0] is applied[2] is not others[0]
    assert applied[1] is applied[3] is not others[1]
