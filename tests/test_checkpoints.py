"""Typed trees in the checkpoints of orbax: saved as they are, restored with the types that are asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest

import shtypes as sh

ocp = pytest.importorskip("orbax.checkpoint")

X = np.arange(64, dtype=np.float32).reshape(8, 8)
KEYS = jax.random.split(jax.random.key(3), 8)

#: What is saved on the mesh (dp=2, tp=4).
SAVED = {
    "w": (X, "f32[8@dp,8@tp]"),
    "half": (X, "bf16[8,8@tp]"),
    "replicated": (X[0], "f32[8]"),
    "scalar": (np.float32(2.5), "f32[]"),
    "count": (np.int32(7), "i32[]"),
    "flags": (X[0] > 3, "bool[8@tp]"),
    "keys": (KEYS, "key<fry>[8@dp]"),
    "key": (KEYS[0], "key<fry>[]"),
}
#: What is asked for, by the mesh and the policy.
ASKED: dict[str, tuple[dict[str, int], str, dict[str, str]]] = {
    "as saved": ({"dp": 2, "tp": 4}, "partial", {name: text for name, (_, text) in SAVED.items()}),
    "another mesh": (
        {"dp": 8},
        "partial",
        {
            "w": "f32[8,8@dp]",
            "half": "bf16[8@dp,8]",
            "replicated": "f32[8@dp]",
            "scalar": "f32[]",
            "count": "i32[]",
            "flags": "bool[8]",
            "keys": "key<fry>[8]",
            "key": "key<fry>[]",
        },
    ),
    "another policy and layout": (
        {"tp": 4, "dp": 2},
        "jax",
        {
            "w": "f32[8,8@(tp,dp)]",
            "half": "bf16[8@tp,8]",
            "replicated": "f32[8]",
            "scalar": "f32[]",
            "count": "i32[]",
            "flags": "bool[8@dp]",
            "keys": "key<fry>[8@dp]",
            "key": "key<fry>[]",
        },
    ),
}


pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.mesh({"dp": 2, "tp": 4})]


def tree() -> dict[str, Any]:
    return {name: sh.array(value, text) for name, (value, text) in SAVED.items()}


def by_checkpointer(path: Path, saved: Any, target: Callable[[], Any]) -> Any:
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path / "step", saved)
        checkpointer.wait_until_finished()
        return checkpointer.restore(path / "step", target())


def by_manager(path: Path, saved: Any, target: Callable[[], Any]) -> Any:
    with ocp.CheckpointManager(path / "steps") as manager:
        manager.save(3, args=ocp.args.StandardSave(saved))
        manager.wait_until_finished()
        return manager.restore(3, args=ocp.args.StandardRestore(target()))


def by_pytree(path: Path, saved: Any, target: Callable[[], Any]) -> Any:
    checkpointer = ocp.PyTreeCheckpointer()
    checkpointer.save(path / "step", saved)
    return checkpointer.restore(path / "step", restore_args=ocp.checkpoint_utils.construct_restore_args(target()))


def abstractly(path: Path, saved: Any, target: Callable[[], Any]) -> Any:
    """By what orbax makes of a target, as its own documentation has it."""
    return by_checkpointer(path, saved, lambda: jax.tree.map(ocp.utils.to_shape_dtype_struct, target()))


def host(x: Any) -> Any:
    """The value as a numpy array; of keys, their words."""
    plain = sh.to_jax(x) if isinstance(x, sh.Array) else jax.numpy.asarray(x)
    return np.asarray(jax.random.key_data(plain) if jax.numpy.issubdtype(plain.dtype, jax.dtypes.prng_key) else plain)


@pytest.mark.one_in(13)
@pytest.mark.parametrize("way", [by_checkpointer, by_manager, by_pytree, abstractly])
@pytest.mark.parametrize("case", ASKED)
def test_what_was_saved_comes_back_with_the_types_asked_for(way: Any, case: str, tmp_path: Path) -> None:
    axes, policy, texts = ASKED[case]
    saved = tree()
    with sh.use_mesh(sh.make_mesh(axes)), sh.policy(policy):

        def target() -> Any:
            return {name: sh.abstract_array(text, shape=saved[name].shape) for name, text in texts.items()}

        restored = way(tmp_path, saved, target)
        assert sh.tree.types(restored) == sh.tree.types(target())
        for name, x in restored.items():
            assert type(x) is sh.Array
            assert x.data.sharding.is_equivalent_to(x.type.sharding, x.ndim)
            np.testing.assert_array_equal(host(x), host(SAVED[name][0]))
        doubled = sh.jit(lambda w: w * 2)(restored["w"])
        np.testing.assert_array_equal(np.asarray(doubled), 2 * X)


def test_a_typed_tree_is_a_target_itself(tmp_path: Path) -> None:
    restored = by_checkpointer(tmp_path, tree(), tree)
    assert sh.tree.types(restored) == sh.tree.types(tree())


def test_the_state_of_an_optimizer_comes_back(tmp_path: Path) -> None:
    params = {"w": sh.array(X, "f32[8@dp,8@tp]")}
    optimizer = optax.chain(optax.clip(1.0), optax.adam(1e-2))
    shapes = jax.eval_shape(optimizer.init, {"w": jax.ShapeDtypeStruct((8, 8), np.float32)})
    types = optax.tree_map_params(
        optimizer, lambda _, t: t, shapes, sh.tree.types(params), transform_non_params=lambda _: "[...]"
    )
    state = sh.local_map(optimizer.init, out=types, differentiable=False)(params)
    restored = by_checkpointer(tmp_path, {"params": params, "state": state}, lambda: {"params": params, "state": state})
    assert type(restored["state"][1][0]).__name__ == "ScaleByAdamState"
    assert sh.tree.types(restored) == sh.tree.types({"params": params, "state": state})


def pending() -> Any:
    return sh.sum(sh.array(X, "f32[8,8@tp]"), 1)


@pytest.mark.parametrize("of", ["checkpointer", "pytree"])
def test_a_pending_sum_is_not_saved(of: str, tmp_path: Path) -> None:
    handler = ocp.StandardCheckpointHandler() if of == "checkpointer" else ocp.PyTreeCheckpointHandler()
    for _ in range(2):  # before orbax's handler knows types, and after
        with (
            ocp.Checkpointer(handler) as checkpointer,
            pytest.raises(sh.ShardingTypeError, match="cannot be in a checkpoint: it is unreduced over `tp`") as caught,
        ):
            checkpointer.save(tmp_path / "step", {"w": pending()}, force=True)
        assert caught.value.fixes
        assert caught.value.where.startswith("test_checkpoints.py:")
        by_checkpointer(tmp_path / "other", tree(), tree) if not (tmp_path / "other").exists() else None
    assert not (tmp_path / "step").exists()


def test_a_pending_sum_is_no_target(tmp_path: Path) -> None:
    saved = {"w": sh.array(X[0], "f32[8]")}
    with pytest.raises(sh.ShardingTypeError, match="cannot be in a checkpoint: it is unreduced over `tp`"):
        by_checkpointer(tmp_path, saved, lambda: {"w": pending()})


def test_a_target_without_devices_is_refused(tmp_path: Path) -> None:
    saved = {"w": sh.array(X[0], "f32[8]")}
    target = {"w": sh.abstract_array("f32[8@q]", sh.abstract_mesh({"q": 8}))}
    with pytest.raises(sh.ShardingTypeError, match=r"the mesh .* has no devices here"):
        by_checkpointer(tmp_path, saved, lambda: target)


def test_a_value_that_has_only_a_type_is_not_saved(tmp_path: Path) -> None:
    with (
        ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer,
        pytest.raises(sh.ShardingTypeError, match="no data"),
    ):
        checkpointer.save(tmp_path / "step", {"w": sh.abstract_array("f32[8]")})


def test_what_a_checkpoint_does_not_hold_is_refused(tmp_path: Path) -> None:
    saved = {"w": sh.array(np.asarray(jax.random.key_data(KEYS)), "u32[8,2]")}
    with pytest.raises(sh.ShardingTypeError, match="cannot be restored from a checkpoint that holds `u32`"):
        by_checkpointer(tmp_path, saved, lambda: {"w": sh.abstract_array("key<fry>[8]")})
    with pytest.raises(ValueError, match="not compatible with the stored shape"):
        by_checkpointer(tmp_path / "other", tree(), lambda: {**tree(), "w": sh.abstract_array("f32[8,16]")})


def test_words_are_restored_where_words_are_asked_and_keys_where_keys_are(tmp_path: Path) -> None:
    keys = sh.array(KEYS, "key<fry>[8@dp]")
    for i, text in enumerate(("u32[8,2]", "u32[8@dp,2]", "u32[8@(dp,tp),2]", "key<fry>[8]", "key<fry>[8@tp]")):
        (restored,) = by_checkpointer(tmp_path / str(i), [keys], lambda text=text: [sh.abstract_array(text)])  # type: ignore[misc]
        assert str(restored.type) == text
        np.testing.assert_array_equal(host(restored), np.asarray(jax.random.key_data(KEYS)))
    with pytest.raises(ValueError, match="not compatible with the stored shape"):
        by_checkpointer(tmp_path / "other", [keys], lambda: [sh.abstract_array("u32[2,8]")])


def test_plain_arrays_come_back_as_ever(tmp_path: Path) -> None:
    """With no target, with a plain one, and beside typed ones."""
    x = sh.array(X, "f32[8@dp,8@tp]")
    plain = {"w": x.to_jax(), "host": X, "n": 3, "key": KEYS}
    restored = by_checkpointer(tmp_path, {"plain": plain, "typed": x}, lambda: {"plain": plain, "typed": x})
    kinds = {name: type(value) for name, value in restored["plain"].items()}
    assert kinds == {"w": type(x.to_jax()), "host": np.ndarray, "n": int, "key": type(KEYS)}
    assert restored["plain"]["w"].sharding == x.to_jax().sharding
    assert type(restored["typed"]) is sh.Array
    asked = jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
    for target in (None, {"w": asked}):
        found = by_checkpointer(tmp_path / str(target is None), {"w": x}, lambda t=target: t)  # type: ignore[misc]
        assert not isinstance(found["w"], sh.Array)
        np.testing.assert_array_equal(found["w"], X)


def test_another_handler_that_a_program_gives_orbax_restores_types_as_well(tmp_path: Path) -> None:
    registry = ocp.type_handlers
    before = registry.get_type_handler(jax.Array)
    try:
        registry.register_type_handler(jax.Array, registry.ArrayHandler(use_replica_parallel=False), override=True)
        restored = by_checkpointer(tmp_path, {"w": tree()["w"]}, lambda: {"w": tree()["w"]})
        assert type(restored["w"]) is sh.Array
    finally:
        registry.register_type_handler(jax.Array, before, override=True)


def test_a_function_of_orbax_that_restores_plain_arrays_only_refuses_a_typed_target(tmp_path: Path) -> None:
    v1: Any = pytest.importorskip("orbax.checkpoint.experimental.v1")
    saved = {"w": sh.array(X, "f32[8@dp,8]")}
    v1.save_pytree(tmp_path / "step", saved)
    with pytest.raises(sh.ShardingTypeError, match="restores plain arrays only, and f32"):
        v1.load_pytree(tmp_path / "step", saved)
    plain = v1.load_pytree(tmp_path / "step", sh.tree.to_jax(saved))
    np.testing.assert_array_equal(np.asarray(sh.tree.from_jax(plain, like=saved)["w"]), X)


@pytest.mark.parametrize("read", [np.asarray, jax.device_get, lambda x: jax.device_get({"x": x})])
def test_a_pending_sum_is_read_by_nobody(read: Callable[[Any], Any]) -> None:
    with pytest.raises(sh.ShardingTypeError, match="cannot be read on the host: it is unreduced over `tp`"):
        read(pending())


def test_keys_are_saved_in_whatever_mesh_is_in_context() -> None:
    """Libraries ask JAX for the words of keys, as they ask for values."""
    keys = sh.array(KEYS, "key<fry>[8@dp]")
    words: Any = jax.random.key_data
    with sh.use_mesh(sh.make_mesh({"tp": 4, "dp": 2})):
        np.testing.assert_array_equal(np.asarray(words(keys)), np.asarray(jax.random.key_data(KEYS)))
