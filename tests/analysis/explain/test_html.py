"""The page, in a real browser where one is installed: types beside their lines, the ledger on focus and hover."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import shtypes as sh
from shtypes.analysis.explain.explanation import Explanation
from shtypes.analysis.explain.page import mesh_svg, size, source_html
from shtypes.analysis.explain.source import Excerpt
from shtypes.tools.demo import gated_mlp as model
from shtypes.types.mesh import Mesh
from tests.analysis.explain.test_listing import PROGRAMS, explained

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
DRIVER = shutil.which("chromedriver")
QUIET = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1400,1200"),
]

needs_browser = pytest.mark.skipif(BROWSER is None, reason="no browser is installed")

#: Runs in the page: what a reader of it would see. `done` comes first, so that a failure cannot pass for a result.
REPORT = """
<script>
const text = (e) => e ? e.innerText.replace(/\\s+/g, " ").trim() : null;
const rows = {};
for (const row of document.querySelectorAll(".row.typed")) {
  const marks = [...row.querySelectorAll(".comm button")].map(text);
  const box = (e) => { const r = e.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom]; };
  rows[row.id] = { source: text(row.querySelector(".src")), types: [...row.querySelectorAll(".v")].map(text), marks,
                   boxes: [box(row.querySelector(".src")), box(row.querySelector(".types"))] };
}
const shown = (e) => getComputedStyle(e).display !== "none";
const first = document.querySelector(".comm");
const tips = first ? [shown(first.querySelector(".tip"))] : [];
if (first) {
  const below = first.closest(".v").getBoundingClientRect().bottom;
  first.querySelector("button").focus();
  tips.push(shown(first.querySelector(".tip")), text(first.querySelector(".tip")));
  tips.push(first.closest(".v").getBoundingClientRect().bottom > below + 20);  // it makes room, and covers nothing
  document.activeElement.blur();
  tips.push(shown(first.querySelector(".tip")));
}
const paper = () => getComputedStyle(document.body).backgroundColor;
const themes = [paper()];
document.getElementById("theme").click();
themes.push(paper());
document.getElementById("show-forward").click();
const hidden = [...document.querySelectorAll(".v.forward")].every((e) => !shown(e));
const described = [...document.querySelectorAll("[aria-describedby]")]
  .every((e) => document.getElementById(e.getAttribute("aria-describedby"))?.getAttribute("role") === "tooltip");
const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
const links = [...document.querySelectorAll("a")].map((e) => document.getElementById(e.hash.slice(1)) !== null);
const pre = document.createElement("pre");
pre.id = "report";
pre.textContent = JSON.stringify({ done: true, rows, tips, themes, hidden, described, links,
  unique: new Set(ids).size === ids.length, title: document.title,
  mesh: document.querySelector("svg title").textContent,
  requests: performance.getEntriesByType("resource").map((e) => e.name), wide: document.body.scrollWidth });
document.body.append(pre);
</script>
"""


def seen(found: Explanation, tmp_path: Path) -> dict[str, Any]:
    """What the browser reports of a page; a message of its console is a failure."""
    path = tmp_path / "page.html"
    page = found.to_html().replace("default-src 'none'", "default-src 'none'; script-src 'unsafe-inline'")
    path.write_text(page.replace("</body>", f"{REPORT}</body>"), encoding="utf-8")
    command = [str(BROWSER), *QUIET, f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr"]
    ran = subprocess.run(
        [*command, "--dump-dom", path.as_uri()], capture_output=True, text=True, timeout=100, check=True
    )
    assert not re.findall(r"^.*:CONSOLE.*$", ran.stderr, re.M)
    reported = re.search(r'<pre id="report">(.*?)</pre>', ran.stdout, re.S)
    assert reported is not None
    report: dict[str, Any] = json.loads(html.unescape(reported[1]))
    return report


def gated_mlp() -> Explanation:
    mesh = sh.abstract_mesh({"dp": 2, "tp": 2})
    return sh.explain(model.loss_with_casts, grad=True, mesh=mesh, policy="jax")


@needs_browser
def test_a_browser_shows_types_beside_the_lines_and_the_ledger_on_focus(tmp_path: Path) -> None:
    found = gated_mlp()
    report = seen(found, tmp_path)
    assert report["done"]
    by_source = {row["source"]: row for row in report["rows"].values()}
    row = by_source['rx = sh.reshard(x, tp="R")']
    assert row["types"] == [
        "rx: f32[seq, batch@dp, hidden]{R:tp} = reshard[tp: I->R] x",
        "g_x: f32[seq, batch@dp, hidden] = reshard[tp: U->I] g_rx all-reduce over tp",
    ]
    assert row["marks"] == ["all-reduce over tp"]
    (left, top, right, bottom), types = row["boxes"]
    assert left < right <= types[0]
    assert types[1] < bottom  # beside it, not below
    assert top < types[3]
    texts = [text for row in report["rows"].values() for text in row["types"]]
    for line in found.lines:
        assert any(text.startswith(f"{line.name}: {shown(line.type)}") for text in texts), line
    before, focused, text, below, left = report["tips"]
    assert (before, focused, below, left) == (False, True, True, False)
    assert "sends 1,024 B/device, f32" in text
    assert report["title"] == "loss_with_casts: types and communication"
    assert report["mesh"] == "mesh of 4 devices: dp of size 2, tp of size 2"


def shown(t: Any) -> str:
    with sh.policy("jax"):
        return str(t)


@needs_browser
def test_a_page_loads_nothing_and_has_two_themes(tmp_path: Path) -> None:
    report = seen(explained("transformer"), tmp_path)
    assert report["requests"] == []
    assert report["themes"][0] != report["themes"][1]
    assert report["hidden"]  # the box for forward was unchecked
    assert report["described"]
    assert report["unique"]
    assert report["links"]
    assert all(report["links"])
    assert report["wide"] <= 1400


@needs_browser
@pytest.mark.skipif(DRIVER is None, reason="no chromedriver is installed")
def test_pointing_at_a_collective_shows_its_entry(tmp_path: Path) -> None:
    webdriver = pytest.importorskip("selenium.webdriver")
    from selenium.webdriver.chrome.service import Service

    path = tmp_path / "page.html"
    path.write_text(gated_mlp().to_html(), encoding="utf-8")
    options = webdriver.ChromeOptions()
    options.binary_location = str(BROWSER)
    for option in (*QUIET, f"--user-data-dir={tmp_path / 'profile'}"):
        options.add_argument(option)
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    try:
        driver.get(path.as_uri())
        mark = driver.find_element("css selector", ".comm button")
        tip = driver.find_element("css selector", ".comm .tip")
        assert not tip.is_displayed()
        webdriver.ActionChains(driver).move_to_element(mark).perform()
        assert tip.is_displayed()
        assert "all-reduce over tp" in tip.text
        assert driver.get_log("browser") == []
    finally:
        driver.quit()


# without a browser


class Tags(HTMLParser):
    """Whether tags are closed in order, and what they refer to."""

    VOID = frozenset({"meta", "input", "br", "link"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loaded: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        refs = [(k, v or "") for k, v in attrs if k in ("src", "href", "data", "srcset")]
        self.loaded += [(k, ref) for k, ref in refs if not ref.startswith("#")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_page_is_well_formed_and_refers_to_nothing(name: str) -> None:
    found = explained(name)
    page = found.to_html()
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert tags.loaded == []
    named = page.replace('xmlns="http://www.w3.org/2000/svg"', "")  # a name, and no address
    assert not re.findall(r"https?://|url\((?!#)|@import|<script|javascript:|\son\w+=\"", named, re.I)
    for line in found.lines:
        assert html.escape(line.name) in page


def test_a_notebook_shows_the_page_in_a_frame_below_the_lines() -> None:
    lines, _, frame = explained("custom")._repr_html_().partition("<iframe sandbox title=")
    assert "<table>" in lines
    assert 'srcdoc="&lt;!doctype html&gt;' in frame


def test_rounds_of_a_loop_are_shown_together_and_text_is_escaped(tmp_path: Path) -> None:
    def chain(x: Any) -> Any:
        for _ in range(20):
            x = sh.sin(x)
        return x < x + 1.0

    found = sh.explain(chain, "f32[8@dp]", mesh=sh.abstract_mesh({"dp": 2}))
    page = found.to_html()
    assert "x_2</span>" not in page
    assert 'x_2, x_3, x_4</span> <span class="many">and 17 more</span>' in page
    assert '<span class="k">return</span> <span class="n">x</span> <span class="o">&lt;</span>' in page


def test_source_that_is_not_python_on_its_own_is_shown_plainly(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("x = (1,\n  '''open\n", encoding="utf-8")
    assert "'''open" in source_html([Excerpt(str(path), "module", 1, 2)], [])


@pytest.mark.parametrize(
    ("mesh", "devices", "said"),
    [
        ({"x": 4}, 4, "mesh of 4 devices: x of size 4"),
        ({"a": 2, "b": 3, "c": 2}, 12, "a=1, b=2"),
        ({"dp": 512, "tp": 8}, 56, "dp=511"),
        ({"p": 64, "dp": 2, "tp": 128}, 7 * 7, "…"),
    ],
    ids=["one axis", "three axes", "long", "many"],
)
def test_the_mesh_is_drawn(mesh: dict[str, int], devices: int, said: str) -> None:
    svg = mesh_svg(Mesh(mesh))
    assert svg.count("<g><title>") == devices
    assert said in svg


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (9_999, "9,999 B"), (10_240, "10.0 KiB"), (3 << 30, "3,072.0 MiB"), (1 << 60, "1,048,576.0 TiB")],
)
def test_bytes_are_written_for_people(count: int, text: str) -> None:
    assert size(count) == text
