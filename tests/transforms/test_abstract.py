"""Types without devices: programs for thousands of them are typed, differentiated and printed where there are none."""

from __future__ import annotations

from typing import Any

import jax
import pytest

import shtypes as sh
from tests import small_models as p

AXES = {"pp": 8, "dp": 16, "tp": 32}


@pytest.fixture
def values() -> tuple[Any, Any, Any]:
    mesh = sh.abstract_mesh(AXES)
    texts = ("f32[4096@dp, 1024]", "f32[1024, 4096@tp]", "f32[4096@tp, 1024]")
    return tuple(sh.abstract_array(t, mesh) for t in texts)  # type: ignore[return-value]


@pytest.fixture
def layers() -> tuple[Any, Any]:
    mesh = sh.abstract_mesh(AXES)
    return sh.abstract_array("f32[96, 1024, 1024]", mesh), sh.abstract_array("f32[4096@dp, 1024]", mesh)


def remat_loop(ws: Any, x: Any) -> Any:
    body = sh.checkpoint(lambda x, w: (p.layer(x, w), None), prevent_cse=False)
    return sh.sum(sh.scan(body, x, ws)[0])


@pytest.mark.core
def test_eval_shape_gives_the_types(values: Any) -> None:
    assert str(jax.eval_shape(p.mlp, *values)) == "f32[4096@dp,1024]"
    found = jax.eval_shape(sh.value_and_grad(p.loss, argnums=(0, 1, 2)), *values)
    assert str(found[0]) == "f32[]{U:dp}"
    assert [str(t) for t in found[1]] == [
        "f32[4096@dp,1024]{U:(pp,tp)}",
        "f32[1024,4096@tp]{U:(pp,dp)}",
        "f32[4096@tp,1024]{U:(pp,dp)}",
    ]


def test_make_jaxpr_prints_the_typed_program(values: Any) -> None:
    text = str(jax.make_jaxpr(sh.grad(p.loss, argnums=1))(*values))
    assert "f32[1024,4096@tp]{U:(pp,dp)} = einsum" in text
    assert "reshard[tp: U->R]" in text


def test_eager_code_on_types_alone_is_a_type_check(values: Any) -> None:
    x, w, _ = values
    hidden = x @ w
    assert hidden.data is None
    assert str(hidden) == "Array(f32[4096@dp,4096@tp])"
    with pytest.raises(sh.ShardingTypeError, match="unreduced"):
        sh.silu(sh.sum(x, 0))


def test_loops_with_recomputation_are_typed(layers: Any) -> None:
    ws, x = layers
    found = jax.eval_shape(sh.grad(remat_loop, argnums=(0, 1)), ws, x)
    assert [str(t) for t in found] == ["f32[96,1024,1024]{U:(pp,dp,tp)}", "f32[4096@dp,1024]{U:(pp,tp)}"]
    kept = sum("einsum" in e for e in p.equations(sh.grad(lambda ws, x: sh.sum(p.looped(ws, x))), ws, x))
    assert sum("einsum" in e for e in p.equations(sh.grad(remat_loop), ws, x)) == kept + 1


def test_a_mesh_in_context_changes_nothing(values: Any, layers: Any) -> None:
    with sh.use_mesh(sh.abstract_mesh(AXES)):
        assert str(jax.eval_shape(sh.grad(p.loss), *values)) == "f32[4096@dp,1024]{U:(pp,tp)}"
        jax.make_jaxpr(sh.grad(remat_loop))(*layers)


def test_jax_grad_of_a_plain_loss_needs_no_devices(values: Any) -> None:
    def plain(*args: Any) -> Any:
        return sh.reshard(p.loss(*args), "[]{I:(pp,dp,tp)}").to_jax()

    with sh.use_mesh(sh.abstract_mesh(AXES)):
        assert str(jax.eval_shape(jax.grad(plain), *values)) == "f32[4096@dp,1024]{U:(pp,tp)}"


def test_a_program_is_lowered_for_hardware_that_is_not_there() -> None:
    with sh.use_mesh(sh.abstract_mesh({"dp": 2, "tp": 2})):
        args = [sh.abstract_array(t) for t in ("f32[8@dp,16]", "f32[16,32@tp]", "f32[32@tp,16]")]
        text = jax.jit(p.mlp).trace(*args).lower(lowering_platforms=("tpu",)).as_text()
    assert "all_reduce" in text


@pytest.mark.parametrize("wrong", ["f32[4096@dp, 1000]", "f32[4096@dp, 1024@tp]"], ids=["shape", "label"])
def test_a_program_that_does_not_type_is_refused_without_devices(wrong: str, values: Any) -> None:
    x = sh.abstract_array(wrong, sh.abstract_mesh(AXES))
    with pytest.raises(sh.ShardingTypeError) as caught:
        jax.eval_shape(p.mlp, x, *values[1:])
    assert "small_models.py" in caught.value.where


@pytest.mark.parametrize("mode", [sh.jit, jax.jit], ids=["sh.jit", "jax.jit"])
def test_a_program_that_runs_says_that_a_value_has_no_data(mode: Any) -> None:
    p.mesh()
    x, w = sh.array(p.X, p.X_TYPE), sh.abstract_array("f32[8,8]")
    runs: list[Any] = [lambda: mode(lambda x: x @ w)(x), lambda: mode(lambda x, w: x @ w)(x, w)]
    for run in runs:
        with pytest.raises(sh.ShardingTypeError, match="a value that has only a type") as error:
            run()
        assert "test_abstract.py" in error.value.where
    assert str(sh.jit(lambda x: x @ w).eval_shape(x).type) == "f32[batch@dp, 8]"


def test_what_eval_shape_gives_stands_for_a_value_where_a_program_is_compiled() -> None:
    with sh.use_mesh(sh.make_mesh({"x": 2})):
        x = sh.array([1.0, 2.0], "f32[2@x]")
        t = jax.eval_shape(lambda x: x + 1, x)
        program = sh.jit(sh.sum)
        assert program.lower(t).as_text() == program.lower(x).as_text()
        with pytest.raises(sh.ShardingTypeError, match="has only a type"):
            program(t)
