"""`visualize`: what it says that devices hold is what they hold; its text and its pictures."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import Any

import jax
import numpy as np
import pytest

import shtypes as sh
from shtypes.analysis.device_slices import distinct, holding, visible
from shtypes.analysis.svg import drawn_dims
from shtypes.core.physical import hidden_axes
from shtypes.types import State
from shtypes.types.mesh import Mesh
from tests.golden import golden

MESHES = {"one": {"x": 4}, "two": {"x": 2, "y": 4}, "three": {"x": 2, "y": 2, "z": 2}}
#: An array of each rank on a mesh of each number of axes.
CASES = [
    *(("one", "f32[]"), ("one", "f32[]{U:x}"), ("one", "f32[8@x]"), ("one", "f32[8,4@x]{}")),
    *(("two", "f32[]{U:(x,y)}"), ("two", "f32[8@(x,y)]"), ("two", "f32[8@(y,x), 4]"), ("two", "f32[8@y, 4@x]")),
    *(("two", "f32[8@x]{U:y}"), ("two", "f32[8, 4]{I:x}"), ("three", "f32[]{U:y, I:x}"), ("three", "f32[8@x, 4@z]")),
    *(("three", "f32[4@z, 8@(y,x), 2]"), ("three", "f32[4@z, 8, 2]{U:x}"), ("three", "f32[2, 4@z, 2, 8@y, 3]")),
]


@pytest.mark.parametrize(("mesh", "text"), CASES)
def test_a_device_holds_what_is_said(mesh: str, text: str) -> None:
    with sh.use_mesh(sh.make_mesh(MESHES[mesh])) as _:
        x = sh.array(np.arange(np.prod(sh.ShType.parse(text).shape)).reshape(sh.ShType.parse(text).shape), text)
        devices = jax.sharding.get_mesh().devices
        hidden = hidden_axes(x.type)
        for shard in x.data.addressable_shards:
            (index,) = np.argwhere(devices == shard.device)
            place = dict(zip(MESHES[mesh], map(int, index), strict=True))
            held = holding(x.type, place)
            spans = [s.indices(n)[:2] for s, n in zip(shard.index, x.data.shape, strict=True)]
            assert spans[: x.ndim] == [span for (span,) in held.spans]
            term = 0
            for axis, (start, _) in zip(hidden, spans[x.ndim :], strict=True):
                term = term * MESHES[mesh][axis] + start
            assert held.term == (term if x.type.axes(State.UNREDUCED) else None)


@pytest.mark.parametrize(("mesh", "text"), CASES)
def test_the_number_of_parts_is_counted(mesh: str, text: str) -> None:
    t = sh.ShType.parse(text, Mesh(MESHES[mesh]))
    sizes = list(MESHES[mesh].values())
    places = [dict(zip(MESHES[mesh], map(int, index), strict=True)) for index in np.ndindex(*sizes)]
    assert len({holding(t, place).part for place in places}) == distinct(t)


@pytest.mark.parametrize(("mesh", "text"), CASES)
def test_the_picture_is_a_cell_for_each_device_in_which_copies_share_a_colour(mesh: str, text: str) -> None:
    t = sh.ShType.parse(text, Mesh(MESHES[mesh]))
    svg = ET.fromstring(sh.visualize(t).to_svg())
    cells = list(svg.iter("{http://www.w3.org/2000/svg}g"))
    assert len(cells) == t.mesh.size
    colours = {tuple(sorted(set(re.findall(r"hsl\([^)]*\)", ET.tostring(g, "unicode"))))) for g in cells}
    assert len(colours) == distinct(t)
    hatched = "url(#shtypes-term)" in ET.tostring(svg, "unicode")
    assert hatched == bool(t.axes(State.UNREDUCED))


def test_the_text_is_what_it_was() -> None:
    shown = [
        str(sh.visualize(text, mesh=Mesh(axes)))
        for text, axes in (
            ("f32[batch=8@dp, 4]{U:tp}", {"dp": 2, "tp": 4}),
            ("f32[8@(dp,tp)]", {"dp": 2, "tp": 2}),
            ("f32[4@pp, 8@dp, 2]{I:tp}", {"pp": 2, "dp": 2, "tp": 2}),
            ("f32[]{V:dp}", {"dp": 4}),
            ("f32[4096@dp, 8]", {"dp": 2048, "tp": 64}),
            ("i32[]", {}),
        )
    ]
    golden("visualize.txt", "\n\n".join(shown))


@pytest.mark.parametrize("sizes", [{"dp": 100_000}, {"dp": 1000, "tp": 1000}, {"a": 64, "b": 64, "c": 64}])
def test_large_meshes_are_shown_by_their_first_and_last_devices(sizes: dict[str, int]) -> None:
    mesh = Mesh(sizes)
    axis = next(iter(sizes))
    found = sh.visualize(f"f32[{sizes[axis]}@{axis}]", mesh=mesh)
    assert len(str(found)) < 5000
    assert "…" in str(found)
    assert ", ".join(f"{a}={n - 1}" for a, n in list(sizes.items())[:-1]) in str(found)
    assert found.to_svg().count("<g>") <= 8 * 12


def test_of_more_than_three_dims_the_sharded_ones_are_drawn() -> None:
    t = sh.ShType.parse("f32[2@x,3,4,5,6]", Mesh({"x": 2}))
    assert drawn_dims(t) == (0, 3, 4)
    assert "drawn: dims 0, 3, 4 of 5" in sh.visualize(t).to_svg()


def test_what_is_shown_of_many_leaves_out_the_middle() -> None:
    assert visible(4, 4) == [0, 1, 2, 3]
    assert visible(9, 4) == [0, 1, None, 8]


def test_a_value_and_a_tracer_are_shown_and_anything_else_is_refused() -> None:
    with sh.use_mesh(sh.make_mesh({"dp": 2})):
        x = sh.ones("f32[8@dp]")
        assert str(sh.visualize(x)) == str(sh.visualize("f32[8@dp]"))
        seen: list[str] = []

        def f(x: Any) -> Any:
            seen.append(str(sh.visualize(x)))
            return x

        jax.make_jaxpr(f)(x)
        assert seen == [str(sh.visualize(x))]
    with pytest.raises(sh.ShardingTypeError, match="`visualize` shows a sharding type, not 3"):
        sh.visualize(3)


def test_the_page_and_the_notebook_show_the_picture() -> None:
    found = sh.visualize("f32[8@dp]", mesh=Mesh({"dp": 2}))
    assert found._repr_html_() in found.to_html()
    assert "f32[8@dp] on dp=2: 2 devices, 16 B each; no two hold the same" in found.to_html()
