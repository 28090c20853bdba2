"""Checkpoints as decisions of `sh.suggest`: whether the bodies of scans are computed again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from shtypes.tools.patch import patched
from tests.end_to_end import host
from tests.solver import models
from tests.solver.models import f32
from tests.solver.test_suggest import SETTINGS
from tests.tools.cli.running import runner


def layer(x: Any, w: Any) -> Any:
    return x + jnp.tanh(x @ w["up"]) @ w["down"], None


def loss(p: Any, x: Any) -> Any:
    return jnp.mean(jnp.square(jax.lax.scan(layer, x, p)[0]))


def by_hand(p: Any, x: Any) -> Any:
    return jnp.mean(jnp.square(jax.lax.scan(jax.checkpoint(layer), x, p)[0]))


def shapes(layers: int, d: int, f: int, batch: int) -> Any:
    return {"up": f32(layers, d, f), "down": f32(layers, f, d)}, f32(batch, d)


ARGS = shapes(8, 512, 2048, 16384)


def test_both_kinds_are_in_the_front_and_the_smaller_computes_again() -> None:
    plain = sh.suggest(loss, *ARGS, mesh={"dp": 8}, **SETTINGS)
    both = sh.suggest(loss, *ARGS, mesh={"dp": 8}, checkpoint=True, **SETTINGS)
    assert [bool(plan.checkpoints) for plan in both] == sorted(bool(plan.checkpoints) for plan in both)
    assert not both[0].checkpoints
    assert both[0].seconds == plain[0].seconds
    last, least = both[-1], plain[-1]
    assert last.memory < least.memory
    assert min(plan.seconds for plan in both if plan.memory <= least.memory) <= least.seconds
    assert f"checkpointed: the scan at {Path(__file__).name}:" in last.head.splitlines()[0]
    seconds = [plan.seconds for plan in both]
    assert seconds == sorted(seconds)


def test_where_nothing_else_fits_the_plan_has_checkpoints_as_written_by_hand() -> None:
    limit = 0.6 * sh.suggest(loss, *ARGS, mesh={"dp": 8}, **SETTINGS)[-1].memory
    with pytest.raises(sh.ShardingTypeError, match="fits in"):
        sh.suggest(loss, *ARGS, mesh={"dp": 8}, memory=limit, **SETTINGS)
    plan = sh.suggest(loss, *ARGS, mesh={"dp": 8}, memory=limit, checkpoint=True, **SETTINGS)[0]
    assert plan.checkpoints
    assert plan.memory <= limit
    same = sh.suggest(by_hand, *ARGS, mesh={"dp": 8}, memory=limit, **SETTINGS)[0]
    assert plan.rules == same.rules
    assert (plan.seconds, plan.memory) == pytest.approx((same.seconds, same.memory))
    assert plan.ledger.total == same.ledger.total
    assert plan.bytes == pytest.approx(plan.ledger.total.bytes, rel=2e-3)


def test_what_is_checkpointed_already_stays_as_it_is() -> None:
    one, other = (sh.suggest(by_hand, *ARGS, mesh={"dp": 8}, checkpoint=c, **SETTINGS) for c in (False, True))
    assert str(one) == str(other)
    forward = sh.suggest(loss, *ARGS, mesh={"dp": 8}, checkpoint=True, grad=False, **SETTINGS)
    assert not any(plan.checkpoints for plan in forward)


@pytest.mark.nightly
def test_a_plan_with_checkpoints_is_saved_applied_and_computes_the_same(tmp_path: Path) -> None:
    args, mesh = shapes(3, 16, 32, 64), {"dp": 2, "tp": 2}
    plan = sh.suggest(loss, *args, mesh=mesh, checkpoint=True, **SETTINGS)[-1]
    assert plan.checkpoints
    path = tmp_path / "plan.json"
    path.write_text(plan.to_json())
    typed, values = sh.apply(loss, path), models.arrays(args)
    with sh.use_mesh(sh.make_mesh(mesh)):
        placed = jax.tree.map(sh.array, values, plan.arguments)
        assert sh.ledger(sh.train_step(typed), *placed) == plan.ledger
        assert "remat" in str(jax.make_jaxpr(typed)(*placed))
        found = jax.block_until_ready(jax.tree.map(host, sh.jit(sh.train_step(typed))(*placed)))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(jax.jit(jax.value_and_grad(loss))(*values)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * float(np.abs(b).max()))
    with pytest.raises(sh.ShardingTypeError, match="it checkpoints the scan at"):
        patched(loss, plan)


def test_the_command_takes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.py").write_text("""import jax, jax.numpy as jnp

def loss(w, x):
    return jnp.mean(jax.lax.scan(lambda x, w: (x + jnp.tanh(x @ w), None), x, w)[0])
""")
    call = ("suggest", f"{tmp_path}/model.py:loss", "f32[64, 128, 128]", "f32[16384, 128]", "--mesh", "dp=8")
    run = runner(capsys)
    plain = run(*call).out
    assert "checkpointed" not in plain
    assert "checkpointed: the scan at model.py:4" in run(*call, "--checkpoint", "--memory", "80MiB").out


def two_scans(p: Any, x: Any) -> Any:
    def wide(x: Any, w: Any) -> Any:
        return x + jnp.tanh(x @ w["up"]) @ w["down"], None

    def narrow(x: Any, w: Any) -> Any:
        return jnp.sin(x * w), None

    return jnp.mean(jnp.square(jax.lax.scan(narrow, jax.lax.scan(wide, x, p["wide"])[0], p["narrow"])[0]))


@pytest.mark.nightly
def test_each_scan_is_checkpointed_for_itself(tmp_path: Path) -> None:
    up, down, scale = (jax.ShapeDtypeStruct(s, "float32") for s in ((4, 64, 512), (4, 512, 64), (4, 64)))
    args = {"wide": {"up": up, "down": down}, "narrow": scale}, jax.ShapeDtypeStruct((1024, 64), "float32")
    found = sh.suggest(two_scans, *args, mesh={"dp": 8}, checkpoint=True, **SETTINGS)
    lines = [tuple(place.line for place in plan.checkpoints) for plan in found]
    assert {len(each) for each in lines} >= {0, 1}
    assert [p.seconds for p in found] == sorted(p.seconds for p in found)
    one = next(plan for plan in found if len(plan.checkpoints) == 1)
    path = tmp_path / "plan.json"
    path.write_text(one.to_json())
    with sh.use_mesh(sh.abstract_mesh({"dp": 8})):
        typed = sh.apply(two_scans, str(path))
        assert sh.ledger(sh.train_step(typed), *jax.tree.map(sh.abstract_array, one.arguments)) == one.ledger


def test_what_a_loop_stacks_in_a_checkpoint_is_resharded_again() -> None:
    def loss(ws: Any, x: Any) -> Any:
        @jax.checkpoint
        def layer(x: Any, w: Any) -> Any:
            return jnp.sin(jax.lax.map(lambda row: row @ w, x)), None

        return jnp.sum(jnp.sin(jax.lax.scan(layer, x, ws)[0]))

    found = sh.suggest(loss, f32(2, 32, 32), f32(8, 8, 32), mesh={"dp": 8})
    assert any("again" in r.what for plan in found for r in plan.reshards)
    for plan in found:
        assert plan.bytes == plan.ledger.total.bytes
