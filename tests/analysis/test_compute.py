"""`compute`: closed forms, the compiler's own count of operations, and devices."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from shtypes.analysis.flops import product_flops
from shtypes.resharding.devices import DEVICES, as_device
from tests.compiling import compiled
from tests.tools.cli.running import Run, runner

run = pytest.fixture(runner)
MESH = sh.abstract_mesh({"dp": 4, "tp": 2})
N = 64


def work(f: Any, *types: Any, **more: Any) -> sh.Compute:
    return sh.compute(f, *types, mesh=MESH, **more)


# closed forms


def test_a_product_counts_two_for_each_term_of_the_device_s_part() -> None:
    found = work(lambda x, w: x @ w, f"bf16[{N}@dp, {N}]", f"bf16[{N}, {N}@tp]")
    assert found.products == {"bf16": 2 * (N // 4) * N * (N // 2)}
    assert found.bytes == 2 * (N * N // 4 + N * N // 2 + N * N // 8)


def test_what_is_fused_moves_no_bytes() -> None:
    found = work(lambda x: sh.sin(x) * 2.0 + 1.0, f"f32[{N}@dp, {N}]")
    assert (found.flops, found.bytes) == (3 * N * N // 4, 2 * 4 * N * N // 4)
    assert len(found.kernels) == 1


def test_what_is_fused_on_many_paths_is_read_once() -> None:
    def f(x: sh.Array) -> sh.Array:
        for _ in range(60):
            x = sh.sin(x) * x
        return sh.sum(x)

    with sh.use_mesh(sh.abstract_mesh({"x": 2})):
        (kernel,) = sh.compute(f, "f32[8@x,64]").kernels
    assert kernel.bytes == 8 // 2 * 64 * 4 + 4


def test_a_replicated_value_is_computed_on_every_device() -> None:
    split, whole = work(sh.exp, f"f32[{N}@dp]"), work(sh.exp, f"f32[{N}]")
    assert whole.flops == 4 * split.flops


def test_a_scan_counts_its_body_as_often_as_it_runs() -> None:
    def steps(x: Any, w: Any) -> Any:
        return sh.scan(lambda h, w: (h @ w, None), x, w)[0]

    found = work(steps, f"f32[{N}@dp, {N}]", f"f32[5, {N}, {N}]")
    assert found.products == {"f32": 5 * 2 * N * N * N // 4}
    assert [k.runs for k in found.kernels if k.dtype] == [5]


def test_a_while_loop_counts_once_and_the_report_says_so() -> None:
    found = work(lambda x: sh.while_loop(lambda s: sh.sum(s) < 9.0, lambda s: s * 2.0, x), f"f32[{N}]")
    assert not found.known
    assert "counts once" in str(found)


def test_the_dearest_branch_counts() -> None:
    def either(flag: Any, x: Any) -> Any:
        return sh.cond(flag, lambda x: x @ x, lambda x: x + 1.0, x)

    assert work(either, "bool[]", f"f32[{N}, {N}]").products == {"f32": 2 * N**3}


def test_of_a_slice_only_what_is_taken_is_read() -> None:
    assert work(lambda x: x[:2], f"f32[{N}, {N}]").bytes == 2 * (2 * N * 4)


@pytest.mark.parametrize(
    ("f", "shape", "flops"),
    [
        (lambda x: sh.sum(x, axis=1), (8, 16), 8 * 16),
        (lambda x: sh.sort(x, axis=1), (8, 16), 8 * 16 * 4),
        (lambda x: sh.linalg.cholesky(x @ x.T + sh.eye(8)), (8, 8), 2 * 8**3 + 8**3 // 3),
        (lambda x: sh.cumsum(x, axis=1), (8, 16), 8 * 16),
    ],
    ids=["sum", "sort", "cholesky", "cumsum"],
)
def test_other_operations_count_by_their_leading_term(f: Any, shape: tuple[int, ...], flops: int) -> None:
    found = work(f, sh.ShType.parse(f"f32{list(shape)}", MESH)).flops
    assert flops <= found <= flops * 1.5 + 16


def test_a_convolution_counts_its_window() -> None:
    found = work(
        lambda x, k: sh.conv_general_dilated(x, k, (1, 1), "VALID"), "f32[8@dp, 3, 10, 10]", "f32[6@tp, 3, 3, 3]"
    )
    assert found.products == {"f32": 2 * (8 // 4) * (6 // 2) * 8 * 8 * 3 * 3 * 3}


def test_of_a_dilated_operand_only_what_is_there_counts() -> None:
    def upsampled(x: Any, k: Any) -> Any:
        return sh.conv_general_dilated(x, k, (1, 1), [(0, 0), (0, 0)], lhs_dilation=(2, 2))

    found = work(upsampled, "f32[8@dp, 3, 5, 5]", "f32[6, 3, 3, 3]")
    assert found.products == {"f32": 2 * 2 * 6 * 7 * 7 * 3 * 3 * 3 // 4}


def test_each_row_of_a_ragged_product_counts_once() -> None:
    ragged = sh.lift(jax.lax.ragged_dot)
    assert work(ragged, "f32[16, 8]", "f32[4, 8, 6]", "i32[4]").products == {"f32": 2 * 16 * 8 * 6}


def test_an_equation_of_a_plain_program_counts_alike() -> None:
    plain = lambda x, w, sizes: jax.lax.ragged_dot(jnp.tanh(x), w, sizes)  # noqa: E731
    shapes = [jax.ShapeDtypeStruct(s, d) for s, d in (((16, 8), "f4"), ((4, 8, 6), "f4"), ((4,), "i4"))]
    counts = [product_flops(eqn) for eqn in jax.make_jaxpr(plain)(*shapes).jaxpr.eqns]
    assert counts == [None, 2 * 16 * 8 * 6]


def test_collectives_are_the_ledgers() -> None:
    found = work(lambda x: sh.reshard(x, "[_]"), f"f32[{N}@dp]")
    assert (found.flops, found.kernels) == (0, ())


def test_a_callback_is_named_as_not_counted() -> None:
    def called(x: Any) -> Any:
        return sh.shard_map(
            lambda x: jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x),
            in_specs="f32[8@dp]",
            out_specs="f32[8@dp]",
        )(x)

    found = work(called, "f32[8@dp]")
    assert found.not_counted == ("pure_callback",)
    assert "not counted: pure_callback" in str(found)


# the compiler's count


def mlp(w: Any, x: Any) -> Any:
    h = sh.nn.gelu(x @ w[0]) @ w[1]
    return sh.sum(sh.square(sh.reshard(h, "[_@dp, _]")))


def convolutions(w: Any, x: Any) -> Any:
    h = sh.relu(sh.conv_general_dilated(x, w[0], (1, 1), "VALID"))
    return sh.sum(sh.square(sh.conv_general_dilated(h, w[1], (2, 2), "VALID")))


def attention(w: Any, x: Any) -> Any:
    q, k, v = (sh.einsum("bsd,dhk->bhsk", x, w_) for w_ in w[:3])
    scores = sh.softmax(sh.einsum("bhsk,bhtk->bhst", q, k), axis=-1)
    return sh.sum(sh.square(sh.einsum("bhst,bhtk->bshk", scores, v)))


PROGRAMS = {
    "mlp": (mlp, ("f32[64, 256@tp]", "f32[256@tp, 64]"), "f32[64@dp, 64]"),
    "convolutions": (convolutions, ("f32[16, 8, 3, 3]", "f32[8, 16, 3, 3]"), "f32[8@dp, 8, 16, 16]"),
    "attention": (attention, ("f32[64, 4@tp, 16]",) * 3, "f32[4@dp, 32, 64]"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_operations_are_the_compilers(name: str) -> None:
    loss, weights, batch = PROGRAMS[name]
    mesh = sh.make_mesh({"dp": 2, "tp": 2})
    step = sh.train_step(loss)
    with sh.use_mesh(mesh):
        args = jax.tree.map(sh.abstract_array, (weights, batch))
        found = sh.compute(step, *args)
        analysis = compiled(jax.jit(step).lower(*args)).cost_analysis()
    theirs = (analysis[0] if isinstance(analysis, list) else analysis)["flops"]
    assert found.flops == pytest.approx(theirs, rel=0.03)


LENGTH = 4096
#: Functions of two arrays of n numbers whose result two kernels read; one array more where memory has it.
READ_TWICE: dict[str, Callable[[Any, Any], Any]] = {
    "one array": lambda x, y: y + 3.0,
    "twice the same": lambda x, y: y + y,
    "by a number": lambda x, y: y / 3.0,
    "sines": lambda x, y: jnp.sin(y),
    "one number": lambda x, y: jnp.broadcast_to(y[0], y.shape),
    "places": lambda x, y: jnp.arange(LENGTH, dtype=y.dtype),
    "a comparison": lambda x, y: (y > 0).astype(y.dtype),
    "rows": lambda x, y: (y[:64, None] + y[None, :64]).reshape(LENGTH),
    "reversed": lambda x, y: y[::-1],
    "two arrays": lambda x, y: x + y,
    "one of two": lambda x, y: jnp.where(x > 0, x, y),
    "exponentials": lambda x, y: jnp.exp(y),
    "lookups": lambda x, y: y[jnp.abs(x * 8).astype(jnp.int32)],
}


@pytest.mark.parametrize("first", ["before", "at once"])
def test_what_the_compiler_computes_again_is_not_in_memory(first: str) -> None:
    numbers = jax.ShapeDtypeStruct((LENGTH,), jnp.float32)
    for name, function in READ_TWICE.items():

        def f(x: Any, y: Any, function: Callable[[Any, Any], Any] = function) -> Any:
            b = function(x, y)
            z = jnp.sort(x * b)
            return z, jnp.sort(b + (z if first == "before" else x))

        with sh.use_mesh(sh.abstract_mesh({"dp": 1})):
            found = sh.compute(sh.lift(f), f"f32[{LENGTH}]", f"f32[{LENGTH}]").bytes
        analysis = compiled(jax.jit(f).lower(numbers, numbers)).cost_analysis()
        theirs = (analysis[0] if isinstance(analysis, list) else analysis)["bytes accessed"]
        assert found == pytest.approx(theirs, rel=0.02), name


# one trace


@pytest.mark.parametrize("grad", [False, True], ids=["forward", "backward too"])
def test_a_signature_has_all_reports_of_one_trace(grad: bool) -> None:
    traces = []

    def loss(x: Any, w: Any) -> Any:
        traces.append(1)
        return sh.sum(sh.square(sh.reshard(x @ w, "[_, _]")))

    types = f"f32[{N}@dp, {N}]", f"f32[{N}, {N}@tp]"
    found = sh.check(loss, *types, mesh=MESH, grad=grad)
    memory, computed, ledger = found.memory, found.compute("h100-sxm"), found.ledger
    assert len(traces) == 1
    assert memory == sh.memory(loss, *types, mesh=MESH, grad=grad)
    assert computed == sh.compute(loss, *types, mesh=MESH, grad=grad, device="h100-sxm")
    assert ledger.bytes > 0


def test_a_signature_of_a_jitted_function_keeps_its_donation() -> None:
    step = sh.jit(lambda x, y: x - y, donate_argnums=0)
    types = f"f32[{N}@dp]", f"f32[{N}@dp]"
    assert sh.check(step, *types, mesh=MESH).memory == sh.memory(step, *types, mesh=MESH)


# devices


def test_a_kernel_takes_the_longer_of_computing_and_moving() -> None:
    device = sh.Device({"bf16": 1e6, "f32": 1e3}, bandwidth=1e4, efficiency=0.5)
    assert device.seconds(1e6, "bf16", 1e4) == 2.0
    assert device.seconds(1.0, "bf16", 3e4) == 3.0
    assert device.rate("f16") == 500.0  # that of the slowest dtype
    found = work(lambda x, w: x @ w, f"f32[{N}, {N}]", f"f32[{N}, {N}]", device=device)
    assert found.seconds() == max(2 * N**3 / 500.0, 3 * 4 * N * N / 1e4)


def test_known_devices_say_where_their_figures_come_from() -> None:
    assert all(device.source and device.memory for device in DEVICES.values())


def test_a_file_describes_a_device(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("bandwidth = 2e12\nefficiency = 0.7\n[flops]\nbf16 = 4e14\n")
    assert as_device(str(path), "this takes") == sh.Device({"bf16": 4e14}, 2e12, efficiency=0.7)
    path.write_text("speed = 3")
    with pytest.raises(sh.ShardingTypeError, match="describes no device"):
        as_device(str(path), "this takes")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: sh.Device({}, 1e9),
        lambda: sh.Device({"bf16": -1.0}, 1e9),
        lambda: sh.Device({"bf16": math.inf}, 1e9),
        lambda: sh.Device({"bf16": 1e9}, 0),
        lambda: sh.Device({"bf16": 1e9}, 1e9, efficiency=1.5),
        lambda: sh.Device({"half": 1e9}, 1e9),
        lambda: work(sh.exp, "f32[8]", device="h1000"),
        lambda: work(sh.exp, "f32[8]", device=3),
        lambda: work(sh.exp, "f32[8]").seconds(),
    ],
)
def test_a_wrong_device_is_refused_in_words(wrong: Any) -> None:
    with pytest.raises(sh.ShardingTypeError):
        wrong()


# output


def test_json_has_every_kernel() -> None:
    found = work(lambda x, w: sh.tanh(x @ w), f"f32[{N}@dp, {N}]", f"f32[{N}, {N}]", device="h100-sxm")
    read = json.loads(found.to_json())
    assert read["flops"] == found.flops == sum(k["runs"] * k["flops"] for k in read["kernels"])
    assert read["seconds"] == found.seconds()


def test_the_command_prints_the_report(run: Run) -> None:
    result = run("compute", "examples/gated_mlp.py:loss", "--mesh", "dp=2,tp=2", "--grad", "--device", "h100-sxm")
    assert result.code == 0
    assert "products in f32" in result.out
    assert "time" in result.out


# the price of a reshard


def test_a_price_is_what_the_plan_and_its_transpose_send() -> None:
    src, dst = "f32[8@dp, 16]", "[_, _@dp]"
    found, plan = sh.price(src, dst, mesh=MESH), sh.explain_reshard(src, dst, mesh=MESH)
    assert plan.backward is not None
    assert (found.forward_bytes, found.backward_bytes) == (plan.forward.bytes, plan.backward.bytes)
    assert found.bytes == found.forward_bytes + found.backward_bytes
    assert (found.seconds, found.held_bytes) == (None, 0)


def test_integers_have_no_backward_price() -> None:
    found = sh.price("i32[8@dp]", "[_]", mesh=MESH, model="h100-nvlink")
    assert (found.backward_bytes, found.backward_seconds) == (0, 0.0)
    assert found.forward_seconds == found.forward_bytes / 450e9


def test_a_price_of_no_type_is_refused_in_words() -> None:
    with pytest.raises(sh.ShardingTypeError, match="`price` starts from a sharding type"):
        sh.price(3, "[_]", mesh=MESH)
