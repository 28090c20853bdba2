"""`sh.lift(f, at=, pending=)`: a plain program changed from outside, against one device."""

from __future__ import annotations

import json
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from shtypes.evaluation import at_specs
from tests.random_checks import denoted
from tests.tolerance import assert_close

MESH = {"dp": 2, "tp": 4}
RNG = np.random.default_rng(0)
X, W = (RNG.normal(size=shape).astype(np.float32) for shape in ((8, 16), (16, 8)))
WS = RNG.normal(size=(3, 16, 16)).astype(np.float32)


def product(x: Any, w: Any) -> Any:
    """A pending sum, where the shared dim is sharded."""
    return x @ w


def loss(x: Any, w: Any) -> Any:
    """Uses the product where it must be finished."""
    return jnp.mean(jnp.tanh(product(x, w)))


def gradients(x: Any, w: Any) -> Any:
    """A program with a backward pass of its own."""
    return jax.jit(jax.value_and_grad(loss, argnums=1))(x, w)


def layer(x: Any, w: Any) -> Any:
    """A layer in a scope."""
    with jax.named_scope("layer"):
        return x @ w


def chain(x: Any, ws: Any) -> Any:
    """The same line again and again, on what it gave."""
    for i in range(3):
        x = jnp.tanh(layer(x, ws[i]))
    return x


def repeated(x: Any, ws: Any) -> Any:
    """Nothing is between one call of the place and the next."""
    for i in range(3):
        x = product(x, ws[i])
    return x


def scanned(x: Any, ws: Any) -> Any:
    """The place is in a body."""
    return jax.lax.scan(lambda x, w: (jnp.tanh(layer(x, w)), None), x, ws)[0]


def _line_of_product() -> str:
    return f"test_outside.py:{product.__code__.co_firstlineno + 2}"


def _typed() -> tuple[Any, Any]:
    return sh.array(X, "f32[8@dp, 16@tp]"), sh.array(W, "f32[16@tp, 8]")


pytestmark = pytest.mark.mesh(MESH)


@pytest.mark.parametrize("place", ["product", "tests.lifting.test_outside.product", "the line", "loss.product"])
def test_the_results_of_a_place_are_resharded(place: str) -> None:
    where = _line_of_product() if place == "the line" else place
    if place == "loss.product":  # what it is in is no part of a function's name
        with pytest.raises(sh.ShardingTypeError, match="does not come through"):
            sh.lift(loss, at={where: "[...]"})(*_typed())
        return
    lifted = sh.lift(loss, at={where: "[...]"})
    assert_close(denoted(lifted(*_typed())), loss(X, W), 100)
    (entry,) = sh.ledger(lifted, *_typed())
    assert str(entry) == "all-reduce over tp"
    assert str(entry.place) == _line_of_product()


@pytest.mark.parametrize(
    ("f", "place", "times"),
    [(chain, "layer", 3), (chain, "l?y*", 3), (repeated, "product", 3), (repeated, _line_of_product(), 3)],
)
def test_a_place_is_resharded_each_time_that_the_program_comes_through(f: Any, place: str, times: int) -> None:
    x, ws = sh.array(X, "f32[8@dp, 16@tp]"), sh.array(WS, "f32[3, 16@tp, 16]")
    lifted = sh.lift(f, at={place: "[_@..., _@tp]"})
    assert_close(denoted(lifted(x, ws)), f(X, WS), 400)
    assert [str(e) for e in sh.ledger(lifted, x, ws)] == ["reduce-scatter over tp"] * times


def test_a_place_in_the_body_of_a_loop_is_resharded() -> None:
    x, ws = sh.array(X, "f32[8@dp, 16@tp]"), sh.array(WS, "f32[3, 16@tp, 16]")
    lifted = sh.lift(scanned, at={"layer": "[_@..., _@tp]"})
    assert_close(denoted(lifted(x, ws)), scanned(X, WS), 400)
    assert [e.times for e in sh.ledger(lifted, x, ws)] == [3]


@pytest.mark.parametrize("options", [{"at": {"product": "[...]"}}, {"pending": "finish"}], ids=["at", "finish"])
def test_the_gradients_are_those_of_one_device_taken_outside_and_inside(options: Any) -> None:
    value, gradient = gradients(X, W)
    found, of_weights = sh.jit(sh.lift(gradients, **options))(*_typed())
    assert_close(denoted(found), value, 100)
    assert_close(denoted(of_weights), gradient, 400)
    total = lambda x, w: sh.reshard(sh.lift(loss, **options)(x, w), "[]")  # noqa: E731
    assert_close(denoted(sh.jit(sh.grad(total, argnums=1))(*_typed())), gradient, 400)


def test_sums_are_finished_where_they_arise_and_not_again() -> None:
    lifted = sh.lift(loss, pending="finish")
    assert str(lifted(*_typed()).type) == "f32[]"
    assert [str(e) for e in sh.ledger(lifted, *_typed())] == ["all-reduce over tp", "all-reduce over dp"]
    pending = sh.ones("f32[8]{U:tp}")
    assert sh.lift(lambda x: x + x, pending="finish")(pending).type == pending.type


@pytest.mark.parametrize("place", ["produc", "test_outside.py:1", "losses", "zzz"])
def test_a_place_that_is_not_in_the_program_is_an_error_with_the_nearest(place: str) -> None:
    with pytest.raises(sh.ShardingTypeError, match="does not come through") as error:
        sh.lift(loss, at={place: "[...]"})(*_typed())
    wanted = {"produc": "product", "losses": "loss", "zzz": "loss"}.get(place, "test_outside.py:")
    assert any(f'at={{"{wanted}' in hint for hint in error.value.hints)
    assert error.value.where.startswith("test_outside.py:")


def test_a_type_that_fits_no_result_of_its_place_is_an_error_that_names_the_place() -> None:
    with pytest.raises(sh.ShardingTypeError) as error:
        sh.lift(loss, at={"product": "[8]"})(*_typed())
    assert 'at={"product": ...}' in str(error.value)


def test_a_scope_around_a_lifted_program_judges_what_is_said_from_outside() -> None:
    with sh.no_comm(), pytest.raises(sh.ShardingTypeError, match="no_comm"):
        sh.lift(loss, at={"product": "[...]"})(*_typed())


@pytest.mark.parametrize("options", [{"at": "product"}, {"at": {3: "[...]"}}, {"pending": "finished"}])
def test_other_ways_to_say_it_are_refused(options: Any) -> None:
    with pytest.raises(sh.ShardingTypeError, match="of `lift`"):
        sh.lift(loss, **options)


def test_reports_show_the_lines_of_the_plain_program_and_what_it_called_in_a_library() -> None:
    optax: Any = pytest.importorskip("optax")

    def entropy(x: Any, w: Any) -> Any:
        return optax.softmax_cross_entropy(product(x, w), jnp.ones((8, 8)) / 8).mean()

    lifted = sh.lift(entropy, at={"log_softmax": "[_, _]", "product": "[...]"})
    line = f"test_outside.py:{entropy.__code__.co_firstlineno + 1}"
    ledger = sh.ledger(lifted, *_typed())
    assert [str(e.place) for e in ledger] == [_line_of_product(), f"{line} (in optax.softmax_cross_entropy)"]
    assert json.loads(ledger.to_json())["entries"][1]["library"] == "optax.softmax_cross_entropy"
    assert f"{line} (in optax.softmax_cross_entropy)  return optax.soft" in str(sh.explain(lifted, *_typed()))
    assert "_classification.py" not in str(sh.explain(lifted, *_typed()))


def test_places_are_looked_for_once_in_each_program(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Any] = []
    found = at_specs.results

    def results(*args: Any) -> Any:
        looked.append(args[1])
        return found(*args)

    monkeypatch.setattr(at_specs, "results", results)
    with sh.use_mesh(sh.make_mesh(MESH)):
        x, w = sh.array(X, "[_@dp, _@tp]"), sh.array(W, "[_@tp, _]")
        f = sh.lift(lambda x, w, b: loss(x, w) + b, at={"product": "[...]"})
        value = f(x, w, np.float32(2))  # a plain array: the operations run one by one
        assert len(looked) == 2  # for the check, and for the marks
        assert_close(denoted(value), loss(X, W) + 2, 100)
        for wrong in range(2):
            with pytest.raises(sh.ShardingTypeError, match="does not come through"):
                sh.lift(loss, at={"nowhere": "[...]"})(x, w + wrong)


def test_a_fix_gives_a_place_one_type() -> None:
    """Both operands come from one line of JAX's, and would be resharded to two types."""
    with sh.use_mesh(sh.make_mesh(MESH)):
        t, bias = sh.ones("f32[2,4,2@dp,2]"), sh.ones("f32[1,1,4,4@dp]")
        with pytest.raises(sh.ShardingTypeError) as caught:
            sh.lift(lambda t, bias: jax.nn.dot_product_attention(t, t, t, bias=bias))(t, bias)
    fixes = [re.findall(r'"([^"]*)": ', fix.code) for fix in caught.value.fixes]
    assert fixes
    assert all(len(set(places)) == len(places) for places in fixes)


def test_a_place_for_a_fix_is_found_from_its_own_equations(monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
def f(x, w):
    for _ in range(steps):
        x = x * 2
    with jax.named_scope("product"):
        y = x @ w
    return jnp.tanh(y)
"""
    asked: list[Any] = []
    found = at_specs.is_in

    def is_in(*args: Any) -> bool:
        asked.append(args)
        return found(*args)

    monkeypatch.setattr(at_specs, "is_in", is_in)

    def asked_of(steps: int) -> int:
        names: dict[str, Any] = {"jax": jax, "jnp": jnp, "steps": steps}
        exec(compile(text, "no_file.py", "exec"), names)
        asked.clear()
        x, w = (sh.abstract_array(t, mesh=sh.abstract_mesh({"tp": 2})) for t in ("f32[8, 8@tp]", "f32[8@tp, 8]"))
        with pytest.raises(sh.ShardingTypeError, match=r'at=\{"product"'):
            sh.lift(names["f"])(x, w)
        return len(asked)

    assert asked_of(1) == asked_of(30) > 0
