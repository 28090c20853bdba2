"""Targets that exit, raise, are missing or no Python, or whose types fill a page: one message, a documented code."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.golden import golden
from tests.tools.cli.running import Ran, Run

COMMANDS = ("check", "explain", "compare")
#: A file for each case; the function is `loss`.
FILES = {
    "operates": "def loss(x, w):\n    return x @ w\n",
    "exits": "import sys\n\ndef loss(x, w):\n    sys.exit(0)\n",
    "exits_with_7": "def loss(x, w):\n    raise SystemExit(7)\n",
    "exits_as_click_does": "import click\n\ndef loss(x, w):\n    raise click.exceptions.Exit(0)\n",
    "exits_when_loaded": "import sys\n\nsys.exit(0)\n",
    "exits_when_asked": "def __getattr__(name):\n    raise SystemExit(0)\n",
    "exits_in_an_annotation": "import sys\n\ndef loss(x: 'sys.exit(0)', w):\n    ...\n",
    "raises": "def loss(x, w):\n    raise ValueError('z' * 100_000)\n",
    "raises_the_worst": "def loss(x, w):\n    raise BaseException('deep')\n",
    "raises_what_cannot_be_printed": (
        "class Mute(Exception):\n    def __str__(self):\n        raise Mute\n\ndef loss(x, w):\n    raise Mute\n"
    ),
    "raises_what_exits_when_printed": (
        "class Sly(Exception):\n    def __str__(self):\n        raise SystemExit(0)\n\ndef loss(x, w):\n    raise Sly\n"
    ),
    "raises_a_bare_syntax_error": "def loss(x, w):\n    raise SyntaxError\n",
    "raises_the_end_of_a_generator": "def loss(x, w):\n    raise GeneratorExit\n",
    "raises_the_end_of_an_iterator": "def loss(x, w):\n    raise StopIteration\n",
    "calls_itself": "def loss(x, w):\n    return loss(x, w)\n",
    "imports_what_is_missing": "import no_such_package\n\ndef loss(x, w):\n    return x\n",
    "imports_it_inside": "def loss(x, w):\n    import no_such_package\n",
    "does_not_type": "import shtypes as sh\n\nfirst = sh.ShType.parse('f32[8', {'dp': 2})\n",
    "does_not_parse": "def loss(x, w:\n",
    "names_an_encoding": "# coding: no_such_encoding\ndef loss(x, w):\n    return x\n",
    "yields": "def loss(x, w):\n    yield x\n",
    "awaits": "async def loss(x, w):\n    return x\n",
    "has_no_loss": "def los(x, w):\n    return x\n",
}
#: What ends with exit code 1: the program was traced. The others were not: 2.
TRACED = {name for name in FILES if name.split("_")[0] in ("raises", "calls")} | {
    "exits",
    "exits_with_7",
    "exits_as_click_does",
    "imports_it_inside",
}
TYPES = ("f32[8@dp, 16]", "f32[16, 4]", "--mesh", "dp=2")


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in FILES.items():
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "binary.py").write_bytes(b"\x7fELF\0\1")
    (tmp_path / "latin.py").write_bytes(b"name = '\xe9'\n")
    (tmp_path / "data.bin").write_bytes(b"\0")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "model.py").write_text("def loss(x, w):\n    return x @ w\n")
    monkeypatch.chdir(tmp_path)


def said(ran: Ran) -> str:
    """What a run that fails prints, once it is one message that fits on a screen."""
    assert ran.code in (1, 2)
    assert ran.out == ""
    assert "Traceback" not in ran.err
    assert len(ran.err) < 1500
    return ran.err


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_that_starts_with_an_operator_is_a_target_like_any(command: str, run: Run) -> None:
    code, out, err = run(command, "operates.py:loss", *TYPES)
    assert (code, err) == (0, "")
    assert "f32[16,4]" in out


@pytest.mark.one_in(13)
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", [name for name in FILES if name != "operates"])
def test_nothing_that_a_target_does_chooses_the_exit_code(name: str, command: str, run: Run) -> None:
    ran = run(command, f"{name}.py:loss", *TYPES)
    assert said(ran).startswith("error: `")
    annotated = name == "exits_in_an_annotation"  # read before the call is traced, or with it
    assert ran.code == (1 if name in TRACED or annotated else 2)


def test_each_message_says_what_and_where_and_what_to_do(run: Run) -> None:
    in_words_of_python = {
        "calls_itself",
        "does_not_parse",
        "exits_in_an_annotation",
        "names_an_encoding",
    }  # each release has its own
    names = [name for name in FILES if name != "operates" and name not in in_words_of_python]
    texts = [said(run("check", f"{name}.py:loss", *TYPES)) for name in names]
    places = ("binary.py", "latin.py", "data.bin", "folder", "./folder", "folder.model.x", "nowhere.py", ".folder")
    texts += [said(run("check", f"{place}:loss", *TYPES)) for place in places]
    golden("cli/odd_targets.txt", "\n".join(texts).replace(sys.executable, "python"))


def test_what_has_no_members_has_no_functions(run: Run) -> None:
    ran = run("check", "operates.py:loss.__code__.co_code.nothing", *TYPES)
    assert ran.code == 2
    assert "has no function `nothing`" in said(ran)


def test_a_traceback_is_shown_where_it_is_asked_for(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHTYPES_TRACEBACK", "1")
    for name, code in (("exits", 1), ("exits_when_loaded", 2)):
        ran = run("check", f"{name}.py:loss", *TYPES)
        assert ran.code == code
        assert ran.err.startswith("Traceback (most recent call last):\n")
        assert "sys.exit(0)" in ran.err


def test_a_fault_of_our_own_is_called_one(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise KeyError("own")

    monkeypatch.setattr("shtypes.tools.cli.check._check_one", fails)
    ran = run("check", "operates.py:loss", *TYPES)
    assert ran.code == 1
    assert "error: shtypes itself failed: KeyError: 'own'\n  where: test_odd_targets.py:" in said(ran)


def test_a_function_without_types_is_asked_for_them(run: Run) -> None:
    ran = run("check", "operates.py:loss", "--mesh", "dp=2")
    assert ran.code == 2
    golden("cli/no_types.txt", said(ran))


LONG = {
    "a dim too many": f"f32[{'8,' * 60_000}8 x]",
    "a size": f"f32[{'8' * 100_000}]",
    "a name": f"f32[{'n' * 100_000}]",
    "an axis": f"f32[8@{'n' * 100_000}]",
    "a dtype": f"{'f' * 100_000}[8]",
    "no dtype": f"[{'8,' * 60_000}]",
    "many dims": f"f32[{'8,' * 60_000}8]",
    "a state": f"f32[8]{{{'n' * 100_000}}}",
    "a number": "1" * 100_000,
}


@pytest.mark.one_in(15)
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
def test_a_text_of_100_000_characters_is_not_echoed(text: str, command: str, run: Run) -> None:
    said(run(command, "operates.py:loss", text, *TYPES[1:]))
    said(run(command, f"{text}:loss", *TYPES))
    said(run(command, f"{text}.py:loss", *TYPES))


SIZES = [
    (("--dims", "b=x"), "Invalid value for '--dims': the size of `b` is a whole number, as in `b=2`, not `x`"),
    (("--dims", "b"), "Invalid value for '--dims': `b` is not like `b=2`"),
    (("--dims", "b:2"), "Invalid value for '--dims': `b:2` is not like `dp=2`"),
    (("--dims", "=2"), "Invalid value for '--dims': `=2` is not like `dp=2`"),
    (("--dims", "1b=2"), "Invalid value for '--dims': a dim needs a name like `batch`, not `1b`"),
    (("--dims", "b=²"), "the size of `b` is a whole number, as in `b=2`, not `²`"),
    (("--mesh", f"dp={'9' * 5000}"), "the size of `dp` is a whole number, as in `dp=2`, not `999"),
    ((), "try: write it in the type: `b=8` try: --dims b=8"),
]


@pytest.mark.parametrize(("options", "words"), SIZES, ids=lambda x: str(x)[:20])
def test_sizes_are_asked_for_as_one_gives_them_here(options: tuple[str, ...], words: str, run: Run) -> None:
    ran = run("check", "operates.py:loss", "f32[8, b]", "f32[b, 4]", "--mesh", "dp=2", *options)
    assert ran.code == 2
    text = " ".join(said(ran).split())
    assert words in text
    assert "sh.dims" not in text


def test_reshard_asks_for_sizes_alike(run: Run) -> None:
    ran = run("reshard", "f32[b]", "[_]", "--mesh", "dp=2")
    assert ran.code == 2
    assert "  try:   --dims b=8\n" in said(ran)
