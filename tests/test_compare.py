"""`benchmarks/compare.py`: its arguments and arithmetic, and what it leaves behind. Nothing is timed here."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks import compare
from benchmarks.compare import Change

TREES = (Path("before"), Path("after"))


def git(folder: Path, *words: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-C", str(folder), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--quiet")
    for text in ("first", "second"):
        (tmp_path / "file").write_text(text)
        git(tmp_path, "add", "file")
        git(tmp_path, "commit", "--quiet", "--message", text)
    (tmp_path / "file").write_text("not committed")
    return tmp_path


@pytest.mark.parametrize(
    ("commit", "text"),
    [("HEAD~1", "first"), ("HEAD", "second"), (None, "not committed")],
    ids=["before", "last", "now"],
)
def test_each_commit_is_checked_out_in_a_folder_of_its_own_and_goes_again(
    repository: Path, commit: str | None, text: str
) -> None:
    with compare.checked_out(commit, repository) as tree:
        assert (tree / "file").read_text() == text
    assert len(git(repository, "worktree", "list").splitlines()) == 1
    assert (repository / "file").read_text() == "not committed"


def test_a_commit_is_removed_again_after_an_error(repository: Path) -> None:
    with pytest.raises(RuntimeError), compare.checked_out("HEAD", repository):
        raise RuntimeError
    assert len(git(repository, "worktree", "list").splitlines()) == 1


def test_commits_are_measured_in_turns_and_neither_always_first() -> None:
    calls: list[tuple[str, str]] = []

    def measure(tree: Path, benchmark: str) -> Mapping[str, float]:
        calls.append((tree.name, benchmark))
        return {benchmark: float(len(calls))}

    before, after = compare.in_turns(TREES, ["import", "eager"], 2, measure)
    turns = ["before", "after", "after", "before"]
    assert calls == [(side, name) for name in ("import", "eager") for side in turns]
    assert before == {"import": [1.0, 4.0], "eager": [5.0, 8.0]}
    assert after == {"import": [2.0, 3.0], "eager": [6.0, 7.0]}


def test_a_change_is_that_of_the_medians_of_what_both_sides_have() -> None:
    found = compare.changes({"a": [1.0, 2.0, 9.0], "gone": [1.0]}, {"a": [1.0, 1.0, 9.0], "new": [1.0]})
    assert found == [Change("a", 2.0, 1.0)]
    assert found[0].factor == 0.5


@pytest.mark.parametrize(("after", "worse"), [(1.09, False), (1.11, True), (0.5, False)])
def test_a_tenth_more_is_worse(after: float, worse: bool) -> None:
    assert Change("a", 1.0, after).is_worse is worse


@pytest.mark.parametrize(
    ("ratios", "code"),
    [(({"a": 1.0}, {"a": 1.05}), 0), (({"a": 1.0, "b": 1.0}, {"a": 0.2, "b": 1.2}), 1), (({}, {"a": 1.0}), 2)],
    ids=["alike", "one is worse", "nothing on both sides"],
)
def test_the_exit_code_says_whether_something_got_worse(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ratios: Any, code: int
) -> None:
    given = [{name: [ratio] for name, ratio in side.items()} for side in ratios]
    monkeypatch.setattr(compare, "in_turns", lambda *args: given)
    monkeypatch.setattr(compare, "checked_out", lambda commit: contextlib.nullcontext(Path("tree")))
    assert compare.main(["main", "HEAD"]) == code
    assert {"main", "HEAD"} <= set(capsys.readouterr().out.split())


def test_the_table_has_both_sides_and_the_change() -> None:
    console = Console(width=100)
    with console.capture() as captured:
        console.print(compare.as_table([Change("eager", 1.0, 1.25)], "main", compare.WORKING_TREE))
    assert [word for word in captured.get().split() if word[0].isdigit() or word[0] in "+-"] == [
        "1.000",
        "1.250",
        "+25.0%",
    ]


def test_by_default_the_working_tree_is_compared_with_the_last_commit() -> None:
    options = compare.parsed([])
    assert (options.before, options.after, options.only) == ("HEAD", None, list(compare.BENCHMARKS))
    assert compare.parsed(["a", "b", "--only", "eager"]).only == ["eager"]


@pytest.mark.parametrize("arguments", [["--rounds", "0"], ["--only", "nothing"], ["a", "b", "c"]])
def test_bad_arguments_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        compare.parsed(arguments)
    assert "usage:" in capsys.readouterr().err
