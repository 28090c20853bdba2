"""Parts of processes as typed values, in one process and in two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import shtypes as sh
from tests.processes import run_processes

pytestmark = pytest.mark.mesh({"dp": 2, "tp": 2})


def test_in_one_process_the_part_is_the_whole() -> None:
    rows = np.arange(32.0).reshape(8, 4)
    types: list[Any] = ["f32[8@dp, 4]", "[batch@dp, _]", "f32[8, 4@(dp,tp)]", "f32[_, ...]", jax.P("dp")]
    for type in (*types, sh.ShType.parse("f32[8@dp, 4@tp]")):
        x = sh.array_from_process(rows, type)
        assert x.type == sh.array(rows, type).type
        np.testing.assert_array_equal(np.asarray(x), rows)
    assert sh.addressable_slices("f32[8@dp, 4]") == (slice(0, 8), slice(0, 4))
    assert sh.addressable_slices("f32[]") == ()


def test_sizes_may_come_from_scopes_and_axes_from_names() -> None:
    with sh.dims(batch=8), sh.dim_axes({"batch": "dp"}):
        x = sh.array_from_process(np.ones((8, 3)), "[batch, seq]")
    assert str(x.type) == "f32[batch@dp, seq]"


def test_an_array_without_elements_and_one_of_no_dims_are_values() -> None:
    assert sh.array_from_process(np.ones((0, 3), np.float32), "[_@dp, _]").shape == (0, 3)
    assert float(sh.array_from_process(np.float32(3), "[]")) == 3.0


@pytest.mark.parametrize(
    ("local", "type", "what"),
    [
        pytest.param(
            np.ones((4, 3)), "f32[8@dp, 3]", r"process 0 of 1 holds \[0:8, 0:3\] of f32\[8@dp,3\], of shape \(8, 3\), "
            r"and gives an array of shape \(4, 3\)", id="another shape",
        ),
        pytest.param(np.ones((4, 3)), "f32[8@dp]", "dim", id="another rank"),
        pytest.param(np.ones(4), "f32[4]{U:dp}", "parts of processes: it is unreduced over `dp`", id="pending"),
        pytest.param(np.ones(4), "f32[4]{V:dp}", "from the parts of processes: it varies over `dp`", id="varying"),
        pytest.param(np.ones(3), "[_@dp]", "3 cannot be sharded in 2", id="uneven"),
        pytest.param(np.ones(4) + 0.5, "i32[4@dp]", "cannot become", id="another dtype"),
        pytest.param(["a"], "f32[1]", "an array or a number was expected", id="text"),
    ],
)  # fmt: skip
def test_a_part_that_does_not_fit_is_refused_in_words(local: Any, type: str, what: str) -> None:
    with pytest.raises(sh.ShardingTypeError, match=what) as caught:
        sh.array_from_process(local, type)
    assert caught.value.where.startswith("test_processes.py:")


def test_a_typed_value_and_a_traced_one_are_refused() -> None:
    with pytest.raises(sh.ShardingTypeError, match="has a type already"):
        sh.array_from_process(sh.ones("f32[4]"), "f32[4]")
    with pytest.raises(sh.ShardingTypeError, match="and here a program is traced"):
        jax.jit(lambda: sh.array_from_process(np.ones(4), "f32[4@dp]"))()


def test_a_slice_of_a_pending_sum_is_nobodys() -> None:
    with pytest.raises(sh.ShardingTypeError, match="it is unreduced over `dp`"):
        sh.addressable_slices("f32[4]{U:dp}")


PARTS = """
sh.set_mesh(sh.make_mesh({"dp": 2, "tp": 4}))
whole = np.arange(64, dtype=np.float32).reshape(8, 8)
for t in ("f32[8@dp, 8]", "f32[8, 8@tp]", "f32[8@(dp,tp), 8]", "f32[8, 8]", "f32[8@tp, 8@dp]"):
    mine = sh.addressable_slices(t)
    x = sh.array_from_process(whole[mine], t)
    assert [s.stop - s.start for s in mine] == [8 >> ("dp" in d) for d in t[4:-1].split(", ")]
    np.testing.assert_array_equal(np.asarray(sh.reshard(x, "[_...]")), whole)
    np.testing.assert_array_equal(np.asarray(sh.reshard(sh.array(whole, t), "[_...]")), whole)
x = sh.array_from_process(np.full((4, 8), process), "f32[batch@dp, hidden]")
print(x)
for read in (np.asarray, float, bool, lambda x: x.tolist(), lambda x: 8.0 in x, jax.device_get):
    told(read, x)
sh.tree.show(x)
gradients = sh.jit(sh.grad(lambda w, x: sh.mean((x @ w) ** 2)))(sh.ones("f32[8, 2]"), x)
np.testing.assert_allclose(np.asarray(sh.reshard(gradients, "[_...]")), 4.0)  # 2 / 16 * (4 rows of 1 * 8)
told(sh.array_from_process, np.full((8, 8), process, np.float32), "f32[8, 8@tp]")
print(sh.array_from_process(np.full(8, process), "f32[8@tp]", check=False).type)
told(sh.array_from_process, np.ones((8, 8)), "f32[8@dp, 8]")
told(sh.array, np.full(8, process, np.float32), "f32[8@dp]")
def mesh(axes, *devices):
    return sh.use_mesh(sh.make_mesh(axes, devices=[jax.devices()[i] for i in devices]))
with mesh({"dp": 4, "tp": 2}, 0, 4, 1, 5, 2, 6, 3, 7):  # along tp, the processes take turns
    told(sh.addressable_slices, "f32[8@tp]")
    told(sh.addressable_slices, "f32[8@dp]")
with mesh({"dp": 4}, 0, 4, 1, 5):
    told(sh.addressable_slices, "f32[8@dp]")
with mesh({"dp": 2, "tp": 2}, 0, 1, 2, 4):
    told(sh.addressable_slices, "f32[8@dp, 8@tp]")
with mesh({"dp": 2}, 4, 5):
    told(sh.addressable_slices, "f32[8@dp]")
"""


@pytest.mark.slow
def test_each_of_two_processes_gives_its_own_part(tmp_path: Path) -> None:
    elsewhere = "f32[batch@dp, hidden] cannot be read on the host: a part of it is on devices of another process"
    for me, told in enumerate(run_processes(PARTS, tmp_path)):
        rows, other = ("0:4", "0:2, 4:6") if me == 0 else ("4:8", "2:4, 6:8")
        mine = slice(*map(int, rows.split(":")))
        assert [line for line in told if not line.startswith(("1 array", "  "))] == [
            "Array(f32[batch@dp, hidden])",
            *[elsewhere] * 6,
            f"processes {me} and {1 - me} hold the same part of f32[8,8@tp], and give different ones",
            "f32[8@tp]",
            f"process {me} of 2 holds [{rows}, 0:8] of f32[8@dp,8], of shape (4, 8), "
            "and gives an array of shape (8, 8)",
            "the processes give different data for one value of type f32[8@dp]",
            str((mine,)),
            str((slice(0, 8),)),
            f"what process {me} holds of dim 0 of f32[8@dp] is no slice: {other}",
            *(
                ["what process 0 holds of f32[8@dp,8@tp] is no slice of each dim: of 4 blocks it has 3"]
                if me == 0
                else ["(slice(4, 8, None), slice(4, 8, None))"]
            ),
            "no device of the mesh (dp=2) is of process 0" if me == 0 else str((slice(0, 8),)),
        ]
