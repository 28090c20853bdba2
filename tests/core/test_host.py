"""What the host may read of a value, and what it is told where it may not: in the words of what the user wrote."""

from __future__ import annotations

import operator
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import shtypes as sh
from shtypes.core.array import wrap
from tests.processes import run_processes

pytestmark = pytest.mark.mesh({"x": 2})


READS: dict[str, Callable[[Any], Any]] = {
    "float": float,
    "int": int,
    "bool": bool,
    "complex": complex,
    "operator.index": operator.index,
    "item": lambda x: x.item(),
    "tolist": lambda x: x.tolist(),
    "np.asarray": np.asarray,
    "format": lambda x: f"{x:.2f}",
}


@pytest.mark.parametrize("name", READS)
def test_what_cannot_be_read_names_what_the_user_wrote(name: str) -> None:
    pending = sh.sum(sh.array([1.0, 2.0], "f32[2@x]"))
    with pytest.raises(sh.ShardingTypeError) as caught:
        READS[name](pending)
    error = caught.value
    error.where = error.where.replace(f":{error.where.split(':')[1]}:", ":N:").split(": ")[-1]
    assert str(error) == (
        "f32[]{U:x} cannot be read on the host: it is unreduced over `x`\n"
        f"  where: {name}(f32[]{{U:x}})\n"
        "  why:   each device holds one term of a sum that is still pending\n"
        '  fix:   sh.reshard(x, "[]")   [forward: all-reduce over `x`, 4 B/device; backward: none]'
    )


def test_the_users_line_is_named() -> None:
    with pytest.raises(sh.ShardingTypeError) as caught:
        float(sh.abstract_array("f32[]"))
    assert caught.value.where.startswith("test_host.py:")
    assert caught.value.where.endswith("in test_the_users_line_is_named: float(f32[])")


def test_keys_are_read_by_their_words() -> None:
    key = sh.random.key(0)
    with pytest.raises(sh.ShardingTypeError, match="numpy has no keys") as caught:
        np.asarray(key)
    assert caught.value.hints == ("sh.random.key_data(x)",)
    assert np.asarray(sh.random.key_data(key)).shape == (2,)


class Elsewhere:
    """A physical array of which another process holds a part, as far as the host asks."""

    is_fully_addressable = False
    is_fully_replicated = False


@pytest.mark.parametrize("read", [np.asarray, float, pickle.dumps], ids=["np.asarray", "float", "pickle"])
def test_a_part_in_another_process_is_said_in_our_words(read: Callable[[Any], Any]) -> None:
    value: Any = wrap(sh.array([1.0, 2.0], "f32[2@x]").type, Elsewhere())
    with pytest.raises(sh.ShardingTypeError, match="a part of it is on devices of another process") as caught:
        read(value)
    assert caught.value.where.startswith("test_host.py:")
    assert len(caught.value.hints) == 2


NO_ARRAYS: dict[str, tuple[Any, str]] = {
    "None": (None, "None"),
    "a dict": ({"a": 1}, "the dict {'a': 1}"),
    "a text": ("abc", "the str 'abc'"),
    "a list with None": ([1, None], "the list [1, None]"),
    "bytes": (b"ab", "the bytes b'ab'"),
    "a ragged list": ([[1], [1, 2]], "the list [[1], [1, 2]]"),
    "a date": (np.datetime64("2020-01-01"), "the datetime64 np.datetime64('2020-01-01')"),
}


@pytest.mark.parametrize("case", NO_ARRAYS.values(), ids=NO_ARRAYS)
def test_what_is_no_array_is_named(case: tuple[Any, str]) -> None:
    given, shown = case
    with pytest.raises(sh.ShardingTypeError) as caught:
        sh.array(given)
    assert caught.value.what == f"an array or a number was expected, not {shown}"
    assert caught.value.why


def test_a_tree_of_arrays_is_told_how_to_become_typed() -> None:
    tree = {"a": np.ones(2, np.float32)}
    with pytest.raises(sh.ShardingTypeError) as caught:
        sh.array(tree)
    assert caught.value.hints == ("jax.tree.map(sh.array, tree, types) for a tree of arrays",)
    assert str(jax.tree.map(sh.array, tree, {"a": "f32[2@x]"})["a"].type) == "f32[2@x]"


def test_processes_that_give_different_data_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def differ(*_: Any) -> Any:
        raise AssertionError("device_put's first argument must be the same on all processes: [[1. 2.]]")

    monkeypatch.setattr(jax, "device_put", differ)
    with pytest.raises(sh.ShardingTypeError) as caught:
        sh.array([1.0, 2.0], "f32[2@x]")
    assert caught.value.what == "the processes give different data for one value of type f32[2@x]"
    assert caught.value.where.startswith("test_host.py:")


PROGRAM = """
import pickle
sh.set_mesh(sh.make_mesh({"x": 4}))
x = sh.array(np.arange(4.0), "f32[4@x]")
told(np.asarray, x)
told(pickle.dumps, x)
print(np.asarray(sh.reshard(x, "[4]")).tolist(), [s.data.tolist() for s in x.to_jax().addressable_shards])
mine = np.full(2, float(process), np.float32)
parts = jax.make_array_from_process_local_data(x.to_jax().sharding, mine)
print(np.asarray(sh.reshard(sh.from_jax(parts), "[4]")).tolist())
told(sh.array, np.full(4, float(process)), "f32[4@x]")
"""


@pytest.mark.slow
def test_two_processes_read_what_they_hold_and_are_told_of_the_rest(tmp_path: Path) -> None:
    elsewhere = "f32[4@x] cannot be read on the host: a part of it is on devices of another process"
    for rank, said in enumerate(run_processes(PROGRAM, tmp_path, devices=2)):
        assert said == [
            elsewhere,
            elsewhere,
            f"[0.0, 1.0, 2.0, 3.0] {[[0.0], [1.0]] if rank == 0 else [[2.0], [3.0]]}",
            "[0.0, 0.0, 1.0, 1.0]",
            "the processes give different data for one value of type f32[4@x]",
        ]


@pytest.mark.parametrize("spec", ["f32[8@x, 16]", "f32[8, 16]"])
def test_values_do_not_follow_the_memory_that_they_were_made_of(spec: str) -> None:
    # At a boundary of 64 bytes a CPU device takes the memory that it is given for its own.
    memory = np.zeros(8 * 16 * 4 + 64, np.uint8)
    host = memory[-memory.ctypes.data % 64 :][: 8 * 16 * 4].view(np.float32).reshape(8, 16)
    batches = sh.prefetch_to_device(iter([host, host]), spec)
    made = [sh.array(host, spec), sh.array_from_process(host, spec), next(batches)]
    host[:] = 1
    assert [float(np.max(np.asarray(x))) for x in made] == [0, 0, 0]
