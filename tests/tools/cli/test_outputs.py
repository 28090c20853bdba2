"""What `--output` writes: the format that the name says, nothing of another kind, and pages that run nothing."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.tools.cli.running import Run

#: A program whose source, names, texts and error messages are all made to be run by a careless page.
HOSTILE = """
import shtypes as sh

def loss(x, w):
    y = x @ w; note = "<script>alert(1)</script><img src=x onerror=alert(1)>"
    z = sh.all_reduce(sh.sum(y, 0)); "</style></pre><script>alert(2)</script>"  # <script>alert(3)</script>
    return {"<script>alert(4)</script>": sh.sum(z), "'\\"><svg onload=alert(5)>": z}
"""
TARGET = ("f32[8@dp, 16]", "f32[16, 4]", "--mesh", "dp=2")
#: Each command that writes reports.
REPORTS = {
    "check": ("check", "<b>&.py:loss", *TARGET),
    "check that fails": ("check", "<b>&.py:loss", *TARGET, "--no-comm", "both"),
    "explain": ("explain", "<b>&.py:loss", *TARGET, "--grad"),
    "memory": ("memory", "<b>&.py:loss", *TARGET, "--grad"),
    "compare": ("compare", "<b>&.py:loss", *TARGET),
    "reshard": ("reshard", "f32[8@dp]", "[8]", "--mesh", "dp=2"),
}
STARTS = {"html": "<!doctype html>", "json": "{"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "<b>&.py").write_text(HOSTILE)
    monkeypatch.chdir(tmp_path)


class Page(HTMLParser):
    """The tags and attributes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: dict[str, set[str]] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            self.attributes.setdefault(name, set()).add(value or "")


@pytest.mark.parametrize("args", REPORTS.values(), ids=REPORTS)
@pytest.mark.parametrize("name", ["page.html", "page.htm", "PAGE.HTML", ".html"])
def test_a_page_runs_nothing(name: str, args: tuple[str, ...], run: Run) -> None:
    ran = run(*args, "--output", name)
    assert (ran.code, ran.out, ran.err) == (int("--no-comm" in args), "", f"wrote {name}\n")
    text = Path(name).read_text(encoding="utf-8")
    page = Page(text)
    assert not page.tags & {"script", "img", "iframe", "object", "embed", "link", "base", "form", "b"}
    assert not [a for a in page.attributes if a.startswith("on") or a in ("src", "srcdoc", "action", "formaction")]
    assert all(ref.startswith("#") for ref in page.attributes.get("href", ()))
    assert "<script" not in text.lower()
    (policy,) = (value for value in page.attributes["content"] if "default-src" in value)
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"
    if args[0] in ("explain", "compare"):
        assert "alert(1)" in text or "alert(2)" in text  # the source is there, as text


@pytest.mark.parametrize("args", REPORTS.values(), ids=REPORTS)
def test_the_name_of_a_file_says_its_format(args: tuple[str, ...], run: Run) -> None:
    for name, form in (("a.json", "json"), ("a.txt", "text"), ("plain", "text"), ("a.html", "html")):
        assert run(*args, "-o", name).err == f"wrote {name}\n"
        written = Path(name).read_text(encoding="utf-8")
        assert written == run(*args, "--format", form).out or form == "html"
        assert written.startswith(STARTS.get(form, ""))
        assert not (form == "text" and written.startswith(("<", "{")))
    assert json.loads(Path("a.json").read_text(encoding="utf-8"))["schema"] == 1
    assert run(*args, "-o", "data", "--format", "json").code == int("--no-comm" in args)
    assert Path("data").read_text(encoding="utf-8").startswith("{")


@pytest.mark.parametrize("args", REPORTS.values(), ids=REPORTS)
def test_another_name_is_refused_before_anything_is_done(args: tuple[str, ...], run: Run) -> None:
    more = ", .svg" if args[0] == "reshard" else ""
    for name in ("x.pdf", "x.html.gz", "x.md", *(() if more else ("x.svg",))):
        ran = run(*args, "-o", name)
        assert (ran.code, ran.out) == (2, "")
        assert (
            f"`{name}` is of no known kind: its name may end in .txt, .json, .html, .htm{more}, or in none" in ran.err
        )
        assert not Path(name).exists()
    for form, name in (("text", "x.html"), ("json", "x.html"), ("html", "x.txt")):
        ran = run(*args, "-o", name, "--format", form)
        assert ran.code == 2
        assert re.search(rf"`{name}` is for \w+, and --format says {form}", ran.err)
        assert not Path(name).exists()


def test_what_can_be_drawn_is_written_as_a_picture(run: Run) -> None:
    assert run(*REPORTS["reshard"], "-o", "x.svg") == (0, "", "wrote x.svg\n")
    written = Path("x.svg").read_text(encoding="utf-8")
    assert written == run(*REPORTS["reshard"], "--format", "svg").out
    assert written.startswith("<svg ")
    assert (
        "`x.svg` is for svg, and --format says json" in run(*REPORTS["reshard"], "-o", "x.svg", "--format", "json").err
    )
    assert "'svg' is not one of 'text', 'json', 'html'" in run(*REPORTS["compare"], "--format", "svg").err


def test_what_a_repository_pins_is_reported_to_a_file_too(repository: Path, run: Run) -> None:
    assert run("check", "--update", "-o", "x.txt").code == 2
    assert run("check", "--update").code == 0
    assert run("check", "-o", "x.txt") == (0, "", "wrote x.txt\n")
    assert Path("x.txt").read_text() == "2 targets: communication as in communication.json\n"
    assert run("check", "-o", "x.json").code == 0
    assert json.loads(Path("x.json").read_text())["ok"]
    assert "--format html are for one TARGET" in run("check", "-o", "x.html").err
