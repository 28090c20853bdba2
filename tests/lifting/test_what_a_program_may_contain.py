"""The table of `docs/lift.md` of what a lifted program may contain: each example gives its type, and JAX's values."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify, io_callback

import shtypes as sh
from tests.end_to_end import close, host

_PAGE: Final = Path(__file__).parents[2] / "docs" / "lift.md"
_ROW: Final = re.compile(r"^\| .* \| .* \| `(?P<code>[^`]+)` \| (?P<result>refused|`[^`]+`) \|$", re.MULTILINE)
ROWS: Final = {m["code"]: m["result"].strip("`") for m in _ROW.finditer(_PAGE.read_text())}
X, W, BIAS = (np.random.default_rng(i).normal(size=s).astype(np.float32) for i, s in enumerate([(8, 4), (4, 4), (4,)]))
NAMES: Final = {
    "jax": jax, "jnp": jnp, "np": np, "sh": sh, "P": jax.P, "checkify": checkify, "io_callback": io_callback,
}  # fmt: skip


def test_the_table_has_its_rows() -> None:
    assert len(ROWS) >= 22
    assert sum(result == "refused" for result in ROWS.values()) == 3


@pytest.mark.one_in(5)
@pytest.mark.parametrize("code", ROWS)
def test_an_example_gives_its_type_and_the_values_of_one_device(code: str) -> None:
    with sh.use_mesh(sh.make_mesh({"dp": 2, "tp": 2})):
        x, w, bias = sh.array(X, "f32[8@dp, 4]"), sh.array(W, "f32[4, 4@tp]"), sh.array(BIAS, "f32[4]")
        run = sh.lift(lambda x, w: eval(code, {**NAMES, "x": x, "w": w, "bias": bias}))
        if ROWS[code] == "refused":
            with pytest.raises((sh.ShardingTypeError, jax.errors.TracerBoolConversionError)):
                run(x, w)
            return
        for found in (run(x, w), sh.jit(run)(x, w)):
            assert str(jax.typeof(found)) == ROWS[code]
            close(host(found), _on_one_device(code), code)


def _on_one_device(code: str) -> Any:
    mesh = jax.make_mesh(
        (1, 1), ("dp", "tp"), axis_types=(jax.sharding.AxisType.Explicit,) * 2, devices=jax.devices()[:1]
    )
    if "shard_map" in code:  # whose shards are summed
        return X[:4] + X[4:]
    with jax.set_mesh(mesh):
        return eval(code, {**NAMES, "x": jnp.asarray(X), "w": jnp.asarray(W), "bias": jnp.asarray(BIAS)})
