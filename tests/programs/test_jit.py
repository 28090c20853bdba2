"""`sh.jit`: the surface of `jax.jit` on typed values, its caches, and what it does with what no region can hold."""

from __future__ import annotations

import copy
import functools
import inspect
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import shtypes as sh
from shtypes._compat import jaxprs
from shtypes.core.local import local
from shtypes.core.shard_fn import ShardFn
from tests.tolerance import assert_close

X = np.arange(32, dtype=np.float32).reshape(4, 8)
W = X.T / 16


@pytest.fixture(autouse=True)
def mesh() -> Iterator[Any]:
    found = sh.make_mesh({"dp": 2, "tp": 2})
    sh.set_mesh(found)
    yield found
    sh.set_region("auto")


def x() -> Any:
    return sh.array(X, "f32[4@dp, 8]")


def w() -> Any:
    return sh.array(W, "f32[8, 4@tp]")


def plain(v: Any) -> Any:
    return sh.reshard(v, "[]{I:(dp,tp)}").to_jax()


def loss(x: Any) -> Any:
    return plain(sh.sum(sh.sin(x)))


def regions(f: Callable[..., Any], *args: Any) -> int:
    text: str = sh.jit(f).lower(*args).as_text()
    return text.count("sdy.manual_computation")


def close(found: Any, wanted: Any) -> None:
    assert_close(np.asarray(found), np.asarray(wanted))


# as a decorator


def test_it_decorates_a_function_and_keeps_what_it_says_of_itself() -> None:
    @sh.jit
    def double(v: int) -> int:
        """Doubles."""
        return v * 2

    assert (double.__name__, double.__doc__) == ("double", "Doubles.")
    assert str(inspect.signature(double)) == "(v: 'int') -> 'int'"
    assert double.__wrapped__(3) == 6
    assert "double" in repr(double)
    close(double(x()), 2 * X)


def test_it_makes_decorators() -> None:
    @sh.jit(static_argnums=1)
    def times(v: Any, n: int) -> Any:
        return v * float(n)

    @functools.partial(sh.jit, static_argnames="n")
    def also_times(v: Any, n: int) -> Any:
        return v * float(n)

    close(times(x(), 3), 3 * X)
    close(also_times(x(), n=3), 3 * X)


def test_it_decorates_methods() -> None:
    class Model:
        scale = 3.0

        @functools.partial(sh.jit, static_argnums=0)
        def run(self, v: Any) -> Any:
            return v * self.scale

    close(Model().run(x()), 3 * X)
    assert isinstance(Model.run, type(sh.jit(abs)))


# static and donated arguments


@pytest.mark.parametrize(
    ("options", "call"),
    [
        pytest.param({"static_argnums": 1}, lambda f, v: f(v, 3), id="by place"),
        pytest.param({"static_argnums": -1}, lambda f, v: f(v, 3), id="by place from the end"),
        pytest.param({"static_argnums": 1}, lambda f, v: f(v, n=3), id="by place, given by name"),
        pytest.param({"static_argnames": "n"}, lambda f, v: f(v, 3), id="by name, given by place"),
        pytest.param({"static_argnames": ("n",)}, lambda f, v: f(n=3, v=v), id="all by name"),
        pytest.param({"static_argnames": "n"}, lambda f, v: f(v), id="left out"),
    ],
)
def test_static_arguments_are_constants(options: dict[str, Any], call: Callable[..., Any]) -> None:
    @sh.jit(**options)
    def f(v: Any, n: int = 3) -> Any:
        assert type(n) is int
        return v * float(n)

    close(call(f, x()), 3 * X)


def test_another_static_argument_is_another_program() -> None:
    f = sh.jit(lambda v, n: v * float(n), static_argnums=1)
    for n in (2, 3, 2, 2.0, True):
        close(f(x(), n), n * X)


def test_a_static_argument_without_a_hash_is_jax_s_error_in_our_words() -> None:
    with pytest.raises(ValueError, match="a static argument of `<lambda>` has no hash: it is of class `list`") as info:
        sh.jit(lambda v, n: v, static_argnums=1)(x(), [1])
    assert isinstance(info.value, sh.ShardingTypeError)
    assert "Non-hashable static" in str(info.value.__cause__)


@pytest.mark.parametrize(
    ("options", "call"),
    [
        pytest.param({"donate_argnums": 1}, lambda f, a, b: f(a, b), id="by place"),
        pytest.param({"donate_argnums": (1,)}, lambda f, a, b: f(a, b=b), id="by place, given by name"),
        pytest.param({"donate_argnames": "b"}, lambda f, a, b: f(a, b), id="by name, given by place"),
        pytest.param({"donate_argnames": "b"}, lambda f, a, b: f(b=b, a=a), id="by name"),
    ],
)
def test_donated_arguments_are_freed_and_others_are_not(options: dict[str, Any], call: Callable[..., Any]) -> None:
    kept, donated = x(), x()
    first, second = call(sh.jit(lambda a, b: (a * 2.0, b * 1.0), **options), kept, donated)
    close(first, 2 * X)
    close(second, X)
    assert donated.is_deleted()
    assert not kept.is_deleted()


def test_what_was_donated_is_refused_where_it_is_donated_again() -> None:
    donated = x()
    f = sh.jit(lambda state: state * 2.0, donate_argnums=0)
    close(f(donated), 2 * X)
    f(x())
    with pytest.raises(sh.ShardingTypeError, match="that was deleted") as refused:
        f(donated)
    assert "test_jit.py" in refused.value.where


@pytest.mark.parametrize("both", [(0, 1), (1,)], ids=["both donated", "one donated"])
def test_one_array_cannot_be_donated_and_given_twice(both: tuple[int, ...]) -> None:
    f, a = sh.jit(lambda params, average: (params * 2.0, average * 1.0), donate_argnums=both), x()
    with pytest.raises(sh.ShardingTypeError, match="twice, and may donate it"):
        f(a, a)
    with pytest.raises(sh.ShardingTypeError, match="twice, and may donate it"):
        f(a, sh.reshard(a, tp="I"))
    close(f(a, copy.deepcopy(a))[0], 2 * X)


def test_places_of_donated_arguments_count_static_ones() -> None:
    kept, donated = x(), x()
    f = sh.jit(lambda a, n, b: (a * n, b * n), donate_argnums=2, static_argnums=1)
    close(f(kept, 2.0, donated)[1], 2 * X)
    assert donated.is_deleted()
    assert not kept.is_deleted()


def test_every_parameter_of_a_training_step_is_updated_in_place() -> None:
    def step(params: Any, v: Any) -> Any:
        grads = jax.grad(lambda p: plain(sh.sum(sh.all_reduce(sh.tanh(v @ p["a"]) @ p["b"], "tp"))))(params)
        return jax.tree.map(lambda p, g: p - 0.1 * sh.reshard(g, p.type), params, grads)

    params = {"a": sh.array(W, "f32[8, 4@tp]"), "b": sh.array(X, "f32[4@tp, 8]")}
    text = sh.jit(step, donate_argnums=0).lower(params, x()).compile().as_text()
    (aliases,) = re.findall(r"input_output_alias=\{(.*?)\}, entry", text)
    assert aliases.count("alias)") == len(params)


# ahead of time


def test_traced_lowered_and_compiled_programs_take_and_give_typed_values() -> None:
    def program(v: Any, u: Any, scale: Any) -> Any:
        return {"product": v @ u, "scale": scale * 2}

    traced = sh.jit(program).trace(x(), w(), 1.5)
    assert "dot_general" not in str(traced.jaxpr)
    assert "f32[4@dp,4@tp]" in str(traced.jaxpr)
    assert traced.out_info["product"].type == sh.ShType.parse("f32[4@dp,4@tp]")
    assert traced.out_info["scale"].shape == ()
    assert traced.fun_name == "program"
    lowered = traced.lower()
    assert lowered.as_text().startswith("module @jit_program")
    compiled = lowered.compile()
    assert compiled.cost_analysis()["flops"] > 0
    assert compiled.memory_analysis().argument_size_in_bytes > 0
    found = compiled(x(), w(), 1.5)
    close(found["product"], X @ W)
    assert found["product"].type == compiled.out_info["product"].type
    assert float(found["scale"]) == 3


def test_types_are_enough_to_compile() -> None:
    f = sh.jit(lambda v, a: (v * 2.0, a * 2))
    compiled = f.lower(sh.abstract_array("f32[4@dp, 8]"), jax.ShapeDtypeStruct((2,), np.float32)).compile()
    first, second = compiled(x(), jnp.ones(2))
    close(first, 2 * X)
    close(second, [2, 2])
    assert f.eval_shape(x(), 1.0)[0].type == x().type


def test_a_mesh_without_devices_is_enough_to_lower() -> None:
    jax.set_mesh(None)
    with sh.use_mesh(sh.abstract_mesh({"dp": 64, "tp": 8})):
        v = sh.abstract_array("f32[64@dp, 8]")
        lowered = sh.jit(lambda v: sh.all_reduce(sh.sum(v))).trace(v).lower(lowering_platforms=("tpu",))
    assert lowered.as_text().count("sdy.manual_computation") == 1
    assert '"dp"=64' in lowered.as_text()


def test_compiled_programs_refuse_what_they_were_not_compiled_for() -> None:
    compiled = sh.jit(lambda v: v * 2.0).lower(x()).compile()
    with pytest.raises(sh.ShardingTypeError, match=re.escape("is f32[4@dp,8], not f32[8,4@tp]")):
        compiled(w())
    with sh.use_mesh(sh.make_mesh({"dp": 4})):
        other = sh.array(X, "f32[4@dp, 8]")
    with pytest.raises(
        sh.ShardingTypeError, match=re.escape(f"f32[4@dp,8] on ({x().type.mesh}), not f32[4@dp,8] on (dp=4)")
    ):
        compiled(other)
    with pytest.raises(sh.ShardingTypeError, match="not a plain array"):
        compiled(X)
    with pytest.raises(sh.ShardingTypeError, match="structure"):
        compiled(x(), x())
    with pytest.raises(sh.ShardingTypeError, match="transformed"):
        jax.jit(compiled)(x())


def test_a_program_compiled_op_by_op_takes_arguments_that_it_does_not_need() -> None:
    f = sh.jit(lambda v, unread, nothing: (sh.diff(v[:, :1], axis=1), unread.shape[0]), region="off")
    compiled = f.lower(x(), w(), None).compile()
    assert compiled(x(), w(), None)[0].type == f(x(), w(), None)[0].type


def test_what_a_compiled_program_captured_is_not_in_its_text() -> None:
    captured = w()
    compiled = sh.jit(lambda v: v @ captured).lower(x()).compile()
    close(compiled(x()), X @ W)
    assert compiled.memory_analysis().argument_size_in_bytes == 2 * X.nbytes // 2


# caches


def test_equal_types_share_a_trace_and_others_do_not() -> None:
    seen: list[Any] = []

    @sh.jit
    def f(v: Any, a: Any) -> Any:
        seen.append(v.type)
        return v * 2.0, a

    for v, a in ((x(), 1.0), (x(), 2.0), (sh.array(X, "f32[a@dp, b]"), 1.0)):
        f(v, a)
    assert len(seen) == 1
    f(sh.array(X, "f32[4@dp, 8]{I:tp}"), 1.0)
    f(x(), 1)
    f(x(), jnp.ones(3))
    assert len(seen) == 4
    f(x(), 1)
    assert len(seen) == 4
    f.clear_cache()
    f(x(), 1)
    assert len(seen) == 5


class Box:
    """A pytree that hands on what its value says of itself."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.value, name)


jax.tree_util.register_pytree_node(Box, lambda box: ((box.value,), None), lambda _, value: Box(*value))


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    "other",
    [
        lambda v: {"a": v, "c": v},
        lambda v: {"a": v},
        lambda v: {"a": v, "b": (v, v)},
        lambda v: {"a": v, "b": {"a": v}},
        lambda v: {"a": v, "b": None},
        lambda v: {"a": v, "b": v.to_jax()},
        lambda v: {"a": v, "b": sh.reshard(v, "[4, 8]")},
        lambda v: {"a": v, "b": Box(v)},
        lambda v: [v, v],
    ],
    ids=["keys", "fewer", "a tuple", "a dict", "None", "plain", "another type", "a node like a value", "a list"],
)
def test_a_call_of_another_structure_is_never_taken_for_the_last_one(other: Callable[[Any], Any]) -> None:
    f = sh.jit(lambda tree: jax.tree.map(lambda v: v * 2.0, tree))
    given = {"a": x(), "b": x()}
    for _ in range(3):
        f(given)
    wanted = other(x())
    found = f(wanted)
    assert str(jax.tree.structure(found)) == str(jax.tree.structure(wanted))
    for mine, v in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert sh.typeof(mine) == sh.typeof(v) if isinstance(v, sh.Array) else not isinstance(mine, sh.Array)
        close(mine, 2 * X)
    assert str(jax.tree.structure(f(given))) == str(jax.tree.structure(given))


def test_equal_types_with_other_names_are_one_program_each_time() -> None:
    f = sh.jit(lambda v: v + 1.0)
    for text in ["f32[batch@dp, 8]", "f32[4@dp, hidden]", "f32[4@dp, 8]"] * 3:
        close(f(sh.array(X, text)), X + 1)
    assert len(f._programs) == 1


def test_calls_of_a_known_program_stay_in_jax_s_fast_path() -> None:
    f = sh.jit(lambda v: v * 2.0)
    jax.block_until_ready(f(x()))
    v = x()
    program = f._last
    count = 0

    def watched(*args: Any) -> Any:
        nonlocal count
        count += 1
        return original(*args)

    assert program is not None
    original, program._on_physical_arrays = program._on_physical_arrays, watched  # type: ignore[assignment, method-assign]
    for _ in range(3):
        jax.block_until_ready(f(v))
    assert count == 0
    assert program.fn._cache_size() == 1


def test_a_call_of_a_known_program_runs_little_python() -> None:
    f, v, names = sh.jit(lambda v: v * 2.0), x(), list[str]()
    for _ in range(2):
        jax.block_until_ready(f(v))

    def note(frame: Any, event: str, arg: Any) -> None:
        if event == "call":
            names.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        result = f(v)
    finally:
        sys.setprofile(None)
    close(result, 2 * X)
    assert "wrap" in names
    assert len(names) < 15, names


def test_what_is_in_force_later_holds_for_a_known_program() -> None:
    f, v = sh.jit(lambda v: sh.all_gather(v, "dp") + 0.0), x()

    def calls() -> None:
        for _ in range(2):
            close(f(v), X)

    for _ in range(2):
        calls()
        with pytest.raises(sh.ShardingTypeError, match="scope comes to 2"), sh.comm_budget(launches=1):
            calls()
        with pytest.raises(sh.ShardingTypeError, match="no_comm"), sh.no_comm():
            f(v)
    traced = jax.make_jaxpr(lambda: f(v))()  # nothing that is given is traced
    assert [eqn.primitive.name for eqn in traced.eqns] == ["jit"]


def test_a_policy_has_its_own_traces_and_captured_values() -> None:
    other = sh.array(2 * W, "f32[8, 4@tp]")
    first = w()

    @sh.jit
    def f(v: Any) -> Any:
        return sh.all_gather(v @ (first if sh.current_policy() == "partial" else other), "dp")

    for _ in range(2):
        found = f(x())
        close(found, X @ W)
        assert found.type.state("dp") is sh.State.REDUCED
        with sh.policy("jax"):
            found = f(x())
            close(found, 2 * X @ W)
            assert found.type.state("dp") is sh.State.INVARIANT


def test_a_global_policy_has_its_own_traces() -> None:
    f = sh.jit(lambda v: sh.all_gather(v, "dp"))
    assert f(x()).type.state("dp") is sh.State.REDUCED
    sh.set_policy("jax")
    assert f(x()).type.state("dp") is sh.State.INVARIANT
    sh.set_policy("partial")
    assert f(x()).type.state("dp") is sh.State.REDUCED


def test_a_mesh_has_its_own_traces(mesh: Any) -> None:
    f = sh.jit(lambda n: sh.ones("f32[8@dp]") * n)
    assert str(f(1).type.mesh) == str(sh.typeof(x()).mesh)
    with sh.use_mesh(sh.make_mesh({"dp": 4})):
        assert f(1).type.mesh.size == 4
    assert f(1).type.mesh.size == 4
    assert "tp" in f(1).type.mesh.axis_names


def test_jax_s_configuration_has_its_own_traces() -> None:
    f = sh.jit(lambda v: v @ v.T if v.ndim == 0 else sh.einsum("bh,ch->bc", v, sh.all_gather(v, "dp")))
    assert "HIGHEST" not in f.lower(x()).as_text()
    with jax.default_matmul_precision("highest"):
        assert "HIGHEST" in f.lower(x()).as_text()


def test_values_know_their_mesh_where_none_is_in_context() -> None:
    v, u, t = x(), w(), x().type
    jax.set_mesh(None)
    close(sh.jit(lambda v: v @ u)(v), X @ W)
    close(sh.jit(lambda: sh.zeros(t) + 1.0)(), np.ones_like(X))


# under transformations, and around what no region can hold


def test_under_a_transformation_the_outermost_jit_makes_the_region() -> None:
    inner = sh.jit(sh.sin)
    typed = sh.grad(lambda v: sh.sum(inner(v)))
    close(sh.reshard(typed(x()), x().type), np.cos(X))
    assert regions(typed, x()) == 1
    close(sh.vmap(inner)(sh.array(X[None], "f32[1, 4@dp, 8]")), np.sin(X)[None])
    assert "jit" in str(jax.make_jaxpr(inner)(x()))
    assert jax.eval_shape(inner, x()) == x().type
    assert inner.eval_shape(x()).type == x().type


def test_a_value_of_an_outer_trace_may_be_captured() -> None:
    def outer(u: Any) -> Any:
        return plain(sh.sum(sh.jit(lambda v: v @ u)(x())))

    wanted = jax.jit(jax.grad(lambda u: (X @ u).sum()))(W)
    close(sh.reshard(jax.grad(outer)(w()), w().type), wanted)
    close(sh.reshard(sh.jit(jax.grad(outer))(w()), w().type), wanted)


def test_inside_a_shard_map_it_uses_the_axes_that_are_left(mesh: Any) -> None:
    def body(a: Any) -> Any:
        total = sh.jit(lambda v: sh.sum(v * 2.0))(sh.ones("f32[4@tp]"))
        return a * sh.reshard(total, tp="I").to_jax()

    mapped = jax.shard_map(body, mesh=mesh, in_specs=jax.P("dp"), out_specs=jax.P("dp"), axis_names={"dp"})
    rows = jax.device_put(X, jax.NamedSharding(mesh, jax.P("dp")))
    close(jax.jit(mapped)(rows), 8 * X)
    close(sh.jit(lambda v: mapped((v * 2.0).to_jax()))(x()), 16 * X)


def test_automatic_axes_work_as_explicit_ones() -> None:
    jax.set_mesh(jax.make_mesh((2, 2), ("dp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2))
    grad = jax.grad(lambda v, u: plain(sh.sum(sh.tanh(v @ u))), argnums=(0, 1))
    for found, wanted in zip(sh.jit(grad)(x(), w()), jax.jit(grad)(x(), w()), strict=True):
        assert found.type == wanted.type
        close(found.data, wanted.data)
    assert regions(grad, x(), w()) == 1
    close(sh.jit(lambda v: (v * 2.0).to_jax() + 1.0)(x()), 2 * X + 1)
    sharded = jax.device_put(X, jax.NamedSharding(jax.sharding.get_mesh(), jax.P("dp")))
    add = sh.jit(lambda v, a: v + sh.from_jax(a, "f32[4@dp, 8]"))
    close(add(x(), sharded), 2 * X)
    assert "all-gather" not in add.lower(x(), sharded).compile().as_text()


def test_what_no_region_knows_is_left_to_jax() -> None:
    def with_a_reference(v: Any) -> Any:
        ref = jax.new_ref(v)
        ref[...] = ref[...] * 2.0
        return ref[...]

    f = sh.jit(with_a_reference)
    for _ in range(2):
        close(f(x()), 2 * X)
    assert f._last is not None
    assert f._last.left_to_jax
    close(f.lower(x()).compile()(x()), 2 * X)


def test_a_loop_as_an_unknown_release_of_jax_writes_it_is_right_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    f = sh.jit(lambda v: sh.scan(lambda c, _: (c * 2.0, None), v, None, length=3)[0])
    monkeypatch.setitem(jaxprs._PARAMETERS, "scan", ({"jaxpr", "another"},))
    with pytest.warns(RuntimeWarning, match=r"how this release of JAX .* `scan` has the parameters .* op by op"):
        close(f(x()), 8 * X)
    close(f(x()), 8 * X)  # said once
    assert f._last is not None
    assert f._last.left_to_jax


def test_without_typed_values_it_is_jax_jit() -> None:
    f = sh.jit(lambda a, b: a @ b)
    close(f(X, W), X @ W)
    assert f._last is not None
    assert f._last.left_to_jax
    assert sh.jit(lambda n: n * 2)(3) == 6
    sharding = jax.NamedSharding(jax.sharding.get_mesh(), jax.P("dp"))
    assert sh.jit(lambda a: a * 2, out_shardings=sharding)(X).sharding == sharding


def elsewhere(v: Any) -> Any:
    total = jax.pure_callback(lambda n: n, jax.ShapeDtypeStruct((), np.float32), plain(sh.sum(v)))
    return v * sh.constant(total)


def test_a_required_region_is_given_or_refused_with_the_line() -> None:
    close(sh.jit(sh.sin, region="require")(x()), np.sin(X))
    with pytest.raises(sh.ShardingTypeError, match="does not fit in one region: `pure_callback`") as caught:
        sh.jit(elsewhere, region="require")(x())
    assert "test_jit.py" in str(caught.value)
    assert "elsewhere" in str(caught.value)
    f = sh.jit(elsewhere)
    close(f(x()), X * X.sum())
    sh.set_region("require")
    with pytest.raises(sh.ShardingTypeError, match="one region"):
        f(x())
    sh.set_region("auto")
    close(f(x()), X * X.sum())


def test_without_regions_each_operation_is_its_own() -> None:
    sh.set_region("off")
    assert regions(lambda v: sh.sin(v) * v, x()) == 2
    close(sh.jit(lambda v: sh.sin(v) * v)(x()), np.sin(X) * X)
    with pytest.raises(sh.ShardingTypeError, match="no region mode"):
        sh.set_region("never")  # type: ignore[arg-type]
    with pytest.raises(sh.ShardingTypeError, match="no region mode"):
        sh.jit(sh.sin, region="never")  # type: ignore[call-overload]


# errors and names


def test_errors_of_a_trace_arrive_as_they_are() -> None:
    with pytest.raises(ZeroDivisionError):
        sh.jit(lambda v: 1 // 0)(x())
    with pytest.raises(sh.ShardingTypeError, match=r"silu.* is nonlinear"):
        sh.jit(lambda v: sh.silu(sh.sum(v)))(x())
    with pytest.raises(sh.ShardingTypeError, match=r"`<lambda>` takes arrays, and .* class `str`, at `n`"):
        sh.jit(lambda v, n: v)(x(), "text")


def test_a_value_without_data_cannot_be_computed_with() -> None:
    f = sh.jit(lambda v: v * 2.0)
    f(x())
    with pytest.raises(sh.ShardingTypeError, match="has only a type"):
        f(sh.abstract_array("f32[4@dp, 8]"))


def test_shardings_do_not_go_with_types(mesh: Any) -> None:
    sharding = jax.NamedSharding(mesh, jax.P())
    with pytest.raises(sh.ShardingTypeError, match="do not go with typed values"):
        sh.jit(lambda v: v * 2.0, in_shardings=sharding)(x())
    with pytest.raises(sh.ShardingTypeError, match="do not go with typed values"):
        sh.jit(sh.from_jax, out_shardings=sharding)(X)


@dataclass(frozen=True)
class Wrong(ShardFn):
    """A local function whose shards do not fit its type."""

    def __str__(self) -> str:
        return "wrong"

    def __call__(self, v: Any) -> Any:
        return v[:1]


def test_an_error_while_lowering_names_the_user_s_line() -> None:
    def broken(v: Any) -> Any:
        return local(Wrong(), v, out=v.type)

    with pytest.raises(sh.ShardingTypeError, match="`wrong` made a shard") as caught:
        sh.jit(broken)(x())
    (note,) = [n for n in caught.value.__notes__ if "lowering" in n]
    assert re.search(r"while lowering `wrong` from .*test_jit.py:\d+", note)
    assert "broken" in note


def test_names_and_lines_of_the_user_are_in_the_compiled_program() -> None:
    def step(v: Any, u: Any) -> Any:
        with jax.named_scope("block"):
            out, _ = lax.scan(lambda c, _: (sh.sin(c), None), v @ u, None, length=2)
            return plain(sh.sum(out))

    lowered = sh.jit(jax.grad(step)).lower(x(), w())
    names = set(re.findall(r'op_name="([^"]*)"', lowered.compile().as_text()))
    assert any(re.fullmatch(r"jit\(step\)/.*jvp\(block\).*dot_general", n) for n in names)
    assert any(re.search(r"transpose\(jvp\(block\)\)/.*while/body", n) for n in names)
    jax.config.update("jax_traceback_in_locations_limit", 1)
    try:
        text = sh.jit(jax.grad(step)).lower(x(), w()).as_text(debug_info=True)
    finally:
        jax.config.update("jax_traceback_in_locations_limit", int(os.environ["JAX_TRACEBACK_IN_LOCATIONS_LIMIT"]))
    files = set(re.findall(r'"([^"]*\.py)"', text))
    assert __file__ in files
    assert not {f for f in files if f.startswith(os.path.dirname(sh.__file__) + os.sep)}


def test_without_jit_the_function_runs_line_by_line() -> None:
    seen: list[type] = []

    @sh.jit
    def f(v: Any) -> Any:
        seen.append(type(v))
        return v * 2.0

    f(x())
    with jax.disable_jit():
        close(f(x()), 2 * X)
        close(sh.jit(lambda v: v * float(np.asarray(v).max()))(x()), X * 31)
    assert seen[-1] is sh.Array
    assert seen[0] is not sh.Array


def test_not_a_number_is_found() -> None:
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        sh.jit(sh.log)(x() - 100.0)


def test_arrays_made_anew_in_each_trace_are_captured_as_well() -> None:
    f = sh.jit(lambda v: v @ sh.array(W, "f32[8, 4@tp]"))
    for _ in range(2):
        close(f(x()), X @ W)
    close(f.lower(x()).compile()(x()), X @ W)


def test_threads_with_their_own_policies_share_a_function() -> None:
    first, second = w(), sh.array(2 * W, "f32[8, 4@tp]")
    f = sh.jit(lambda v: v @ (first if sh.current_policy() == "partial" else second))
    mesh, found, lock = jax.sharding.get_mesh(), [], threading.Lock()

    def work(policy: str, times: int) -> None:
        with sh.use_mesh(mesh), sh.policy(policy):
            for _ in range(5):
                with lock:  # one program at a time on the devices of a CPU
                    found.append((times, np.asarray(f(x()))))

    threads = [threading.Thread(target=work, args=args) for args in (("partial", 1), ("jax", 2))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 10
    for times, value in found:
        close(value, times * X @ W)


@pytest.mark.one_in(13)
@pytest.mark.parametrize("text", ["f32[0@x,4]", "f32[0,4@x]", "f32[4@x,0]", "f32[4@(x,y),0]", "f32[0,4]{U:x}"])
@pytest.mark.parametrize("jit", [sh.jit, jax.jit], ids=["sh.jit", "jax.jit"])
def test_arrays_without_elements_lie_as_their_types_say(jit: Any, text: str) -> None:
    with sh.use_mesh(sh.make_mesh({"x": 2, "y": 2})):
        x = sh.zeros(text)
        for value in (x * 2, jit(lambda x: x * 2)(x), jit(lambda x: x)(x), jit(jit(sh.negative))(x)):
            assert value.type == x.type
            assert {s.data.shape for s in value.data.addressable_shards} == {
                s.data.shape for s in x.data.addressable_shards
            }
            if "U" not in text:
                assert np.asarray(value).shape == x.shape
            assert (value + 1.0).shape == x.shape


@pytest.mark.parametrize("jit", [sh.jit, jax.jit], ids=["sh.jit", "jax.jit"])
def test_a_sum_over_no_elements_is_zero_on_every_device(jit: Any) -> None:
    with sh.use_mesh(sh.make_mesh({"x": 2, "y": 2})):
        a, b = sh.zeros("f32[4@x,0]"), sh.zeros("f32[0,4@y]")
        y = jit(lambda a, b: sh.cumsum(a @ b + 1.0, 0, out="[4,4@y]"))(a, b)
        assert str(y.type) == "f32[4,4@y]"
        np.testing.assert_array_equal(np.asarray(y), np.cumsum(np.ones((4, 4)), 0))
