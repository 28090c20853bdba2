"""The ledger against the compiled program, and what it says of loops, branches, recomputation and native code."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import shtypes as sh
from shtypes.core.operation import direction_of
from shtypes.errors import ShardingTypeError
from shtypes.resharding.costs import LINKS, Link, as_cost_model, cost_model
from shtypes.resharding.devices import Device, as_device
from shtypes.tools.demo import gated_mlp
from shtypes.traced.ledger import Ledger, ledger, priced, priced_before_each, sent_by_program
from shtypes.traced.program import with_gradient, zero_cotangent
from tests.end_to_end import some
from tests.traced.compiled import assert_compiled_as_said, compiled_text, sent_by_compiled, sent_by_ledger
from tests.traced.random_programs import AXES, random_program

BATCH, HIDDEN, INNER = 8, 8, 16
_rng = np.random.default_rng(0)


pytestmark = pytest.mark.mesh(AXES)


def normal(*shape: int) -> np.ndarray[Any, Any]:
    return np.asarray(_rng.standard_normal(shape) / shape[-1] ** 0.5, np.float32)


def values() -> tuple[Any, Any, Any]:
    x, w_in, w_out = normal(BATCH, HIDDEN), normal(HIDDEN, INNER), normal(INNER, HIDDEN)
    return (
        sh.array(x, "f32[batch@dp, hidden]"),
        sh.array(w_in, "f32[hidden, inner@tp]"),
        sh.array(w_out, "f32[inner@tp, hidden]"),
    )


def mlp(x: Any, w_in: Any, w_out: Any) -> Any:
    return sh.all_reduce(sh.silu(x @ w_in) @ w_out, "tp")


# programs: each is a typed loss of `values()`


def loss(*args: Any) -> Any:
    out = mlp(*args)
    return sh.sum(out * out)


def scanned(x: Any, w_in: Any, w_out: Any, wrap: Callable[..., Any] = lambda f: f) -> Any:
    body = wrap(lambda c, _: (mlp(c, w_in, w_out), None))
    return sh.sum(sh.scan(body, x, None, 3)[0])


def nested(x: Any, w_in: Any, w_out: Any) -> Any:
    def outer(c: Any, _: Any) -> tuple[Any, None]:
        return sh.scan(lambda d, _: (mlp(d, w_in, w_out), None), c, None, 3)[0], None

    return sh.sum(sh.scan(outer, x, None, 2)[0])


def branched(x: Any, w_in: Any, w_out: Any) -> Any:
    chosen = sh.all_reduce(sh.sum(x)) > 0
    return sh.sum(sh.cond(chosen, lambda x: mlp(x, w_in, w_out), partly_gathered, x))


def partly_gathered(x: Any) -> Any:
    return sh.reshard(sh.sin(sh.all_gather(x, "dp", to="R")), dp=0)


def accumulated(x: Any, w_in: Any, w_out: Any) -> Any:
    """Gradients of microbatches, summed while they are pending, and reduced once."""

    def step(total: Any, factor: Any) -> tuple[Any, None]:
        return total + sh.grad(lambda w: loss(x * sh.constant(factor), w, w_out))(w_in), None

    total, _ = sh.scan(step, sh.zeros_like(w_in), jnp.arange(1.0, 4.0))
    return sh.sum(sh.sin(sh.all_reduce(total) if total.type.axes(sh.State.UNREDUCED) else total))


def chained(x: Any, w_in: Any, w_out: Any) -> Any:
    """Reshards of every kind, one after the other."""
    x = sh.sin(sh.reshard(x, "[batch, hidden@dp]"))
    x = sh.sin(sh.reshard(x, "[batch@tp, hidden@dp]"))
    x = sh.sin(sh.reshard(x, "[batch@dp, hidden@tp]"))
    x = sh.sin(sh.reshard(x, "[batch@(tp,dp), hidden]"))
    x = sh.sin(sh.reshard(x, "[batch@(dp,tp), hidden]"))
    return sh.sum(sh.sin(sh.reduce_scatter(sh.reshard(x, tp="R") @ w_in @ w_out, "tp", 1)))


PROGRAMS: dict[str, Callable[..., Any]] = {
    "mlp": loss,
    "scan": scanned,
    "checkpoint": lambda *args: sh.sum(sh.sin(sh.checkpoint(mlp)(*args))),
    "checkpoint in scan": lambda x, w_in, w_out: scanned(x, w_in, w_out, sh.checkpoint),
    "scan in checkpoint": sh.checkpoint(scanned),
    "scan in scan": nested,
    "branches": branched,
    "microbatches": accumulated,
    "reshards": chained,
}


@pytest.mark.one_in(29)
@pytest.mark.parametrize("policy", ["partial", "jax"])
@pytest.mark.parametrize("name", list(PROGRAMS))
def test_a_program_compiles_to_what_its_ledger_says_forward_and_backward(name: str, policy: str) -> None:
    with sh.policy(policy):
        said = assert_compiled_as_said(sh.value_and_grad(PROGRAMS[name], argnums=(0, 1, 2)), *values())
        assert said.forward()
        assert policy == "partial" or said.backward()


@pytest.mark.parametrize("policy", ["partial", "jax"])
def test_the_demo_compiles_to_what_its_ledger_says(policy: str) -> None:
    with sh.policy(policy):
        shapes = ((4, 8, 16), (16, 32), (16, 32), (32, 16))
        types = (gated_mlp.X, gated_mlp.W1, gated_mlp.W3, gated_mlp.W2)
        args = [sh.array(normal(*shape), t) for shape, t in zip(shapes, types, strict=True)]
        said = assert_compiled_as_said(sh.value_and_grad(gated_mlp.loss, argnums=(0, 1, 2, 3)), *args)
        assert bool(said) == (policy == "jax")


@pytest.mark.one_in(29)
@pytest.mark.parametrize("seed", range(some(12, 80)))
def test_a_random_program_compiles_to_what_its_ledger_says_forward_and_backward(seed: int) -> None:
    with sh.policy("jax" if seed % 2 else "partial"):
        program = random_program(seed)
        assert_compiled_as_said(program.gradients, program.values(), program.cotangents())


def test_the_comparison_tells_a_missing_collective() -> None:
    said = ledger(loss, *values())
    text = compiled_text(jax.jit(loss), *values())
    assert sent_by_compiled(text) == sent_by_ledger(said)
    assert sent_by_compiled(text) != sent_by_ledger(Ledger(said[1:]))
    assert sent_by_compiled(text) != sent_by_ledger(Ledger(e._replace(times=2) for e in said))


# what an entry says


def here(entry: Any) -> tuple[str, str, tuple[str, ...], int | None]:
    return entry.direction, entry.kind, entry.axes, entry.times


def gradients(f: Callable[..., Any]) -> Callable[..., Any]:
    return sh.value_and_grad(f, argnums=(0, 1, 2))


FORWARD, BACKWARD = ("forward", "all-reduce", ("tp",)), ("backward", "all-reduce", ("tp",))
RECOMPUTED = ("recomputed", "all-reduce", ("tp",))


@sh.custom_vjp
def halved(x: Any) -> Any:
    return sh.all_reduce(x)


halved.defvjp(lambda x: (sh.all_reduce(x), None), lambda _, ct: (sh.all_reduce(ct) * 0.5,))


def with_custom(x: Any, w_in: Any, w_out: Any) -> Any:
    return sh.sum(sh.sin(halved(sh.silu(x @ w_in) @ w_out)))


@jax.custom_jvp
def norm(x: Any) -> Any:
    return sh.sqrt(sh.all_reduce(sh.sum(x * x)))


@norm.defjvp
def _by_complete_products(primals: Any, tangents: Any) -> Any:
    """Sends back as much as the operand, where the function sends a number."""
    y = norm(*primals)
    return y, sh.sum(sh.all_gather(primals[0] * tangents[0], "dp")) / y


def norms(x: Any) -> Any:
    return lax.scan(lambda c, _: (c * norm(x), None), norm(x), None, length=3)[0]


@pytest.mark.parametrize("f", [norm, halved, jax.jit(norm), norms])
def test_the_price_of_a_function_with_derivative_rules_is_that_of_its_rules(f: Any) -> None:
    x = sh.abstract_array("f32[8@dp,3]{U:tp}" if f is halved else "f32[8@dp,3]")
    sent = ledger(with_gradient(f, zero_cotangent), x).backward()
    assert sent_by_program(jax.make_jaxpr(f)(x))[1] == sent.bytes > 0


@pytest.mark.parametrize(
    ("f", "expected"),
    [
        (gradients(loss), [(*FORWARD, 1), (*BACKWARD, 1)]),
        (gradients(jax.jit(loss)), [(*FORWARD, 1), (*BACKWARD, 1)]),
        (jax.jit(gradients(jax.jit(loss))), [(*FORWARD, 1), (*BACKWARD, 1)]),
        (sh.jit(gradients(loss)), [(*FORWARD, 1), (*BACKWARD, 1)]),
        (gradients(scanned), [(*FORWARD, 3), (*BACKWARD, 3)]),
        (gradients(nested), [(*FORWARD, 6), (*BACKWARD, 6)]),
        (gradients(sh.checkpoint(scanned)), [(*FORWARD, 3), (*RECOMPUTED, 3), (*BACKWARD, 3)]),
        (gradients(with_custom), [(*FORWARD, 1), (*BACKWARD, 1)]),
        (
            gradients(sh.checkpoint(lambda *args: sh.sum(sh.sin(mlp(*args) * mlp(*args))))),
            [(*FORWARD, 1), (*FORWARD, 1), (*RECOMPUTED, 1), (*RECOMPUTED, 1), (*BACKWARD, 1), (*BACKWARD, 1)],
        ),
    ],
    ids=["grad", "grad of jit", "jit of both", "sh.jit", "scan", "scans", "remat scan", "custom_vjp", "remat"],
)
def test_the_direction_and_the_count_come_through_every_transformation(f: Any, expected: list[Any]) -> None:
    assert sorted(here(e) for e in ledger(f, *values())) == sorted(expected)


def test_a_name_stack_tells_the_direction() -> None:
    assert direction_of("jit(f)/jvp(layer)") == "forward"
    assert direction_of("jit(f)/transpose(jvp(layer))") == "backward"
    assert direction_of("transpose(jvp(checkpoint))/rematted_computation/mul") == "recomputed"


def test_types_as_strings_are_arguments_as_of_other_reports() -> None:
    def f(x: Any, scale: float, *, w: Any) -> Any:
        return sh.reshard(x @ w["up"], "[...]") * scale

    with sh.use_mesh(sh.abstract_mesh({"x": 4})):
        as_text = sh.ledger(f, "f32[8,16@x]", 2.0, w={"up": "f32[16@x,4]"})
        assert as_text.entries
        assert as_text.entries == sh.check(f, "f32[8,16@x]", 2.0, w={"up": "f32[16@x,4]"}).ledger.entries
        for report in (sh.ledger, sh.check, sh.memory):
            with pytest.raises(sh.ShardingTypeError, match=rf"cannot read the type(?s:.)*: {report.__name__}"):
                report(f, "f32(8)", 2.0, w={})


def test_an_entry_names_the_users_line_and_who_wrote_it() -> None:
    def f(x: Any, lr: Any) -> Any:
        y = sh.all_gather(x, "dp")  # this line
        return sh.sum(y * lr)

    with sh.policy("jax"):
        args = sh.abstract_array("f32[8@dp,8]{R:tp}"), sh.abstract_array("f32[]{I:(dp,tp)}")
        found = ledger(sh.grad(f, argnums=(0, 1)), *args)
    first = f.__code__.co_firstlineno
    lines = [(e.place.line - first, e.place.function.rsplit(".", 1)[-1], e.kind, e.inserted) for e in found]
    assert (1, "f", "all-gather", False) in lines
    inserted = [(e.place.line - first, e.kind, e.axes) for e in found if e.inserted]
    assert inserted == [(2, "all-reduce", ("tp",))]


def test_a_conditional_counts_its_dearest_branch_and_lists_each() -> None:
    x = values()[0]
    found = ledger(
        lambda x, i: sh.switch(
            i,
            [
                sh.sum,
                lambda x: sh.reshard(sh.sin(sh.all_reduce(sh.sum(x), to="R")), dp="U"),
                lambda x: sh.reshard(sh.sum(sh.all_gather(sh.sin(x), "dp", to="R")), dp="U"),
            ],
            x,
        ),
        x,
        sh.array(np.int32(2), "[]"),
    )
    assert [(e.kind, e.branches[0].index, e.branches[0].count) for e in found] == [
        ("all-reduce", 1, 3),
        ("all-gather", 2, 3),
    ]
    assert found.bytes == found[1].bytes > found[0].bytes
    assert found.launches == 1


def test_a_while_loop_counts_once_and_says_so() -> None:
    x = values()[0]
    found = ledger(lambda x: sh.while_loop(lambda s: sh.all_reduce(sh.sum(s)) > 1, lambda s: s * 0.5, x), x)
    assert [e.times for e in found] == [None]
    assert not found.known
    assert found.bytes == found[0].bytes
    assert "how often it runs is not known" in str(found)


def dead(x: Any, w_in: Any, w_out: Any) -> Any:
    """Collectives whose results nothing uses: at the top, in loops, of one step too, in a call, in branches."""
    unused = sh.all_reduce(sh.sum(mlp(x, w_in, w_out)))

    def body(c: Any, _: Any) -> tuple[Any, Any]:
        a, b = c
        return (mlp(a, w_in, w_out), b + sh.all_reduce(sh.sum(a, 0))), sh.all_reduce(sh.sum(a))

    (kept, _), _ = sh.scan(body, (x, sh.zeros(f"f32[{HIDDEN}]")), None, 3)
    _, called = jax.jit(lambda x: (sh.all_reduce(sh.sum(x)), sh.sin(x)))(x)

    def branch(op: Any) -> Any:
        return lambda x: (sh.all_reduce(sh.sum(x)), op(x))

    _, chosen = sh.cond(sh.sum(w_in) is not unused, branch(sh.sin), branch(sh.cos), x)
    start = 0, x, sh.zeros("f32[]")
    _, looped, _ = sh.while_loop(
        lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * 2, s[2] + sh.all_reduce(sh.sum(s[1]))), start
    )
    _, once = sh.scan(lambda c, _: (mlp(c, w_in, w_out), sh.sin(c)), x, None, 1)
    return kept, called, chosen, looped, once


def test_a_collective_whose_result_nothing_uses_is_not_counted() -> None:
    found = assert_compiled_as_said(dead, *values())
    assert [here(e) for e in found] == [(*FORWARD, 3)]


# what it cannot see


def mapped(x: Any) -> Any:
    return jax.shard_map(lambda s: lax.psum(s, "dp"), in_specs=jax.P("dp"), out_specs=jax.P())(x)


@pytest.mark.parametrize(
    ("f", "name"),
    [
        (lambda x: jnp.sin(x.to_jax()), "sin"),
        (lambda x: mapped(x.to_jax()), "shard_map"),
        (lambda x: jax.jit(jnp.tanh)(x.to_jax()), "tanh"),
        (lambda x: lax.scan(lambda c, _: (jnp.cos(c), None), x.to_jax(), None, length=2)[0], "cos"),
        (lambda x: jax.reshard(x.to_jax(), jax.P(None, "dp")), "reshard"),
    ],
    ids=["native op", "shard_map", "in a jit", "in a scan", "JAX's reshard"],
)
def test_what_leaves_the_typed_world_is_listed_as_not_covered(f: Any, name: str) -> None:
    found = ledger(f, sh.array(normal(8, 8), "f32[8@dp,8]{I:tp}"))
    assert [n.what for n in found.not_covered] == [name]
    assert not found.known
    assert "not covered:" in str(found)
    assert name in str(found)


def test_replicated_plain_arrays_need_no_cover() -> None:
    def f(x: Any, step: Any) -> Any:
        scale = jnp.exp(-step * 0.1) + sh.reshard(sh.sum(x), "[]{I:(dp,tp)}").to_jax()
        return x * sh.constant(scale)

    found = ledger(f, values()[0], jnp.float32(3))
    assert not found.not_covered
    assert len(found) == 1


# sizes, types without devices, output


def test_a_ledger_needs_no_devices_and_takes_types() -> None:
    jax.set_mesh(None)
    with sh.use_mesh(sh.abstract_mesh({"dp": 64, "tp": 1})):
        texts = ("f32[128@dp,8]", "f32[8,16@tp]", "f32[16@tp,8]")
        found = ledger(mlp, *map(sh.ShType.parse, texts))
    assert [(e.kind, e.axes, e.bytes, e.launches) for e in found] == [("all-reduce", ("tp",), 0, 0)]


def test_totals_are_by_axes_kind_and_direction() -> None:
    found = ledger(gradients(chained), *values())
    for totals in (found.by_axes(), found.by_kind(), found.by_direction()):
        assert sum(t.bytes for t in totals.values()) == found.bytes
        assert sum(t.launches for t in totals.values()) == found.launches
    assert {"all-gather", "all-to-all", "reduce-scatter", "permute"} <= set(found.by_kind())


def test_the_json_holds_every_entry_and_the_totals() -> None:
    found = ledger(gradients(loss), *values())
    read = json.loads(found.to_json())
    assert read["schema"] == 1
    assert read["totals"]["bytes"] == found.bytes
    assert len(read["entries"]) == len(found)
    first = read["entries"][0]
    assert first["kind"] == "all-reduce"
    assert first["before"] == "f32[8@dp,8]{U:tp}"
    assert sh.ShType.parse(first["after"]) == found[0].dst
    assert set(first) == {
        *("kind", "axes", "dtype", "bytes", "launches", "times", "direction"),
        *("file", "line", "function", "before", "after", "inserted", "branches"),
    }


def test_the_text_is_a_table_with_totals() -> None:
    def f(x: Any) -> Any:
        return sh.all_gather(x, "dp")

    line = f.__code__.co_firstlineno + 1
    assert str(ledger(f, values()[0])) == (
        "line                direction  collective          dtype  B/device  times  types                  "
        "                      by\n"
        f"test_ledger.py:{line}  forward    all-gather over dp  f32         128      1  f32[batch@dp, hidden] -> "
        "f32[batch, hidden]  written\n"
        "total: 128 B/device in 1 collective (forward: 128 B/device in 1 collective)"
    )


def test_a_program_without_communication_says_so() -> None:
    assert str(ledger(sh.sin, values()[0])) == "no communication"


# costs


def test_a_cost_model_adds_steps_and_bytes() -> None:
    found = ledger(mlp, *values())
    (entry,) = found
    model = cost_model(Link(1e9, 1e-6), tp=Link(1e8, 1e-5))
    assert found.time(model) == pytest.approx(2 * 3 * 1e-5 + entry.bytes / 1e8)
    assert ledger(scanned, *values()).time(model) == pytest.approx(3 * found.time(model))


def test_times_are_by_axes_and_the_slowest_link_counts() -> None:
    model = cost_model("tpu-v5p-ici", dp="tpu-v5p-dcn")
    found = ledger(gradients(chained), *values())
    times = found.time_by_axes(model)
    assert sum(times.values()) == pytest.approx(found.time(model))
    assert set(times) == set(found.by_axes())
    for entry in found:
        link = LINKS["tpu-v5p-dcn" if "dp" in entry.axes else "tpu-v5p-ici"]
        assert model.seconds(entry) == pytest.approx(entry.bytes / link.bandwidth)


def test_every_known_link_names_its_source() -> None:
    assert all(link.source for link in LINKS.values())


def test_an_unknown_link_is_refused_with_the_known_ones() -> None:
    with pytest.raises(sh.ShardingTypeError, match=r"there is no link 'ether'; known are a100-nvlink"):
        cost_model("ether")


def test_links_by_axis_and_a_file_of_them_are_a_cost_model(tmp_path: Path) -> None:
    path = tmp_path / "machine.toml"
    links = "[links.tp]\nbandwidth = 2e9\n[links.default]\nbandwidth = 1e9\n"
    path.write_text("bandwidth = 1e12\n[flops]\nf32 = 1e12\n" + links)
    by_axis = {"tp": Link(2e9), "default": Link(1e9)}
    assert as_cost_model(str(path), "it is") == as_cost_model(by_axis, "it is") == cost_model(Link(1e9), tp=Link(2e9))
    assert as_device(str(path), "it is") == Device({"f32": 1e12}, 1e12)
    assert as_cost_model({"dp": "infiniband-ndr", "tp": "h100-nvlink"}, "").default == LINKS["infiniband-ndr"]


@pytest.mark.parametrize(
    ("links", "message"),
    [
        pytest.param({}, "takes a cost model, a link or the name of one", id="none"),
        pytest.param({"tp": "ether"}, "there is no link 'ether'", id="a name"),
        pytest.param({"tp": {"speed": 1.0}}, "are no attributes of a link", id="an attribute"),
        pytest.param("nowhere.toml", "describes no machine", id="no file"),
    ],
)
def test_what_is_no_link_is_said(links: Any, message: str) -> None:
    with pytest.raises(ShardingTypeError, match=message):
        sh.use_cost_model(links)


def _placed(k: Any, v: Any) -> Any:
    return jnp.sum(v.at[jnp.argsort(k)].set(jnp.sin(v)) * jnp.cos(jnp.arange(288.0)))


def _in_order(k: Any, v: Any) -> Any:
    return jnp.sum(jax.lax.sort((k, v), num_keys=1)[1] * jnp.cos(jnp.arange(288.0)))


#: Gradients whose forward values nobody uses, and results that nobody asks for: of what is sent for them nothing runs.
UNUSED: dict[str, Any] = {
    "the gradient of one of a sort": sh.grad(sh.lift(lambda k: jnp.sort(k)[3])),
    "the gradient of a median": sh.grad(sh.lift(jnp.median)),
    "the gradient of the largest few": sh.grad(sh.lift(lambda k: jnp.sum(jax.lax.top_k(k, 3)[0]))),
    "the places of the largest few": sh.lift(lambda k: jax.lax.top_k(k, 3)[1]),
    "the gradient of what is put in order": lambda k: sh.grad(lambda v: sh.lift(_placed)(k, v))(sh.cos(k)),
    "the gradient of rows in order": lambda k: sh.grad(lambda v: sh.lift(_in_order)(k, v))(sh.cos(k)),
    "the keys of a sort of several": sh.lift(lambda k: jax.lax.sort((k, jnp.cos(k)), num_keys=1)[0]),
    "rows that are found": sh.grad(sh.lift(lambda k: jnp.sum(k[jnp.argsort(k)] * jnp.arange(288.0)))),
}


@pytest.mark.nightly
@pytest.mark.mesh({"dp": 2, "tp": 4})
@pytest.mark.parametrize("program", UNUSED)
def test_what_is_sent_for_nothing_is_not_sent(program: str) -> None:
    """A derivative took the values that it is taken at, and a sort all operands, though nothing comes of them."""
    k = sh.array(np.random.default_rng(0).permutation(288).astype(np.float32), "f32[288@tp]")
    assert_compiled_as_said(sh.implicit_comm(UNUSED[program]), k)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: sh.sin(sh.reshard(x, "[_...]")),
        lambda x: sh.sum(x * x, 0),
        sh.floor,
        lambda x: sh.lift(lambda x: lax.while_loop(lambda c: c[0, 0] < 3.0, lambda c: c + 1.0, x))(
            sh.reshard(x, "[_...]")
        ),
    ],
    ids=["a collective", "a pending sum", "no gradient", "no derivative"],
)
def test_a_function_is_priced_before_others_as_they_are_composed(f: Callable[..., Any]) -> None:
    t = sh.abstract_array("f32[8@(dp,tp),8]").type
    after = [lambda y: y, lambda y: sh.reshard(y, "[_...]"), lambda y: sh.reshard(y, "[_...]{I:(dp,tp)}")]
    assert priced_before_each(f, [t], lambda _: after) == [priced(lambda x, g=g: g(f(x)), [t]) for g in after]
