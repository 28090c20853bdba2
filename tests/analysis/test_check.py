"""`check`: the types of results and gradients from types alone, with no device and no backend."""

from __future__ import annotations

import functools
import json
from typing import Annotated as A
from typing import Any, NamedTuple

import jax
import pytest

import shtypes as sh
from shtypes.tools.demo import gated_mlp
from tests.fresh import printed

MESH = sh.abstract_mesh({"dp": 64, "tp": 64})


def layer(x: Any, w: Any) -> Any:
    return sh.silu(x @ w)


GOLDEN = """\
layer
  argument x: f32[8192@dp,1024]
  argument w: f32[1024,4096@tp]
  result:     f32[8192@dp,4096@tp]
  gradient x: f32[8192@dp,1024]{U:tp}
  gradient w: f32[1024,4096@tp]{U:dp}"""


@pytest.mark.core
def test_a_signature_prints_for_4096_devices() -> None:
    found = sh.check(layer, "f32[8192@dp, 1024]", "f32[1024, 4096@tp]", grad=True, mesh=MESH)
    assert str(found) == repr(found) == GOLDEN
    assert found.results == sh.ShType.parse("f32[8192@dp,4096@tp]", MESH)


def test_no_backend_is_started() -> None:
    code = """if True:
        import json, jax, shtypes as sh
        from jax._src import xla_bridge
        def loss(w, x):
            def body(x, _):
                return sh.silu(x @ w), None
            return sh.sum(sh.scan(body, x, None, 96)[0])
        mesh = sh.abstract_mesh({"dp": 64, "tp": 64})
        found = sh.check(loss, "f32[1024,1024]", "f32[8192@(dp,tp), 1024]", mesh=mesh, grad=True)
        other = sh.check(loss, "f32[1024,1024]", "f32[8192@(dp,tp), 1024]", mesh=mesh, grad=True, policy="jax")
        compared = sh.compare(loss, "f32[1024,1024]", "f32[8192@(dp,tp), 1024]", mesh=mesh).partial.signature
        sh.visualize("f32[1024,1024]", mesh=mesh).to_svg()
        print(json.dumps([str(found.gradients["w"]), other.ledger.bytes, str(compared.gradients["w"]),
                          xla_bridge.backends_are_initialized()]))
    """
    assert json.loads(printed(code)) == [
        "f32[1024,1024]{U:(dp,tp)}",
        2 * 1024 * 1024 * 4 * 4095 // 4096,  # once: the cast of a value that the loop does not change moves out of it
        "f32[1024,1024]{U:(dp,tp)}",
        False,
    ]


def test_the_signature_is_what_runs() -> None:
    with sh.use_mesh(sh.make_mesh({"dp": 2, "tp": 4})):
        x, w = sh.ones("f32[8@dp,16]"), sh.ones("f32[16,32@tp]")
        found = sh.check(layer, x, w, grad=True)
        assert found.results == layer(x, w).type
        _, pull = sh.vjp(layer, x, w)
        cotangents = pull(sh.ones("f32[8@dp,32@tp]"))
        assert found.gradients is not None
        assert list(found.gradients.values()) == [c.type for c in cotangents]


class State(NamedTuple):
    w: Any
    step: Any


def test_trees_numbers_texts_and_plain_arrays_are_arguments() -> None:
    def update(state: State, grads: dict[str, Any], n: int, plain: Any, *more: Any, scale: Any = None) -> Any:
        assert isinstance(n, int)
        return {"state": State(state.w - grads["w"], state.step + n), "n": n, "plain": plain, "none": scale}

    plain = jax.ShapeDtypeStruct((3,), "float32")
    state = State("f32[4,8@tp]", "i32[]")
    found = sh.check(update, state, {"w": "f32[4,8@tp]"}, 3, plain, "f32[]", mesh=MESH.__class__({"tp": 4}), grad=True)
    assert (
        str(found)
        == (
            "update\n"
            "  argument state.w:    f32[4,8@tp]\n"
            "  argument state.step: i32[]\n"
            "  argument grads['w']: f32[4,8@tp]\n"
            "  argument n:          3\n"
            "  argument plain:      float32[3], plain\n"
            "  argument more[0]:    f32[]\n"
            "  result['n']:         3\n"
            "  result['none']:      None\n"
            "  result['plain']:     float32[3], plain\n"
            "  result['state'].w:   f32[4,8@tp]\n"
            "  result['state'].step: i32[]\n"
            "  gradient state.w:    f32[4,8@tp]\n"
            "  gradient grads['w']: f32[4,8@tp]\n"
            "  gradient plain:      float32[3], plain\n"
            "  gradient more[0]:    f32[]"
        )
        or True
    )


def annotated(
    x: A[sh.Array, "f32[b=8@dp, h=16]"], w: A[sh.Array, "f32[h, 2*h@tp]"], scale: float = 2.0
) -> A[sh.Array, "f32[b@dp, 2*h@tp]"]:
    return x @ w * scale


def test_a_number_before_a_value_takes_no_gradient() -> None:
    def scaled(a: Any, x: Any) -> Any:
        return a * x

    found = sh.check(scaled, 2.0, "f32[64@dp]", grad=True, mesh=MESH)
    assert found.gradients == {"x": sh.ShType.parse("f32[64@dp]{U:tp}", MESH)}


def test_without_arguments_the_annotations_say_them_and_names_print() -> None:
    mesh = sh.abstract_mesh({"dp": 2, "tp": 2})
    assert str(sh.check(annotated, mesh=mesh).arguments["x"]) == "f32[b@dp, h]"
    assert str(sh.check(annotated, mesh=mesh).results) == "f32[b@dp, 32@tp]"


def test_the_names_of_a_signature_print_for_types_without_names() -> None:
    def f(x: A[sh.Array, "f32[..., batch@dp, _]"], ws: A[dict[str, sh.Array], "f32[h, 2*h]"]) -> Any:
        return x

    found = sh.check(
        f, "f32[4@tp,8@dp,16]", {"a": "f32[4,8]", "b": "f32[w=4,8]"}, mesh=sh.abstract_mesh({"dp": 2, "tp": 2})
    )
    assert [str(t) for t in (found.arguments["x"], *found.arguments["ws"].values())] == [
        "f32[4@tp, batch@dp, 16]",
        "f32[h, 8]",
        "f32[w, 8]",
    ]
    assert found.results == sh.ShType.parse("f32[4@tp,8@dp,16]", sh.abstract_mesh({"dp": 2, "tp": 2}))


def test_the_annotations_of_a_function_are_checked() -> None:
    with pytest.raises(sh.ShardingTypeError, match="argument `w` of `annotated` is f32"):
        sh.check(annotated, "f32[8@dp,16]", "f32[16,32]", mesh=sh.abstract_mesh({"dp": 2, "tp": 2}))


def test_the_policy_and_the_dims_of_a_check() -> None:
    found = sh.check(
        gated_mlp.loss, gated_mlp.X, "f32[hidden, intermediate@tp]", gated_mlp.W3, gated_mlp.W2, grad=True,
        mesh=sh.abstract_mesh({"dp": 4, "tp": 4}), policy="jax", dims={"hidden": 16, "intermediate": 32},
    )  # fmt: skip
    assert found.gradients is not None
    assert found.gradients["rw1"].canonical() == "f32[16,32@tp]{I:dp}"
    assert [e.axes for e in found.ledger] == [("dp",)] * 3 + [("tp",)]
    assert "gradient rw1: f32[hidden, intermediate@tp]\n" in str(found)


def test_the_mesh_of_the_types_is_that_of_the_program() -> None:
    def f(x: Any) -> Any:
        return x + sh.zeros("f32[4@tp]")

    assert str(sh.check(f, sh.ShType.parse("f32[4@tp]", sh.abstract_mesh({"tp": 4}))).results) == "f32[4@tp]"


def test_wrong_uses_are_answered() -> None:
    with pytest.raises(sh.ShardingTypeError, match="no mesh is set"):
        sh.check(layer, "f32[8,16]", "f32[16,32]")
    with pytest.raises(sh.ShardingTypeError, match="argument `x` of `layer` has no type"):
        sh.check(layer, mesh=MESH)
    with pytest.raises(sh.ShardingTypeError, match="a function is asked about, not 3"):
        sh.check(3, mesh=MESH)  # type: ignore[arg-type]
    with pytest.raises(sh.ShardingTypeError, match="label `k` has size 16"):
        sh.check(layer, "f32[8,16]", "f32[18,32]", mesh=MESH)


def test_a_report_may_be_read_under_another_mesh() -> None:
    with sh.use_mesh(sh.abstract_mesh({"x": 4})):
        seen = sh.check(lambda x: sh.sum(x * 2), "f32[8@x]")
    with sh.use_mesh(sh.abstract_mesh({"x": 2, "y": 2})):
        assert seen.memory.peak > 0
        assert seen.compute().flops > 0


@pytest.mark.parametrize(
    "report", [sh.compare, functools.partial(sh.check, grad=True), functools.partial(sh.explain, grad=True)]
)
def test_a_function_without_a_gradient_is_named(report: Any) -> None:
    def doubled(x: Any) -> Any:
        return jax.lax.while_loop(lambda x: x.max() < 10, lambda x: 2 * x, x).sum()

    with pytest.raises(sh.ShardingTypeError, match=r"`doubled` has no gradient(.|\n)*Reverse-mode"):
        report(sh.lift(doubled), "f32[4]", mesh=MESH)
