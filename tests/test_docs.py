"""The README, the docs and the docstrings: their code runs, their pages are linked, their links lead somewhere."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from shtypes.api import places
from shtypes.ops.table import OPS

ROOT = Path(__file__).parents[1]
PAGES = sorted(p for p in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
DOCTEST_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE

# A fence may be indented (in a list or a tab); its body is indented alike.
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[\w+-]*)[^\n]*\n(?P<body>.*?)^(?P=indent)```", re.M | re.S)
LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(?P<title>.+?) *(?:\{#(?P<anchor>[\w-]+)\})?$", re.M)


class Block(NamedTuple):
    """A fenced block: its language, its code and the line on which the code starts."""

    language: str
    code: str
    line: int


#: Pages that compile large programs, whose parts have tests: the core run and `make test-all` run them.
DEAR = (
    *("docs/across.md", "docs/lift.md", "docs/local-mode.md", "docs/migrating/your-model.md", "docs/nn.md"),
    *("docs/silent-bugs.md", "docs/suggest.md", "docs/training.md", "docs/transformer.md"),
)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(text: str) -> Iterator[Block]:
    for match in FENCE.finditer(text):
        indent = len(match["indent"])
        lines = [line[indent:] for line in match["body"].splitlines()]
        yield Block(match["language"], "\n".join(lines) + "\n", text.count("\n", 0, match.start("body")))


def run_page(path: Path) -> None:
    """Runs a page's `python` blocks, and its `pycon` blocks as doctests, in order and in one namespace."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    runner = doctest.DocTestRunner(optionflags=DOCTEST_FLAGS)
    report: list[str] = []
    for block in blocks(path.read_text()):
        if block.language == "python":
            # The blank lines make a traceback show the page's own line numbers.
            exec(compile("\n" * block.line + block.code, str(path), "exec"), namespace)
        elif block.language == "pycon":
            test = doctest.DocTestParser().get_doctest(block.code, namespace, name_of(path), str(path), block.line)
            runner.run(test, out=report.append, clear_globs=False)
            namespace.update(test.globs)
    assert not runner.failures, "".join(report)


def pages_with_code() -> list[Path]:
    return [p for p in PAGES if any(b.language in ("python", "pycon") for b in blocks(p.read_text()))]


def modules_with_examples() -> list[str]:
    files = (p for p in sorted(ROOT.glob("shtypes/**/*.py")) if ">>> " in p.read_text())
    return [".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for p in files]


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as mkdocs makes them."""
    found: set[str] = set()
    for match in HEADING.finditer(FENCE.sub("", path.read_text())):
        slug = match["anchor"] or re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", match["title"]).strip().lower())
        count = sum(1 for a in found if re.fullmatch(rf"{re.escape(slug)}(_\d+)?", a))
        found.add(f"{slug}_{count}" if count else slug)
    return found


def dead_links(path: Path, text: str) -> list[str]:
    """The relative links of a page that lead to no file or to no heading."""
    dead = []
    for match in LINK.finditer(FENCE.sub("", text)):
        if "://" in match["target"] or match["target"].startswith("mailto:"):
            continue
        file, _, anchor = match["target"].partition("#")
        goal = (path.parent / file).resolve() if file else path
        if not goal.exists() or (anchor and anchor not in anchors(goal)):
            dead.append(match["target"])
    return dead


@pytest.mark.core
@pytest.mark.parametrize(
    "path",
    [pytest.param(p, marks=[pytest.mark.nightly] * (name_of(p) in DEAR)) for p in pages_with_code()],
    ids=name_of,
)
def test_the_code_of_a_page_runs(path: Path) -> None:
    run_page(path)


@pytest.mark.core
@pytest.mark.parametrize("module", modules_with_examples())
def test_the_examples_in_a_modules_docstrings_hold(module: str) -> None:
    loaded = importlib.import_module(module)
    runner = doctest.DocTestRunner(optionflags=DOCTEST_FLAGS)
    report: list[str] = []
    for test in doctest.DocTestFinder().find(loaded):
        runner.run(test, out=report.append)
    assert runner.tries, "the module has `>>>` outside any docstring that doctest finds"
    assert not runner.failures, "".join(report)


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_no_internal_link_of_a_page_is_dead(path: Path) -> None:
    assert dead_links(path, path.read_text()) == []


def test_every_page_is_in_the_navigation() -> None:
    nav = set(re.findall(r"[\w/.-]+\.md", (ROOT / "mkdocs.yml").read_text()))
    assert nav == {str(p.relative_to(ROOT / "docs")) for p in ROOT.glob("docs/**/*.md")}


# The checks above, checked.


def test_the_reference_has_every_public_name_but_those_of_jax() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8").splitlines()
    of_jax = {(op.module, op.attr) for op in OPS.values()}
    named = {(name, f"::: {module}.{attr}") for name, module, attr in places() if (module, attr) not in of_jax}
    assert not [name for name, line in named if line not in page and not re.match("::: (jax|.*describe)", line)]


def test_what_the_reference_names_is_there() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    for name in re.findall(r"^::: (shtypes\.\S+)$", page, re.MULTILINE):
        pkgutil.resolve_name(name)


def test_a_page_whose_example_prints_something_else_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("```python\nx = 2\n```\n\n```pycon\n>>> x + 1\n4\n```\n")
    with pytest.raises(AssertionError, match=r"Expected:\s+4\s+Got:\s+3"):
        run_page(page)


def test_a_page_whose_code_raises_is_caught_with_its_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("text\n\n```python\nx = 2\nx.nothing\n```\n")
    with pytest.raises(AttributeError) as caught:
        run_page(page)
    assert caught.traceback[-1].lineno == 4  # counted from 0: the page's fifth line


@pytest.mark.parametrize("link", ["missing.md", "#no-heading", "page.md#no-heading"])
def test_a_dead_link_is_found(tmp_path: Path, link: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# A heading\n\n[here](#a-heading) and [there]({link})\n")
    assert dead_links(page, page.read_text()) == [link]
