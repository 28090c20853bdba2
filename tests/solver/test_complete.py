"""`implicit_comm` of a whole program: it sends least for the types of its arguments, and means the same."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from shtypes.lifting.lift import lift_op_by_op
from shtypes.solver import complete
from shtypes.solver.graph import Graph
from shtypes.solver.program import Program
from shtypes.solver.tables import Costs
from tests.compiling import compiled
from tests.random_checks import denoted
from tests.random_programs import spread
from tests.scopes.implicit_programs import CASES, loss_of
from tests.solver import models
from tests.solver.layouts import LAYOUTS, gpt_types
from tests.tolerance import assert_within, computed
from tests.traced.compiled import assert_compiled_as_said

#: Bytes that each device sends in a step of four layers on a mesh of 4x4, gradients pending; by the width of the model.
SENT = {
    (1024, "Megatron"): 315.1e6,
    (1024, "FSDP"): 321.1e6,
    (1024, "FSDP and TP"): 377.8e6,
    (4096, "Megatron"): 906.1e6,
    (4096, "FSDP"): 2164.4e6,
    (4096, "FSDP and TP"): 2328.0e6,
}


def step_of(f: Callable[..., Any]) -> Callable[..., Any]:
    """The loss and its gradients by the first argument."""
    return lambda p, *data: sh.value_and_grad(lambda p: f(p, *data))(p)


def in_a_block(f: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        with sh.implicit_comm():
            return f(*args)

    return call


@pytest.mark.nightly
@pytest.mark.parametrize(("width", "layout"), SENT, ids=str)
def test_a_language_model_sends_least_for_the_types_of_its_weights(width: int, layout: str) -> None:
    with sh.use_mesh(sh.abstract_mesh({"dp": 4, "tp": 4})):
        args = jax.tree.map(sh.abstract_array, gpt_types(width, LAYOUTS[layout]))
        ledger = sh.ledger(step_of(in_a_block(sh.lift(models.gpt_loss))), *args)
    assert ledger.total.bytes <= SENT[width, layout]


@jax.custom_jvp
def doubled(*xs: Any) -> Any:
    return [2 * x for x in xs]


doubled.defjvp(lambda xs, dots: (doubled(*xs), doubled(*dots)))

#: Programs whose operations take several values that have nothing to do with one another.
TOGETHER: dict[str, Callable[..., Any]] = {
    "a barrier": lambda x, y: jax.lax.optimization_barrier((x, y)),
    "a barrier of which one result is read": lambda x, y: jax.lax.optimization_barrier((x, x + 1, y * 2))[0] * x,
    "a barrier in a loop": lambda x, y: jax.lax.fori_loop(
        0, 3, lambda i, c: tuple(jax.lax.optimization_barrier((c[0] * 2, jnp.sin(c[1])))), (x, y)
    ),
    "a rule of many": lambda x, y: doubled(x, y, x, x + 1, y - 1),
    "a sort of several": lambda x, y: (jax.lax.sort((x, x + 1, -x), dimension=1, num_keys=1), y),
    "a branch": lambda x, y: jax.lax.cond(y.shape[0] > 2, lambda x, y: (x, y), lambda x, y: (x + 1, y), x, y),
    "a while loop": lambda x, y: jax.lax.while_loop(
        lambda c: c[2] < 3, lambda c: (c[0] + 1, c[1] * 2, c[2] + 1), (x, y, 0)
    ),
}


@pytest.mark.parametrize("f", TOGETHER.values(), ids=TOGETHER)
@pytest.mark.mesh({"x": 4, "y": 2})
def test_what_an_operation_takes_together_stays_as_it_is(f: Callable[..., Any]) -> None:
    x, y = (
        sh.array(np.arange(32.0).reshape(8, 4), "f32[8@x, 4]"),
        sh.array(np.arange(24.0).reshape(3, 8), "f32[3, 8@(x,y)]"),
    )
    alone, decided = sh.lift(f), sh.implicit_comm(sh.lift(f))
    assert not sh.ledger(alone, x, y).total.bytes
    assert not sh.ledger(decided, x, y).total.bytes


@pytest.mark.nightly
@pytest.mark.mesh({"x": 4, "y": 2})
def test_weights_behind_a_barrier_are_sent_as_without_it() -> None:
    def layers(p: Any, x: Any, hidden: Callable[[Any], Any]) -> Any:
        for up, down in p:
            up, down, x = hidden((up, down, x))
            x = x + jnp.tanh(x @ up) @ down
        return jnp.mean(x**2)

    rng = np.random.default_rng(0)
    p = [
        [sh.array(rng.normal(size=(8, 16)), "f32[8@y, 16@x]"), sh.array(rng.normal(size=(16, 8)), "f32[16@x, 8@y]")]
    ] * 3
    x = sh.array(rng.normal(size=(16, 8)), "f32[16@y, 8]")
    behind, plain = (
        sh.grad(sh.implicit_comm(sh.lift(lambda p, x, f=f: layers(p, x, f))))
        for f in (jax.lax.optimization_barrier, lambda values: values)
    )
    assert sh.ledger(behind, p, x).total.bytes == sh.ledger(plain, p, x).total.bytes
    assert_compiled_as_said(behind, p, x)
    for a, b in zip(jax.tree.leaves(behind(p, x)), jax.tree.leaves(plain(p, x)), strict=True):
        assert_within(denoted(a), denoted(b), 1e-5)


@pytest.mark.mesh({"x": 4})
@pytest.mark.parametrize("last", ["f32[8@x, 16]", "f32[8, 16@x]"])
def test_equal_layers_whose_weights_lie_otherwise_decide_for_themselves(last: str) -> None:
    def layers(p: Any, x: Any, *functions: Callable[[Any], Any]) -> Any:
        for (up, down), f in zip(p, functions, strict=True):
            x = x + f(f(x @ up) @ down)
        return jnp.mean(x**2)

    up, down = sh.abstract_array("f32[8@x, 16]"), sh.abstract_array("f32[16@x, 8]")
    p, x = [(up, down), (up, down), (sh.abstract_array(last), down)], sh.abstract_array("f32[16, 8]")
    equal, unlike = (
        sh.ledger(sh.grad(sh.implicit_comm(sh.lift(lambda p, x, fs=fs: layers(p, x, *fs)))), p, x).total.bytes
        for fs in ([jnp.tanh] * 3, [jnp.tanh, jnp.sin, jnp.cos])
    )
    assert equal == unlike


@pytest.mark.mesh({"x": 8})
def test_a_gradient_inside_a_program_is_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    def greedily(*_: Any, **__: Any) -> bool:
        raise AssertionError

    monkeypatch.setattr(complete, "_sends_no_more", greedily)
    x, w, v = (sh.abstract_array(t) for t in ("f32[16@x, 8]", "f32[8, 8@x]", "f32[8@x, 8]"))
    gradient = sh.lift(jax.grad(lambda x, w, v: jnp.sum(jnp.tanh(x @ w) @ v), (0, 1, 2)))
    assert sh.ledger(sh.implicit_comm(gradient), x, w, v).total.bytes == 336


@pytest.mark.nightly
@pytest.mark.mesh({"x": 4, "y": 2})
def test_a_gradient_that_uses_sum_before_one_cast_is_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries and keys take a gathered sequence as invariant: its part of their sum is free, and was priced as sent."""

    def loss(x: Any, q: Any, o: Any) -> Any:
        h = jnp.einsum("bsd,dhk->bshk", x, q)
        p = jax.nn.softmax(jnp.einsum("bshk,bthk->bhst", h, h))
        return jnp.sum(jnp.sin(x + jnp.einsum("bhst,bthk,hkd->bsd", p, h, o)))

    def greedily(*_: Any, **__: Any) -> bool:
        raise AssertionError

    monkeypatch.setattr(complete, "_sends_no_more", greedily)
    args = [sh.abstract_array(t) for t in ("f32[8, 16@y, 16]", "f32[16, 8, 4@x]", "f32[8@x, 4, 16]")]
    assert sh.ledger(sh.grad(sh.implicit_comm(sh.lift(loss)), (0, 1, 2)), *args).total.bytes == 5632


@pytest.mark.nightly
@pytest.mark.mesh({"x": 2, "y": 2, "z": 2})
def test_borders_of_a_convolution_are_predicted_whatever_its_kernel_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are in proportion to the operand, not to the result, of which a sharded kernel leaves a part."""

    def loss(x: Any, k: Any) -> Any:
        numbers = ("NHWC", "HWIO", "NHWC")
        return jnp.sum(jax.lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=numbers))

    def corrected(*_: Any, **__: Any) -> bool:
        raise AssertionError

    monkeypatch.setattr(Costs, "correct", corrected)
    x, k = sh.abstract_array("f32[1, 16, 16@z, 4]"), sh.abstract_array("f32[3, 3, 4, 8@y]")
    assert sh.ledger(sh.grad(sh.implicit_comm(sh.lift(loss)), (0, 1)), x, k).total.bytes == 256


def test_what_has_no_gradient_counts_no_cotangent() -> None:
    def f(x: Any, w: Any) -> Any:
        y = jnp.tanh(x * w)
        return jnp.sum((y - jax.lax.stop_gradient(jnp.max(y, 1, keepdims=True))) ** 2)

    with sh.use_mesh(sh.abstract_mesh({"x": 4})), sh.policy("jax"):
        args = sh.abstract_array("f32[64, 32]"), sh.abstract_array("f32[64, 32]")
        step = step_of(sh.implicit_comm(sh.lift(f)))
        assert sh.ledger(step, *args).total.bytes <= 16


@pytest.mark.mesh({"x": 4})
def test_what_two_ops_take_of_an_argument_has_its_gradient_summed_once() -> None:
    w, x = sh.abstract_array("f32[16, 16]{I:x}"), sh.abstract_array("f32[64@x, 16]")
    f = sh.implicit_comm(sh.lift(lambda w, x: jnp.sum((x @ w) * (x @ w.T))))
    sent = sh.ledger(sh.grad(f), w, x).total
    assert (sent.bytes, sent.launches) == (1536, 1)


def _new_parameters(p: Any, x: Any) -> Any:
    grads = jax.grad(lambda p: jnp.mean((jnp.tanh(x @ p[0]) @ p[1]) ** 2))(p)
    return jax.tree.map(lambda w, g: w - 0.1 * g, p, grads)


def _gradient_of_a_loop(w: Any, xs: Any) -> Any:
    """JAX hoists nothing out of a loop that is differentiated before."""

    def loss(w: Any) -> Any:
        return jax.lax.scan(lambda h, x: (jnp.tanh(x @ w + h), None), jnp.zeros((8, 16)), xs)[0].sum()

    return jax.grad(loss)(w)


@pytest.mark.mesh({"x": 4, "y": 2})
@pytest.mark.parametrize(
    ("f", "types", "sent"),
    [
        (_new_parameters, (("f32[16, 32@y]", "f32[32@y, 16]"), "f32[8@x, 16]"), 896),
        (jax.jit(_new_parameters), (("f32[16, 32@y]", "f32[32@y, 16]"), "f32[8@x, 16]"), 896),
        (_gradient_of_a_loop, ("f32[16@y, 16]{I:x}", "f32[16, 8@x, 16@y]"), 1280),
    ],
    ids=["step", "jitted step", "loop"],
)
def test_a_program_that_takes_gradients_is_priced_as_it_runs(f: Any, types: Any, sent: int) -> None:
    args = jax.tree.map(sh.abstract_array, types)
    assert sh.ledger(sh.implicit_comm(sh.lift(f)), *args).total.bytes == sent


SMALL = {"batch": 8, "seq": 4, "heads": 4, "k": 2, "f": 16, "vocab": 8}


@pytest.mark.nightly
@pytest.mark.parametrize(("layout", "policy"), [*zip(LAYOUTS, ("partial", "jax", "partial"), strict=True)])
def test_values_and_gradients_are_those_of_one_device(layout: str, policy: str) -> None:
    arguments = models.arrays(models.gpt(2, 8, 4, 8, 4, 2, 16, 8, scanned=layout == "FSDP"))
    grad = jax.value_and_grad(models.gpt_loss)
    (loss, grads), (error, errors) = computed(grad, *jax.tree.map(np.asarray, arguments))
    with sh.use_mesh(sh.make_mesh({"dp": 2, "tp": 2})), sh.policy(policy):
        types = gpt_types(8, LAYOUTS[layout], layers=2, scanned=layout == "FSDP", **SMALL)
        args = jax.tree.map(lambda x, t: spread(np.asarray(x), t), arguments, types)
        step = step_of(in_a_block(sh.lift(models.gpt_loss)))
        value, found = jax.block_until_ready(compiled(sh.jit(step).lower(*args))(*args))
        assert_within(denoted(value), loss, error, "loss")
        jax.tree.map(lambda x, y, e: assert_within(denoted(x), y, e, layout), found, grads, errors)
        assert [g.type for g in jax.tree.leaves(found)] == [x.type.cotangent() for x in jax.tree.leaves(args[0])]
        assert_compiled_as_said(step, *args, jits=(sh.jit,))


# a share of the work


def patches(image: Any, kernel: Any) -> Any:
    return jax.lax.conv_general_dilated(image, kernel, (4, 4), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))


@pytest.mark.parametrize(("images", "by"), [(8, "bytes"), (1, "bytes"), (8, "time"), (1, "time")])
def test_a_convolution_over_sharded_rows_is_a_share_of_the_work(images: int, by: Any) -> None:
    @sh.implicit_comm(by=by)
    def embedded(x: Any, k: Any) -> Any:
        return sh.lift(patches)(x, k)

    with sh.use_mesh(sh.abstract_mesh({"x": 8})):
        args = sh.abstract_array(f"f32[{images},64@x,64,4]"), sh.abstract_array("f32[4,4,4,512]")
        found = sh.check(embedded, *args)
        whole = 2 * images * 16 * 16 * 512 * 4 * 4 * 4
        assert sh.compute(embedded, *args).flops <= 1.001 * whole / 8
        assert found.results.local_bytes == images * 16 * 16 * 512 * 4 / 8


@pytest.mark.one_in(11)
@pytest.mark.parametrize("lift", [sh.lift, lift_op_by_op], ids=["whole", "op by op"])
@pytest.mark.parametrize("images", [1, 4, 8])
@pytest.mark.parametrize(("padding", "rows"), [("SAME", 64), ("VALID", 62)])
def test_a_convolution_that_meets_borders_is_a_share_of_the_work(
    padding: str, rows: int, images: int, lift: Any
) -> None:
    def convolved(image: Any, kernel: Any) -> Any:
        numbers = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(image, kernel, (1, 1), padding, dimension_numbers=numbers)

    with sh.use_mesh(sh.abstract_mesh({"x": 8})):
        args = sh.abstract_array(f"f32[{images},64@x,64,64]"), sh.abstract_array("f32[3,3,64,64]")
        found = sh.check(in_a_block(lift(convolved)), *args).results
        whole = 2 * images * rows * rows * 64 * 3 * 3 * 64
        assert sh.compute(in_a_block(lift(convolved)), *args).flops <= 1.05 * whole / 8
        assert found.local_bytes == images * rows * rows * 64 * 4 / 8


def test_bytes_are_not_saved_by_work_of_all_devices() -> None:
    axes, types, f, _ = CASES["residual MLPs, sequence"]

    def step(*args: Any) -> Any:
        loss, pull = sh.vjp(sh.implicit_comm(loss_of(f)), *args)
        return loss, pull(1.0)

    with sh.use_mesh(sh.abstract_mesh(axes)):
        args = [sh.abstract_array(t) for t in types]
        products = 3 * 4 * 2 * (2 * 8 * 64 * 256 * 1024)
        assert sh.compute(step, *args).flops <= 1.1 * products / 8


# what a program says itself


def test_reshards_of_the_program_stay_and_are_written() -> None:
    def f(x: Any, w: Any) -> Any:
        y: Any = sh.reshard(jnp.tanh(x @ w), "[_@x, ...]")
        return jnp.sum(jnp.sin(y) @ w.T)

    with sh.use_mesh(sh.abstract_mesh({"x": 4})):
        args = sh.abstract_array("f32[16, 32]"), sh.abstract_array("f32[32, 64@x]")
        for whole in (in_a_block(sh.lift(f)), sh.implicit_comm(sh.lift(f))):
            ledger = sh.ledger(whole, *args)
            (written,) = [e for e in ledger if not e.inserted]
            assert (written.kind, str(written.dst)) == ("all-to-all", "f32[16@x,64]")


def test_sums_are_pending_where_the_program_reduces_them() -> None:
    def f(a: Any, b: Any) -> Any:
        return sh.all_reduce(sh.sum(a * b, 0), "x")

    with sh.use_mesh(sh.abstract_mesh({"x": 2})):
        args = sh.abstract_array("f32[8@x,4]"), sh.abstract_array("f32[8,4@x]")
        ledger = sh.ledger(sh.implicit_comm(f), *args)
        assert [(e.kind, e.inserted) for e in ledger] == [("all-to-all", True), ("all-reduce", False)]


def test_no_comm_inside_holds() -> None:
    def f(x: Any, w: Any) -> Any:
        with sh.no_comm():
            y = jnp.sin(x @ w)
        return jnp.sum(y)

    with sh.use_mesh(sh.abstract_mesh({"x": 4})):
        x, w = sh.abstract_array("f32[16, 32@x]"), sh.abstract_array("f32[32@x, 64]")
        with pytest.raises(sh.ShardingTypeError, match="`no_comm` forbids"):
            sh.ledger(sh.implicit_comm(sh.lift(f)), x, w)
        ledger = sh.ledger(sh.implicit_comm(sh.lift(lambda x, w: f(jnp.tanh(x) ** 2, w))), x, sh.reshard(w, "[_, _]"))
        assert [(e.kind, e.inserted) for e in ledger] == [("all-to-all", True)]


def test_a_function_that_looks_at_types_is_left_to_its_ops() -> None:
    seen = []

    def f(x: Any) -> Any:
        seen.append(sh.typeof(x * 2))
        return sh.sin(x)

    with sh.use_mesh(sh.abstract_mesh({"x": 4})):
        x = sh.abstract_array("f32[16]{U:x}")
        assert [e.kind for e in sh.ledger(sh.implicit_comm(f), x)] == ["reduce-scatter"]
    assert seen == [x.type]


def test_what_is_differentiated_in_a_decorated_step_is_decided() -> None:
    def loss(w: Any, x: Any) -> Any:
        for _ in range(2):
            x = x + sh.tanh(sh.nn.rms_norm(x) @ w["in"]) @ w["out"]
        return sh.sum(sh.sin(x))

    def step(w: Any, x: Any) -> Any:
        value, grads = sh.value_and_grad(loss)(w, x)
        return value, jax.tree.map(lambda p, g: p - 0.1 * sh.reshard(g, p.type), w, grads)

    with sh.use_mesh(sh.abstract_mesh({"tp": 4})):
        w = {"in": sh.abstract_array("f32[16, 64@tp]"), "out": sh.abstract_array("f32[64@tp, 16]")}
        x = sh.abstract_array("f32[512, 16]")
        decided, alone = (sh.ledger(f, w, x).bytes for f in (sh.implicit_comm(step), in_a_block(step)))
    assert 4 * decided < alone


def test_what_is_least_may_be_time_of_slow_links_or_bytes() -> None:
    def f(x: Any, w: Any) -> Any:
        return jnp.sum(jnp.sin(x @ w) ** 2)

    with sh.use_mesh(sh.abstract_mesh({"x": 8})):
        args = sh.abstract_array("f32[1024, 4096@x]"), sh.abstract_array("f32[4096, 4096]")
        sent = {by: sh.ledger(sh.implicit_comm(sh.lift(f), by=by), *args).bytes for by in ("bytes", "time")}
    assert sent["bytes"] <= sent["time"]
    with pytest.raises(sh.ShardingTypeError, match="decides by bytes or by time, not by 'money'") as caught:
        sh.implicit_comm(by="money")  # type: ignore[call-overload]
    assert 'try:   sh.implicit_comm(by="time")' in str(caught.value)


def test_dim_names_are_kept() -> None:
    with sh.use_mesh(sh.abstract_mesh({"x": 2})):
        y = jax.eval_shape(
            sh.implicit_comm(sh.lift(jnp.sin)), sh.abstract_array("f32[8, model]{U:x}", dims={"model": 4})
        )
        assert str(y) == "f32[8@x, model]"


@pytest.mark.mesh({"dp": 2, "tp": 4})
@pytest.mark.parametrize("f", [lambda x: sh.argmax(x, 0), lambda x: sh.sum(x > 0, 0), sh.isfinite])
def test_what_has_no_gradient_may_be_cast_where_none_may_be_sent(f: Any) -> None:
    x = sh.abstract_array("f32[8@dp,4]{I:tp}")

    def backward(x: Any) -> Any:
        with sh.no_comm("backward"):
            return jax.vjp(lambda x: sh.astype(sh.implicit_comm(f)(x), "f32"), x)[0]

    assert jax.eval_shape(backward, x).shape


def test_a_program_is_read_once_from_its_trace_and_that_of_gradients_ends_where_they_are_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read, traced = list[Any](), list[int]()

    def program(*args: Any, **kwargs: Any) -> Any:
        read.append(args)
        return Program(*args, **kwargs)

    def loss(w: Any, x: Any) -> Any:
        traced.append(1)
        return jnp.sum(jnp.sin(x @ w))

    monkeypatch.setattr(complete, "Program", program)
    with sh.use_mesh(sh.abstract_mesh({"x": 2})):
        args = sh.abstract_array("f32[4,8@x]"), sh.abstract_array("f32[8,4@x]")
        for step in (sh.value_and_grad(sh.lift(loss)), sh.lift(jax.value_and_grad(loss))):
            sh.ledger(sh.implicit_comm(step), *args)
    assert (len(read), len(traced)) == (2, 2)


def test_what_wraps_a_lifted_function_is_decided_with_it() -> None:
    lifted = sh.lift(lambda x, w: x @ w)

    @functools.wraps(lifted)
    def step(x: Any, w: Any) -> Any:
        return sh.sin(lifted(x, w)) * w[:1]

    def plain(x: Any, w: Any) -> Any:
        return sh.sin(x @ w) * w[:1]

    with sh.use_mesh(sh.abstract_mesh({"x": 2})):
        args = sh.abstract_array("f32[64,16@x]"), sh.abstract_array("f32[16@x,64]")
        found, wanted = (sh.ledger(sh.implicit_comm(f), *args).bytes for f in (step, plain))
    assert found == wanted


def test_a_plan_of_programs_that_are_alike_has_the_lines_of_each() -> None:
    def one(x: Any, w: Any) -> Any:
        return jnp.sin(x @ w)

    def other(x: Any, w: Any) -> Any:
        h = x @ w
        return jnp.sin(h)

    def at_the_call(x: Any, w: Any) -> Any:
        return sh.implicit_comm(sh.lift(jnp.matmul))(x, w)

    with sh.use_mesh(sh.abstract_mesh({"x": 2, "y": 4})):
        args = sh.abstract_array("f32[64,16@x]"), sh.abstract_array("f32[16@y,8]")
        for f, g in (
            (one, sh.implicit_comm(sh.lift(one))),
            (other, sh.implicit_comm(sh.lift(other))),
            (at_the_call,) * 2,
        ):
            places = {str(entry.place) for entry in sh.ledger(g, *args).entries}
            assert f"{Path(__file__).name}:{f.__code__.co_firstlineno + 1}" in places


def test_new_parameters_are_decided_in_one_search_and_no_op_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[Any]()

    def noted(of: Any, *args: Any, **kwargs: Any) -> Any:
        asked.append(of)
        return of(*args, **kwargs)

    for of in (Graph, complete._greedily):
        monkeypatch.setattr(complete, of.__name__, functools.partial(noted, of))
    with sh.use_mesh(sh.abstract_mesh({"x": 4, "y": 2})):
        args = (sh.abstract_array("f32[16,64@y]"), sh.abstract_array("f32[64@y,16]")), sh.abstract_array("f32[8@x,16]")
        found = sh.check(sh.implicit_comm(sh.lift(_new_parameters)), *args).results
    assert asked == [Graph]
    assert [str(t) for t in found] == ["f32[16,64@y]", "f32[64@y,16]"]


def test_a_program_that_takes_gradients_in_a_body_is_decided_as_a_whole() -> None:
    def steps(w: Any, x: Any) -> Any:
        return jax.lax.scan(lambda w, _: (w - sh.grad(lambda w: sh.sum(sh.sin(x @ w)))(w), None), w, None, length=2)[0]

    with sh.use_mesh(sh.abstract_mesh({"x": 2})):
        args = sh.abstract_array("f32[8,4]"), sh.abstract_array("f32[4@x,8]")
        report = sh.ledger(sh.implicit_comm(steps), *args)
    assert report.total.bytes > 0


@pytest.mark.mesh({"x": 2})
def test_of_plans_that_send_other_bytes_than_predicted_the_one_that_sends_least_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent, decided = iter([(90, 900), (50, 900), (90, 900), (90, 900), (60, 900)]), list[Any]()  # the last by greedy ops
    decide = complete._decide

    def noted(inputs: Any) -> Any:
        decided.append(decide(inputs))
        return decided[-1]

    monkeypatch.setattr(complete, "_sent", lambda ledger: next(sent))
    monkeypatch.setattr(complete, "_is_predicted", lambda *args: False)
    monkeypatch.setattr(Costs, "correct", lambda *args, **kwargs: True)
    monkeypatch.setattr(complete, "_decide", noted)
    sh.ledger(sh.implicit_comm(sh.lift(lambda x: jnp.cos(x).sum(0))), sh.abstract_array("f32[34,6@x]"))
    assert not isinstance(decided[0], str)
    assert next(sent, None) is None
