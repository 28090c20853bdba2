"""`explain_reshard`: its text, JSON, pictures and pages, and what it says of odd inputs."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import jax
import pytest

import shtypes as sh
from shtypes.analysis.describe_plan import ways
from tests.analysis.explain.test_json import faults
from tests.golden import golden

SCHEMA = json.loads((Path(__file__).parents[3] / "docs" / "reshard.schema.json").read_text(encoding="utf-8"))
SVG = "{http://www.w3.org/2000/svg}"
M24, M222 = sh.abstract_mesh({"x": 2, "y": 4}), sh.abstract_mesh({"x": 2, "y": 2, "z": 2})
#: Plans than which none can be better, of each kind.
GOLDEN: dict[str, tuple[Any, str, str]] = {
    "gather": (sh.abstract_mesh({"dp": 2, "tp": 4}), "f32[128, d=128@tp]", "[_, _]"),
    "all_to_all": (sh.abstract_mesh({"dp": 2, "tp": 4}), "f32[8@dp, 16]", "[_, _@dp]"),
    "scattered_with_copies": (M222, "f32[8, 8]{U:x}", "[8, 8@x]{U:z}"),
    "prime_factors": (M24, "i32[8@x, 8]", "[8@y, 8]"),
    "strided": (M24, "f32[8, 8]{U:y}", "[8, 8@(y,x)]"),
}
#: Pairs that have little to say.
ODD: dict[str, tuple[dict[str, int], str, str]] = {
    "the same type": ({"x": 2, "y": 4}, "f32[8@x]", "[...]"),
    "a scalar": ({"x": 2, "y": 4}, "f32[]{U:x}", "[]"),
    "a scalar that stays": ({"x": 2}, "f32[]", "[]"),
    "axes of one device": ({"x": 1, "y": 2}, "f32[4@(x,y), 2]", "[4@y, 2@x]"),
    "sums over axes of one device": ({"x": 1, "y": 1}, "f32[4]{U:(x,y)}", "[4@x]{U:y}"),
    "an axis of one device first": ({"x": 1, "y": 2}, "f32[4@(x,y)]", "[4@(y,x)]"),
    "varying axes": ({"x": 2, "y": 2}, "f32[4@y]{V:x}", "[4]{V:x}"),
    "sums that stay": ({"x": 2, "y": 2}, "f32[4@y]{U:x}", "[4]{U:x}"),
    "keys": ({"x": 2}, "key<fry>[4@x]", "[4]"),
    "booleans": ({"x": 2}, "bool[4]", "[4@x]"),
    "no elements": ({"x": 2, "y": 2}, "f32[0@x, 4]", "[0, 4@x]"),
    "no elements, in digits": ({"x": 2, "y": 4}, "f32[0@x, 8]{U:y}", "[0@y, 8]"),
    "no mesh axis": ({}, "f32[4]", "[4]"),
    "five dims": ({"x": 2, "y": 2}, "f32[2, 4@x, 2, 2, 4@y]", "[2, 4@y, 2, 2, 4@x]"),
    "many devices": ({"x": 4096, "y": 512}, "f32[8192@x, 1024]", "[8192, 1024@y]"),
    "many devices in parts": ({"x": 64, "y": 512}, "f32[8192@x, 1024]{U:y}", "[8192@y, 1024]"),
}
EVERY = {**GOLDEN, **{name: (sh.abstract_mesh(mesh), src, dst) for name, (mesh, src, dst) in ODD.items()}}


@pytest.mark.parametrize("name", GOLDEN)
def test_the_text_is_what_it_was(name: str) -> None:
    mesh, src, dst = GOLDEN[name]
    golden(f"resharding/{name}.txt", str(sh.explain_reshard(src, dst, mesh=mesh, model="h100-nvlink")))


def test_the_pairs_of_the_texts_are_what_they_are_there_for() -> None:
    found = {name: sh.explain_reshard(src, dst, mesh=mesh).forward for name, (mesh, src, dst) in GOLDEN.items()}
    assert {name for name, plan in found.items() if not plan.plain} == {"prime_factors", "strided"}
    assert any(step.dst.mesh is not M24 for step in found["prime_factors"].steps)
    assert any(step.dst.ndim > 2 for step in found["strided"].steps)


@pytest.mark.one_in(7)
@pytest.mark.parametrize("name", EVERY)
def test_the_json_is_as_the_schema_says(name: str) -> None:
    mesh, src, dst = EVERY[name]
    for model in (None, "h100-nvlink"):
        found = sh.explain_reshard(src, dst, mesh=mesh, model=model)
        document = json.loads(found.to_json())
        assert list(faults(document, SCHEMA, root=SCHEMA)) == []
        assert document["forward"]["bytes"] == sum(step["bytes"] for step in document["forward"]["steps"])
        assert (document["forward"]["seconds"] is None) == (model is None)
        assert (document["backward"] is None) == (not found.forward.src.differentiable)
    broken = {**document, "forward": {**document["forward"], "bytes": "many"}}
    assert list(faults(broken, SCHEMA, root=SCHEMA)) == ["$.forward.bytes is a str"]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", EVERY)
def test_the_picture_has_each_device_before_between_and_after(name: str) -> None:
    mesh, src, dst = EVERY[name]
    found = sh.explain_reshard(src, dst, mesh=mesh)
    svg = ET.fromstring(found.to_svg())
    types = [t for _, plan in found.plans for t in ways(plan)]
    assert len(types) == sum(len(plan.steps) + 1 for _, plan in found.plans)
    *outer, last = mesh.axis_sizes or (1,)
    count = 1
    for size in outer:
        count *= size
    rows = count if count <= 8 else 7
    columns = last if last <= 8 else 7
    assert len(list(svg.iter(f"{SVG}g"))) == len(types) * rows * columns
    assert len(list(svg.iter(f"{SVG}path"))) == sum(len(plan.steps) for _, plan in found.plans)
    hatched = "url(#shtypes-term)" in ET.tostring(svg, "unicode")
    assert hatched == any(t.axes(sh.State.UNREDUCED) for t in types)
    width, height = map(float, svg.attrib["viewBox"].split()[2:])
    for text in svg.iter(f"{SVG}text"):
        assert 0 <= float(text.attrib["x"]) <= width
        assert 0 <= float(text.attrib["y"]) <= height
    assert len(found.to_svg()) < 1_000_000


def test_a_colour_is_a_part_of_the_array_as_it_was() -> None:
    """After an all-to-all each device has a piece of every colour of its group; after a gather, all colours."""

    def colours(src: str, dst: str) -> list[set[str]]:
        found = sh.explain_reshard(src, dst, mesh=sh.abstract_mesh({"x": 4}))
        cells = ET.fromstring(found.to_svg()).iter(f"{SVG}g")
        return [set(re.findall(r"hsl\([^)]*\)", ET.tostring(g, "unicode"))) for g in cells]

    for dst in ("[4, 8@x]", "[4, 8]"):
        found = colours("i32[4@x, 8]", dst)
        assert [len(c) for c in found] == [1, 1, 1, 1, 4, 4, 4, 4]
        assert set().union(*found[:4]) == found[4]
    assert len(set().union(*colours("i32[4, 8]", "[4@x, 8]"))) == 1


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ODD)
def test_odd_pairs_are_explained_too(name: str) -> None:
    mesh, src, dst = EVERY[name]
    found = sh.explain_reshard(src, dst, mesh=mesh, model="a100-nvlink")
    text = str(found)
    assert len(text) < 20_000
    assert repr(found) == text
    for _, plan in found.plans:
        assert len(found.sentences(plan)) == len(plan.steps)
    page = found.to_html()
    assert found.to_svg() in page
    assert found._repr_html_() in page


def test_what_is_said_where_little_happens() -> None:
    def text(name: str) -> str:
        mesh, src, dst = EVERY[name]
        return str(sh.explain_reshard(src, dst, mesh=mesh))

    assert text("the same type").startswith("forward: f32[8@x] -> f32[8@x]\n  nothing to do\n\nbackward")
    assert "`x` has one device, so nothing is done or sent; each device then holds" in text("axes of one device")
    assert "backward" not in text("keys")
    assert "then holds the value (4 B)" in text("a scalar")
    assert "who holds what, forward, on one device\n  device   before and after\n  the one  [:]" in text("no mesh axis")
    assert "x=4095, y=511" in text("many devices")


def test_more_dims_than_can_be_drawn_are_left_out_aloud() -> None:
    mesh, src, dst = EVERY["five dims"]
    assert "; of 5 dims 1, 3, 4 are drawn" in sh.explain_reshard(src, dst, mesh=mesh).to_svg()


def test_a_value_a_tracer_and_a_spec_will_do() -> None:
    with sh.use_mesh(sh.make_mesh({"dp": 2, "tp": 4})):
        wanted = str(sh.explain_reshard("f32[8@dp, 4]", "[8, 4@dp]"))
        x = sh.ones("f32[8@dp, 4]")
        assert str(sh.explain_reshard(x, "[_, _@dp]")) == wanted
        assert str(sh.explain_reshard(x.type, sh.typeof(sh.reshard(x, "[_, _@dp]")))) == wanted
        assert str(sh.explain_reshard(x, jax.P(None, "dp"))) == wanted
        assert str(sh.explain_reshard(x, "[_, _@dp]", mesh=jax.sharding.get_mesh())) == wanted
        seen: list[str] = []

        def f(x: Any) -> Any:
            seen.append(str(sh.explain_reshard(x, "[_, _@dp]")))
            return x

        jax.make_jaxpr(f)(x)
        assert seen == [wanted]
    named = sh.explain_reshard("f32[b@dp, 4]", "[b, 4]", mesh=sh.abstract_mesh({"dp": 2}), dims={"b": 8}, policy="jax")
    assert named.forward.dst == sh.ShType.parse("f32[8, 4]{I:dp}", sh.abstract_mesh({"dp": 2}))
    assert "each device then holds the whole array (128 B)" in named.sentences(named.forward)[0]


def test_the_plans_are_those_that_a_reshard_sends() -> None:
    with sh.use_mesh(sh.make_mesh({"x": 2, "y": 4})):
        x = sh.ones("f32[8, 8@x]{U:y}")
        found = sh.explain_reshard(x, "[8@y, 8]")
        ledger = sh.ledger(lambda x: sh.reshard(x, "[8@y, 8]"), x)
        assert [e.bytes for e in ledger.entries] == [s.bytes for s in found.forward.steps if s.launches]


MESH = sh.abstract_mesh({"dp": 2})
REFUSED: list[tuple[tuple[Any, Any], dict[str, Any], str]] = [
    ((3, "[8]"), {}, "`explain_reshard` starts from a sharding type, not 3"),
    (("f32[8@dp]", 3), {"mesh": MESH}, "`3` does not name a type"),
    (("f32[8@dp]", "[9]"), {"mesh": MESH}, "dim 0 has size 9 in the type and 8 in"),
    (("f32[8@dp]", "i32[8]"), {"mesh": MESH}, "dtype"),
    (("f32[8@tp]", "[8]"), {"mesh": MESH}, "the mesh has no axis `tp`"),
    (("f32[8]{V:dp}", "[8]"), {"mesh": MESH}, "varies over mesh axis `dp`"),
    (("f32[8]", "[8]"), {"mesh": {"dp": 2}}, "is no mesh"),
    (("f32[8]", "[8]"), {}, "no mesh is set"),
    (("f32[8]", "[8]"), {"mesh": MESH, "model": "nvlnk"}, "there is no link 'nvlnk'; known are a100-nvlink"),
    (
        ("f32[8]", "[8]"),
        {"mesh": MESH, "model": 3},
        "`model` is a cost model, a link or the name of one, links by axis, or a file of them, not 3",
    ),
    (("f32[8]", "[8]"), {"mesh": MESH, "policy": "jaxx"}, "jaxx"),
    ((sh.ShType.parse("f32[8]", MESH), "[8]"), {"mesh": M24}, "over the mesh dp=2, not over x=2, y=4"),
]


@pytest.mark.parametrize(("args", "options", "said"), REFUSED, ids=[said for _, _, said in REFUSED])
def test_what_cannot_be_explained_is_refused_in_one_message(
    args: tuple[Any, Any], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(sh.ShardingTypeError, match=re.escape(said)) as error:
        sh.explain_reshard(*args, **options)
    assert "where:" in str(error.value)


def test_links_of_axes_are_the_links_of_their_parts() -> None:
    mesh, src, dst = GOLDEN["prime_factors"]
    slow, fast = (sh.cost_model("h100-nvlink", y=sh.Link(bandwidth=b)) for b in (1e6, 450e9))
    found = [sh.explain_reshard(src, dst, mesh=mesh, model=model) for model in (slow, fast, sh.Link(450e9))]
    times = [report.seconds(report.forward) or 0 for report in found]
    assert times[0] > 1e4 * times[1] > 0
    assert times[1] == times[2]
