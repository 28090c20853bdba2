"""The file of layouts: what it says, and what it is not taken for."""

from __future__ import annotations

from pathlib import Path

import pytest

import shtypes as sh
from examples.transformer.layouts import FILE, Layout, read
from examples.transformer.model import Sizes

STRATEGIES = FILE.read_text().split("[layouts]")[0]


def layout(row: str, folder: Path, more: str = "") -> Layout:
    """The layout of a file that someone writes."""
    file = folder / "layouts.toml"
    file.write_text(f"{STRATEGIES}{more}\n[layouts]\nmine = {{ {row} }}\n")
    return read(file)["mine"]


def test_a_layout_is_a_mesh_and_the_axes_of_all_its_strategies_in_their_order(tmp_path: Path) -> None:
    found = layout('mesh = { dp = 2, cp = 2, tp = 2 }, uses = ["data", "ring", "tensor", "sequence"]', tmp_path)
    assert found.devices == 8
    assert found.dims["stream"] == ("cp", "tp")
    assert found.dims["keys"] == found.dims["seq"] == ("cp",)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ('mesh = { dp = 8 }, uses = ["dat"]', "the strategy `dat` is not one of data, tensor, sequence"),
        ('mesh = { dp = 8 }, uses = ["tensor"]', "the mesh axis of `heads`, `tp` is not one of dp"),
        ('mesh = { dp = "8" }, uses = ["data"]', "the sizes of mesh axes are numbers from 1 on, not {'dp': '8'}"),
        ('mesh = { dp = 0 }, uses = ["data"]', "the sizes of mesh axes are numbers from 1 on, not {'dp': 0}"),
        ('uses = ["data"]', "the mesh axis of `batch`, `dp` is not one of none"),
        ('mesh = { dp = 8 }, uses = ["data"], zeroo = 3', "the key `zeroo` is not one of mesh, uses, masters, zero"),
        ('mesh = { tp = 8 }, uses = ["odd"]', "the dim `heds` is not one of batch, seq, stream"),
        ('mesh = { dp = 8 }, zero = 1, masters = { hiden = "dp" }', "the dim of masters `hiden` is not one of hidden"),
        (
            'mesh = { dp = 8 }, zero = 1, masters = { hidden = "tp" }',
            "the mesh axis of `hidden`, `tp` is not one of dp",
        ),
        ('mesh = { dp = 8 }, uses = ["data"], zero = 3', "`zero` is 3, and `masters` shards nothing"),
        ('mesh = { dp = 8 }, masters = { hidden = "dp" }', "`zero` is 0, and `masters` shards hidden"),
        ('mesh = { dp = 8 }, zero = 4, masters = { hidden = "dp" }', "`zero` is 4"),
        ('mesh = { pp = 8 }, uses = ["pipeline"]', "the schedule is ``, of 0 microbatches, and `layer` is sharded"),
        ('mesh = { pp = 8 }, uses = ["pipeline"], schedule = "gpipe"', "the schedule is `gpipe`, of 0 microbatches"),
        ('mesh = { dp = 8 }, schedule = "gpipe", microbatches = 4', "of 4 microbatches, and `layer` is not sharded"),
    ],
)
def test_a_name_that_says_nothing_and_half_of_what_is_needed_are_refused(row: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(sh.ShardingTypeError, match="layout `mine`: ") as caught:
        layout(row, tmp_path, 'odd = { heds = "tp" }')
    assert said in caught.value.what


def test_sizes_that_name_no_dtype_or_no_policy_are_refused() -> None:
    for field, wrong in (("dtype", "f16"), ("remat", "some")):
        with pytest.raises(sh.ShardingTypeError, match=f"`{field}` is one of .*, not '{wrong}'"):
            Sizes(**{field: wrong})  # type: ignore[arg-type]
