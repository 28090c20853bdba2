"""`sh.optim`: transformations of optax on typed trees, against one device."""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import shtypes as sh
from tests.denotation import denoted
from tests.tolerance import assert_close

SIZES: Final = {"bias": (16,), "down": (32, 16), "scale": (32,), "up": (16, 32)}
#: Parameters sharded over one axis and over two, and replicated ones.
LAYOUTS: Final = {
    "tensor": {"bias": "f32[16]", "down": "f32[32@tp,16]", "scale": "f32[32@tp]", "up": "f32[16,32@tp]"},
    "both": {"bias": "f32[16@dp]", "down": "f32[32@tp,16@dp]", "scale": "f32[32@(tp,dp)]", "up": "f32[16@dp,32@tp]"},
}
#: Where each device keeps its part of the state, though parameters are replicated over ``dp``.
ZERO: Final = {"bias": "[_@dp]", "down": "[_@tp,_@dp]", "scale": "[_@(tp,dp)]", "up": "[_@dp,_@tp]"}


def _weights(k: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(k)
    return {name: rng.normal(size=size).astype(np.float32) for name, size in SIZES.items()}


pytestmark = pytest.mark.mesh({"dp": 2, "tp": 4})


def _typed(weights: dict[str, Any], layout: dict[str, str]) -> dict[str, Any]:
    return {name: sh.array(w, layout[name]) for name, w in weights.items()}


def _on_one_device(tx: Any, steps: int) -> Any:
    @jax.jit
    def run(params: Any, gradients: Any) -> Any:
        state = tx.init(params)
        for each in gradients:
            updates, state = tx.update(each, state, params)
            params = optax.apply_updates(params, updates)
        return params

    return run(_weights(), [_weights(k + 1) for k in range(steps)])


def _step(optimizer: Any) -> Any:
    def step(params: Any, state: Any, grads: Any) -> Any:
        updates, state = optimizer.update(grads, state, params)
        return sh.optim.apply_updates(params, updates), state

    return step


@pytest.mark.parametrize("policy", ["partial", "jax"])
def test_a_first_state_is_typed_like_its_parameters(policy: str) -> None:
    with sh.policy(policy):
        params = _typed(_weights(), LAYOUTS["both"])
        state = sh.optim.lift(optax.adam(1e-3, mu_dtype="bfloat16")).init(params)[0]
        assert sh.tree.types(state.nu) == sh.tree.types(params)
        assert sh.tree.types(state.mu) == {name: p.type.replace(dtype="bf16") for name, p in params.items()}
        assert str(state.count.type) == "i32[]"
        held = sum(s.data.nbytes for x in state.nu.values() for s in x.to_jax().addressable_shards)
        assert held == 8 * sum(p.type.local_bytes for p in params.values())


def test_a_state_that_names_no_parameter_is_typed_by_its_path_and_shape() -> None:
    def init(params: Any) -> Any:
        made = {name: jnp.zeros(p.shape) for name, p in params.items()}
        history = {name: jnp.zeros((5, *p.shape)) for name, p in params.items()}
        rows = {"down": jnp.zeros(32), "up": jnp.zeros(16), "other": jnp.zeros(7)}
        return {"mean": made, "history": history, "rows": rows, "key": jnp.zeros(2, "uint32"), "count": 3}

    tx = optax.GradientTransformation(init, lambda g, s, p=None: (g, s))
    params = _typed(_weights(), LAYOUTS["both"])
    state = sh.optim.lift(tx).init(params)
    assert sh.tree.types(state["mean"]) == sh.tree.types(params)
    assert {str(x.type) for x in state["history"].values()} == {
        str(p.type).replace("f32[", "f32[5,").replace(",]", "]") for p in params.values()
    }
    assert {k: str(x.type) for k, x in state["rows"].items()} == {
        "down": "f32[32@tp]",
        "up": "f32[16@dp]",
        "other": "f32[7]",
    }
    assert str(state["key"].type) == "u32[2]"


def test_numbers_and_keys_of_a_state_are_typed_and_what_is_no_array_stays() -> None:
    def init(params: Any) -> Any:
        return {"steps": 3, "rate": 0.5, "on": True, "key": jax.random.key(0), "raw": jax.random.PRNGKey(0)}

    params = _typed(_weights(), LAYOUTS["both"])
    optimizer = sh.optim.lift(
        optax.GradientTransformation(init, lambda g, s, p=None: (g, {**s, "steps": 4, "on": False}))
    )
    for state in (optimizer.init(params), sh.jit(optimizer.init)(params), jax.jit(optimizer.init)(params)):
        assert {k: str(x.type) for k, x in state.items()} == {
            "steps": "i32[]", "rate": "f32[]", "on": "bool[]", "key": "key<fry>[]", "raw": "u32[2]"
        }  # fmt: skip
        for update in (optimizer.update, sh.jit(optimizer.update), jax.jit(optimizer.update)):
            _, after = update(params, state, params)
            assert sh.tree.types(after) == sh.tree.types(state)
            assert (int(after["steps"]), bool(after["on"])) == (4, False)


def test_a_hyperparameter_that_is_set_between_steps_is_typed_again() -> None:
    params = _typed(_weights(), LAYOUTS["both"])
    optimizer = sh.optim.lift(optax.inject_hyperparams(optax.sgd)(1e-2))
    state = optimizer.init(params)
    for rate in (0.5, np.float32(0.25), jnp.float32(0.125)):
        state.hyperparams["learning_rate"] = rate
        updates, state = jax.jit(optimizer.update)(params, state, params)
        assert str(state.hyperparams["learning_rate"].type) == "f32[]"
        assert_close(updates["up"], -float(rate) * _weights()["up"])


@pytest.mark.nightly
def test_a_step_is_the_body_of_a_loop() -> None:
    params, tx = (
        _typed(_weights(), LAYOUTS["both"]),
        optax.chain(optax.add_noise(0.1, 0.5, 0), optax.optimistic_adam_v2(1e-2)),
    )
    optimizer = sh.optim.lift(tx)
    grads = {
        n: sh.array(np.stack([_weights(k)[n] for k in (1, 2, 3)]), LAYOUTS["both"][n].replace("[", "[3,"))
        for n in params
    }

    def body(carry: Any, grads: Any) -> Any:
        return _step(optimizer)(*carry, grads), None

    (found, _), _ = jax.block_until_ready(sh.scan(body, (params, optimizer.init(params)), grads))
    for one, other in zip(found.values(), _on_one_device(tx, 3).values(), strict=True):
        assert_close(np.asarray(one), other, 4096)


def test_a_state_keeps_its_dtypes_and_wider_ones_are_refused() -> None:
    layout, tx = LAYOUTS["both"], optax.optimistic_gradient_descent(1e-2)
    params, optimizer = _typed(_weights(), layout), sh.optim.lift(tx)
    narrow = {name: p.astype("bf16") for name, p in params.items()}
    state = optimizer.init(params)
    _, after = optimizer.update(narrow, state, params)  # optax keeps the gradient as it came
    assert sh.tree.types(after) == sh.tree.types(state)
    assert_close(after[0].previous_gradient["up"], _weights()["up"].astype(jnp.bfloat16).astype(np.float32), 0)

    with pytest.raises(sh.ShardingTypeError) as error:
        optimizer.update(params, optimizer.init(narrow), narrow)
    assert error.value.what == (
        "`update` gives the state at [0].previous_gradient['bias'] the type f32[16@dp], and it had bf16[16@dp]"
    )
    assert error.value.hints[-1] == 'optimizer.init(jax.tree.map(lambda p: p.astype("f32"), params))'
    assert "test_optim.py" in error.value.where
    state = optimizer.init(params)
    assert sh.tree.types(optimizer.update(params, state, narrow)[1]) == sh.tree.types(state)


def test_a_state_of_another_shape_is_refused() -> None:
    tx = optax.GradientTransformation(
        lambda p: {"last": jnp.zeros(1)}, lambda g, s, p=None: (g, {"last": jnp.zeros(2)})
    )
    params, optimizer = _typed(_weights(), LAYOUTS["both"]), sh.optim.lift(tx)
    with pytest.raises(sh.ShardingTypeError, match=r"the state at \['last'\] the type f32\[2\], and it had f32\[1\]"):
        optimizer.update(params, optimizer.init(params), params)


def test_updates_that_say_nothing_of_the_gradients_are_typed() -> None:
    params = _typed(_weights(), LAYOUTS["both"])
    for tx in (
        optax.set_to_zero(),
        optax.stateless(lambda g, p: {n: np.ones(np.shape(x), "f4") for n, x in g.items()}),
    ):
        updates, _ = sh.optim.lift(tx).update(params, optax.EmptyState(), params)
        assert sh.tree.types(updates) == sh.tree.types(params)


def test_the_norm_of_a_tree_is_reduced_once_over_all_axes() -> None:
    layout = {"bias": "f32[16@dp]", "down": "f32[32@tp,16]", "scale": "f32[32]", "up": "f32[16@dp,32@tp]"}
    params, tx = _typed(_weights(), layout), optax.clip_by_global_norm(0.5)
    optimizer = sh.optim.lift(tx)
    with sh.comm_budget(kinds="all-reduce", launches=1, bytes=8):
        updates, _ = jax.block_until_ready(optimizer.update(params, optimizer.init(params), params))
    sent = [(e.kind, e.axes, e.bytes, e.times) for e in sh.ledger(optimizer.update, params, optax.EmptyState(), params)]
    assert sent == [("all-reduce", ("dp", "tp"), 7, 1)]
    wanted, _ = tx.update(_weights(), tx.init(_weights()))
    for name, u in updates.items():
        assert_close(np.asarray(u), wanted[name])


def test_what_a_library_runs_by_itself_is_listed_at_the_users_line() -> None:
    params, optimizer = _typed(_weights(), LAYOUTS["both"]), sh.optim.lift(optax.clip_by_global_norm(0.5))
    (entry,) = sh.ledger(lambda g: optimizer.update(g, optax.EmptyState()), params)
    assert entry.place.text == "(entry,) = sh.ledger(lambda g: optimizer.update(g, optax.EmptyState()), params)"


def test_one_element_that_is_not_finite_anywhere_leaves_a_step_out() -> None:
    params = _typed(_weights(), LAYOUTS["tensor"])
    optimizer = sh.optim.lift(optax.apply_if_finite(optax.sgd(1.0), 3))
    state = optimizer.init(params)
    sent = sh.ledger(optimizer.update, params, state, params)
    sharded = [p.type for p in params.values() if any(dim.axes for dim in p.type.dims)]
    assert [e.kind for e in sent] == ["all-reduce"] * len(sharded)
    assert all(e.bytes <= 2 for e in sent)
    for bad in (np.inf, np.nan, None):
        weights = _weights()
        if bad is not None:
            weights["up"][-1, -1] = bad
        updates, after = jax.block_until_ready(optimizer.update(_typed(weights, LAYOUTS["tensor"]), state, params))
        assert np.asarray(after.notfinite_count) == (bad is not None)
        assert np.any(np.asarray(updates["down"])) == (bad is None)
        assert sh.tree.types(after) == sh.tree.types(state)


def test_a_scope_around_holds_for_the_norm() -> None:
    optimizer, params = sh.optim.lift(optax.clip_by_global_norm(0.5)), _typed(_weights(), LAYOUTS["both"])
    with sh.no_comm(), pytest.raises(sh.ShardingTypeError, match="no_comm"):
        optimizer.update(params, optimizer.init(params), params)


@pytest.mark.nightly
def test_more_than_scalars_is_communicated_only_where_that_is_asked_for() -> None:
    tx, plain = optax.adafactor(1e-2, min_dim_size_to_factor=8), {"up": _weights()["up"]}
    optimizer, params = sh.optim.lift(tx), _typed(plain, LAYOUTS["both"])
    state = optimizer.init(params)
    with pytest.raises(sh.ShardingTypeError, match="unreduced on mesh axis"):
        optimizer.update(params, state, params)
    with sh.implicit_comm():
        updates, after = optimizer.update(params, state, params)
    assert sh.tree.types(after) == sh.tree.types(state)
    wanted, _ = tx.update(plain, tx.init(plain), plain)
    assert_close(np.asarray(updates["up"]), wanted["up"], 1024)


def test_a_refusal_says_what_to_write_around_the_transformation() -> None:
    params = {"up": sh.array(_weights()["up"], LAYOUTS["both"]["up"])}
    tx = optax.adaptive_grad_clip(0.1)
    optimizer = sh.optim.lift(tx)
    with pytest.raises(sh.ShardingTypeError, match="nonlinear") as error:
        optimizer.update(params, optimizer.init(params), params)
    assert error.value.hints == ("sh.implicit_comm() around `update` allows it",)
    code = error.value.fixes[0].code
    at = eval(code.removeprefix("sh.optim.lift(tx, at=").removesuffix(")"))
    with pytest.raises(sh.ShardingTypeError):  # which is of one of the two norms
        sh.optim.lift(tx, at=at).update(params, optimizer.init(params), params)
    (place,) = at
    updates, _ = sh.optim.lift(tx, at={place: "[...]"}).update(params, optimizer.init(params), params)
    plain = {"up": _weights()["up"]}
    assert_close(updates["up"], tx.update(plain, tx.init(plain), plain)[0]["up"])


def test_a_scalar_is_finished_before_it_becomes_many_numbers() -> None:
    params = {"up": sh.array(_weights()["up"], LAYOUTS["both"]["up"])}
    tx = optax.stateless(lambda g, _: jax.tree.map(lambda x: x * jnp.max(jnp.tanh(jnp.ones(6) * jnp.sum(x))), g))
    optimizer = sh.optim.lift(tx)
    sent = sh.ledger(optimizer.update, params, optax.EmptyState(), params)
    assert [(e.kind, e.src.size) for e in sent] == [("all-reduce", 1)]


def test_of_a_sharded_dim_only_a_reduction_to_one_element_is_finished() -> None:
    tx = optax.stateless(lambda updates, _: jax.tree.map(lambda g: g / jnp.max(g, 0, keepdims=True), updates))
    params = {"up": sh.array(_weights()["up"], "f32[16@dp,32]")}
    with pytest.raises(sh.ShardingTypeError, match="`max` reduces dim 0"):
        sh.optim.lift(tx).update(params, optax.EmptyState(), params)


def test_an_array_of_which_two_dims_of_a_parameter_may_be_meant_is_replicated() -> None:
    tx = optax.GradientTransformation(lambda p: {"w": jnp.zeros(8)}, lambda g, s, p=None: (g, s))
    for text, of_a_dim in (("f32[8@dp,8@tp]", "f32[8]"), ("f32[8@dp,4]", "f32[8@dp]"), ("f32[8,8]", "f32[8]")):
        assert str(sh.optim.lift(tx).init({"w": sh.ones(text)})["w"].type) == of_a_dim


# gradients that are pending sums


def _pending() -> tuple[Any, Any]:
    """Parameters replicated over ``dp``, and gradients that are sums over it."""
    params = _typed(_weights(), LAYOUTS["tensor"])
    grads = {name: sh.reshard(g, dp="U") for name, g in _typed(_weights(1), LAYOUTS["tensor"]).items()}
    return params, grads


def test_pending_gradients_are_refused_with_the_price_of_finishing_them() -> None:
    params, grads = _pending()
    optimizer = sh.optim.lift(optax.adam(1e-2))
    with pytest.raises(sh.ShardingTypeError) as error:
        optimizer.update(grads, optimizer.init(params), params)
    assert error.value.what == "`update` takes finished gradients, and 4 of 4 gradients are pending over mesh axis `dp`"
    (fix,) = error.value.fixes
    assert (fix.code, fix.forward) == ('sh.optim.lift(tx, pending="finish")', "all-reduce over `dp`")
    finishing = sh.optim.lift(optax.adam(1e-2), pending="finish")
    sent = sh.ledger(finishing.update, grads, finishing.init(params), params)
    assert fix.bytes_forward == sum(e.bytes for e in sent)
    assert "test_optim.py" in str(error.value)


def test_pending_gradients_are_finished_in_one_collective() -> None:
    params, grads = _pending()
    optimizer = sh.optim.lift(optax.adam(1e-2), pending="finish")
    state = optimizer.init(params)
    sent = [(e.kind, e.axes, e.times) for e in sh.ledger(_step(optimizer), params, state, grads)]
    assert sent == [("all-reduce", ("dp",), 1)]
    step = sh.jit(_step(optimizer))
    assert step.lower(params, state, grads).compile().as_text().count(" all-reduce(") == 1
    for found in (step(params, state, grads)[0], _step(optimizer)(params, state, grads)[0]):
        for one, other in zip(found.values(), _on_one_device(optax.adam(1e-2), 1).values(), strict=True):
            assert_close(np.asarray(jax.block_until_ready(one)), other, 1024)


def test_the_gradients_that_a_line_search_takes_are_finished_with_the_others() -> None:
    params, grads = _pending()

    def update(updates: Any, state: Any, params: Any, *, grad: Any, value: Any) -> Any:
        return jax.tree.map(lambda u, g: jnp.tanh(u) * jnp.tanh(g) * jnp.tanh(value), updates, grad), state

    optimizer = sh.optim.lift(optax.GradientTransformationExtraArgs(optax.init_empty_state, update), pending="finish")
    value, state = sh.array(np.float32(1.0), "f32[]{U:dp}"), optax.EmptyState()

    def step(grads: Any, params: Any, value: Any) -> Any:
        return optimizer.update(grads, state, params, grad=grads, value=value)[0]

    sent = sh.ledger(step, grads, params, value)
    assert [(e.kind, e.axes, e.src.ndim) for e in sent] == [("all-reduce", ("dp",), 1), ("all-reduce", ("dp",), 0)]
    found = jax.block_until_ready(step(grads, params, value))
    assert_close(found["up"], np.tanh(_weights(1)["up"]) ** 2 * np.tanh(np.float32(1.0)))


def test_a_state_sharded_over_data_takes_a_scatter_and_a_gather() -> None:
    params, grads = _pending()
    tx = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(1e-2))
    optimizer = sh.optim.lift(tx, pending="finish", types=ZERO)
    state = optimizer.init(params)
    assert sh.tree.types(state[1][0].mu) == {n: sh.reshard(p, ZERO[n]).type for n, p in params.items()}
    sent = [(e.kind, e.axes) for e in sh.ledger(_step(optimizer), params, state, grads)]
    assert sent == [("reduce-scatter", ("dp",)), ("all-reduce", ("dp", "tp")), ("all-gather", ("dp",))]
    step = sh.jit(_step(optimizer), donate_argnums=(0, 1))
    after, _ = jax.block_until_ready(step(params, state, grads))
    assert {name: str(p.type) for name, p in after.items()} == LAYOUTS["tensor"]
    for one, other in zip(after.values(), _on_one_device(tx, 1).values(), strict=True):
        assert_close(np.asarray(one), other, 1024)


def test_a_step_can_be_differentiated() -> None:
    params, grads = _pending()
    optimizer = sh.optim.lift(optax.sgd(1e-1), pending="finish")

    def loss(grads: Any) -> Any:
        new, _ = _step(optimizer)(params, optimizer.init(params), grads)
        return sum(sh.all_reduce(sh.sum(sh.square(p))) for p in new.values())

    found = sh.jit(sh.grad(loss))(grads)
    for name, g in found.items():
        assert g.type == grads[name].type.cotangent()
        after = _weights()[name] - 0.1 * _weights(1)[name]
        assert_close(denoted(jax.block_until_ready(g)), -0.2 * after)


# as a transformation of optax


def test_parameters_keep_their_types_or_the_update_is_refused() -> None:
    weights = _weights()
    params = sh.tree.array(weights, LAYOUTS["both"])
    optimizer = sh.optim.lift(optax.chain(optax.centralize(), optax.sgd(0.1)))

    def step(params: Any) -> Any:
        return sh.optim.apply_updates(params, optimizer.update(params, optimizer.init(params), params)[0])

    with sh.implicit_comm():  # the means along sharded dims are pending sums
        new = step(params)
    assert sh.tree.types(new) == sh.tree.types(params)
    tx = optax.chain(optax.centralize(), optax.sgd(0.1))
    wanted = optax.apply_updates(weights, tx.update(weights, tx.init(weights), weights)[0])
    for name, p in new.items():
        assert_close(p, wanted[name])

    w, pending = sh.array(weights["up"], "f32[16, 32]"), sh.array(weights["up"], "f32[16, 32]{U:tp}")
    with pytest.raises(
        sh.ShardingTypeError, match=r"update of type f32\[16,32\]\{U:tp\} for a parameter of type"
    ) as caught:
        sh.optim.apply_updates({"w": w}, {"w": pending})
    assert caught.value.fixes[0].code == 'sh.reshard(update, "[16,32]")'
    with sh.implicit_comm():
        assert sh.optim.apply_updates({"w": w}, {"w": pending})["w"].type == w.type


def test_it_is_a_transformation_of_its_own_class_and_plain_on_plain_trees() -> None:
    tx = optax.adam(1e-2)
    optimizer = sh.optim.lift(tx)
    assert type(optimizer) is type(tx)
    chained = optax.chain(optax.clip(0.5), optimizer)
    plain = jax.tree.map(jnp.asarray, _weights())
    updates, _ = chained.update(plain, chained.init(plain), plain)
    assert all(type(u) is not sh.Array for u in updates.values())
    inside = optax.MultiSteps(optimizer, 1)
    assert inside.init(plain).mini_step == 0


def test_transformations_of_typed_trees_make_a_chain_and_can_be_lifted_again() -> None:
    params = {"up": sh.array(_weights()["up"], LAYOUTS["both"]["up"])}
    parts = optax.clip_by_global_norm(0.5), optax.scale_by_adam()
    chained = optax.chain(*map(sh.optim.lift, parts))
    updates, state = chained.update(params, chained.init(params), params)
    plain = {"up": _weights()["up"]}
    wanted, _ = optax.chain(*parts).update(plain, optax.chain(*parts).init(plain), plain)
    assert_close(np.asarray(updates["up"]), wanted["up"])
    again = sh.optim.lift(optax.MultiSteps(chained, 2).gradient_transformation())
    assert sh.tree.types(again.init(params).inner_opt_state) == sh.tree.types(state)


def test_what_is_no_transformation_is_refused() -> None:
    with pytest.raises(sh.ShardingTypeError, match="named tuple") as error:
        sh.optim.lift(optax.MultiSteps(optax.adam(1e-2), 2))
    assert error.value.hints == ("tx.gradient_transformation()",)
    with pytest.raises(sh.ShardingTypeError, match="refuses pending gradients or finishes them"):
        sh.optim.lift(optax.adam(1e-2), pending="drop")  # type: ignore[arg-type]
    params = _typed(_weights(), LAYOUTS["both"])
    with pytest.raises(sh.ShardingTypeError, match="another structure"):
        sh.optim.lift(optax.adam(1e-2), types={"up": "[...]"}).init(params)
    with pytest.raises(sh.ShardingTypeError, match="needs the parameters"):
        sh.optim.lift(optax.adam(1e-2), types=lambda t: t).update(params, optax.EmptyState())


@pytest.mark.parametrize(
    ("call", "instead"),
    [
        (lambda w: optax.adam(0.1).init({"w": w}), "sh.optim.lift(tx)"),
        (lambda w: optax.adam(0.1).update({"w": w}, optax.adam(0.1).init({"w": np.ones((4, 4))})), "sh.optim.lift(tx)"),
        (lambda w: optax.softmax_cross_entropy(w, w), "sh.lift(optax.softmax_cross_entropy)"),
    ],
    ids=["init", "update", "a function"],
)
def test_a_function_of_a_library_on_typed_values_is_to_be_lifted_and_not_rewritten(call: Any, instead: str) -> None:
    """The message named `sh.zeros_like` in place of a line of optax, or a function of the same name while traced."""
    w = sh.array(np.ones((4, 4), np.float32), "[4@tp,4]")
    for run in (call, lambda w: sh.check(call, w), jax.make_jaxpr(call)):
        with pytest.raises(sh.ShardingTypeError, match="was given to ") as error:
            run(w)
        assert error.value.hints[0].startswith(instead)
        assert not any(hint.startswith(("sh.lift(f)", "use the function")) for hint in error.value.hints)
