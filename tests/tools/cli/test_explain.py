"""``shtypes explain``: what it prints and writes, and what it says of a wrong use."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fresh import printed
from tests.tools.cli.running import runner
from tests.tools.demo.test_gated_mlp import POST_ARGUMENTS, POST_BACKWARD, POST_EINSUMS, POST_FORWARD, without_casts

ROOT = Path(__file__).parents[3]
EXAMPLE = "examples/gated_mlp.py"
MESH = ("--mesh", "dp=2,tp=2")


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.fixture
def explain(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def run(*args: object, code: int = 0) -> str:
        ran = runner(capsys)("explain", *map(str, args))
        assert ran.code == code, ran
        return ran.out or ran.err

    return run


def types_in(text: str) -> dict[str, str]:
    """The names and types of a listing's lines."""
    return dict(re.findall(r"^(\w+): (\S.*?)(?: = .*| +\|.*)?$", text, re.M))


@pytest.fixture(scope="module")
def without_backend() -> list[str]:
    """What two commands print, one after the other in a process in which any backend that starts is an error."""
    calls = (
        [f"{EXAMPLE}:loss", *MESH, "--grad"],
        ["examples/microbatch.py:step", "--arguments", "arguments", "--mesh", "dp=8"],
    )
    code = f"""if True:
        import os, jax
        jax.config.update("jax_platforms", "none_such")
        os.environ["SHTYPES_POLICY"] = "partial"
        from shtypes.tools.cli import main
        for call in {calls!r}:
            try:
                main(["explain", *call])
            except SystemExit as end:
                assert not end.code
            print("", end=chr(0))
    """
    return printed(code).split("\0")


@pytest.mark.core
def test_the_listing_of_the_post_is_printed_without_any_backend(without_backend: list[str]) -> None:
    text = without_backend[0]
    found = types_in(text)
    wanted = without_casts(POST_FORWARD) | without_casts(POST_BACKWARD)
    assert {name: found[name] for name in wanted} == wanted
    for made in POST_EINSUMS.values():
        assert f" = {made}\n" in text
    assert "# out: f32[seq, batch@dp, hidden]{U:tp} = einsum[sbi,ih->sbh] h rw2" in text


def test_the_casts_of_the_post_are_printed_under_jax(explain: Callable[..., str]) -> None:
    text = explain(f"{EXAMPLE}:loss_with_casts", *MESH, "--grad", "--policy", "jax")
    found = types_in(text)
    assert {name: found[name] for name in POST_ARGUMENTS} == POST_ARGUMENTS
    assert {name: found[name] for name in (POST_FORWARD | POST_BACKWARD)} == POST_FORWARD | POST_BACKWARD
    assert "g_w1: f32[hidden, intermediate@tp] = reshard[dp: U->I] g_rw1  <- all-reduce over dp, 1024 B/device" in text


def test_types_sizes_and_arguments_come_from_where_the_user_says(explain: Callable[..., str], tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(
        "import shtypes as sh\n"
        "def f(x, scale=2.0):\n    y = x * scale\n    return y\n"
        "def g(params, x):\n    h = x @ params['w']\n    return h\n"
        "def some():\n    return {'w': 'f32[4, n@tp]'}, 'f32[n@dp, 4]'\n"
        "def made():\n    import jax\n    plain = jax.random.normal(jax.random.key(0), (4, 8))\n"
        "    return sh.tree.array({'w': plain}, {'w': '[_, n@tp]'}), 'f32[n=8@dp, 4]'\n"
        "def unnamed():\n    import jax.numpy as jnp\n    return {'w': jnp.ones((4, 8))}, 'f32[8@dp, 4]'\n",
        encoding="utf-8",
    )
    assert "y: f32[n@dp] = scale[2] x" in explain(f"{path}:f", "f32[n=4@dp]", *MESH)
    assert "params['w']: f32[4, n@tp]" in explain(f"{path}:g", *MESH, "--arguments", "some", "--dims", "n=8")
    assert "g_params['w']: " in explain(f"{path}:g", *MESH, "--arguments", "some", "--grad", "--dims=n=8")
    assert "params['w']: f32[4, n@tp]" in explain(f"{path}:g", *MESH, "--arguments", "made")
    assert "params['w']: f32[4,8]" in explain(f"{path}:g", *MESH, "--arguments", "unnamed")


def test_a_function_that_makes_its_arguments_needs_no_devices(without_backend: list[str]) -> None:
    text = without_backend[1]
    assert "total: f32[layers, 4, 4]{U:dp}" in text
    assert "in 1 collective " in text


def test_each_format_goes_to_the_output_that_is_named(explain: Callable[..., str], tmp_path: Path) -> None:
    target = (f"{EXAMPLE}:loss", *MESH, "--grad", "--output")
    for name, start in (("a.json", "{"), ("a.html", "<!doctype html>"), ("a.txt", "loss on the mesh")):
        assert explain(*target, tmp_path / name) == f"wrote {tmp_path / name}\n"
        assert (tmp_path / name).read_text(encoding="utf-8").startswith(start)
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))["function"] == "loss"


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("examples/gated_mlp.py:los", *MESH), 2, "has no function `los`; did you mean `loss`"),
        (("examples/gated.py:loss", *MESH), 2, "there is no file `examples/gated.py`"),
        (("examples/gated_mlp.py", *MESH), 2, "is no target"),
        (("examples/gated_mlp.py:loss",), 2, "no mesh is given"),
        (
            ("examples/gated_mlp.py:loss", "--mesh", "dp=two"),
            2,
            "the size of `dp` is a whole number, as in `dp=2`, not `two`",
        ),
        (("examples/gated_mlp.py:loss", *MESH, "--format", "pdf"), 2, "'pdf'"),
        (("examples/gated_mlp.py:loss", *MESH, "--arguments", "X"), 2, "is no function but str"),
        (("examples/gated_mlp.py:loss", *MESH, "f32[4,8@dp,16]"), 2, "does not take these types"),
        (("examples/gated_mlp.py:loss", *MESH, "-o", "no/such/folder.txt"), 2, "cannot be written"),
    ],
)
def test_a_wrong_use_is_answered_without_a_traceback(
    explain: Callable[..., str], args: tuple[str, ...], code: int, said: str
) -> None:
    output = explain(*args, code=code)
    assert said in output
    assert "Traceback" not in output


def test_what_does_not_type_is_answered_with_the_line_and_exit_code_1(
    explain: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "wrong.py").write_text(
        "import shtypes as sh\n\ndef f(x):\n    return sh.sin(sh.sum(x))\n\ndef g(x):\n    return x.nothing\n",
        encoding="utf-8",
    )
    assert "wrong.py:4 in f" in explain(f"{tmp_path}/wrong.py:f", "f32[8@dp]", *MESH, code=1)
    assert "wrong.py:7 in g" in explain(f"{tmp_path}/wrong.py:g", "f32[8@dp]", *MESH, code=1)


PLAIN = """
import jax
import jax.numpy as jnp

def loss(x, w, v):
    h = jax.nn.relu(x @ w)
    return jnp.sum(h @ v)
"""


def test_a_plain_function_is_typed_by_lift(explain: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "plain_model.py").write_text(PLAIN)
    target = (tmp_path / "plain_model.py").as_posix() + ":loss"
    types = ("f32[8@dp, 16]", "f32[16, 32@tp]", "f32[32@tp, 4]")
    text = explain(target, *types, "--lift", *MESH)
    assert types_in(text)["loss"] == "f32[]{U:(dp,tp)}"
    assert "plain_model.py:6  h = jax.nn.relu(x @ w)" in text
    assert "a typed value" in explain(target, *types, *MESH, code=1)
