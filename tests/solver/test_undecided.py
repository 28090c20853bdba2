"""Functions under `implicit_comm` that are not decided as a whole: reports say why each op chose for itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import shtypes as sh
from shtypes.solver import complete
from shtypes.solver.graph import Graph
from tests.tools.cli.running import Run, runner

MESH = sh.abstract_mesh({"tp": 4})
TYPES = "f32[8, 16@tp]", "f32[16, 8@tp]"


def decided(x: Any, w: Any) -> Any:
    return jnp.tanh(x @ w)


def looks(x: Any, w: Any) -> Any:
    y = sh.matmul(x, w)
    return sh.tanh(y) if y.type.ndim == 2 else y


def other_objective(x: Any, w: Any) -> Any:
    with sh.implicit_comm(minimize="forward"):
        return sh.tanh(x @ w)


def lifted(f: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        with sh.implicit_comm():
            return sh.lift(f)(*args)

    return run


CASES = {
    "values while Python runs": (
        sh.implicit_comm(looks),
        "`looks` is not decided as a whole: it wants values or types",
    ),
    "another objective": (
        sh.implicit_comm(other_objective),
        "`other_objective` is not decided as a whole: it opens an `implicit_comm` with another objective",
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("grad", [False, True], ids=["forward", "backward"])
def test_a_report_says_why_each_op_chose_for_itself(name: str, grad: bool) -> None:
    f, why = CASES[name]
    signature = sh.check(f, *TYPES, mesh=MESH, grad=grad)
    assert len(signature.undecided) == 1
    assert signature.undecided[0].startswith(why)
    assert f"op by op: {why}" in str(signature)
    assert why in signature.tables()[0].note
    listing = sh.explain(f, *TYPES, mesh=MESH, grad=grad)
    assert f"op by op: {why}" in str(listing)
    assert why in listing.tables()[0].note
    again = sh.check(f, *TYPES, mesh=MESH, grad=grad)  # what is remembered says it again
    assert again.undecided == signature.undecided


def looped(h: Any) -> Any:
    return jax.lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, jnp.sin(s[1])), (0, h))[1]


@pytest.mark.parametrize(
    "last",
    [pytest.param(looped, marks=pytest.mark.nightly), lambda h: jnp.nextafter(h, 1.0)],
    ids=["while loop", "no derivative"],
)
@pytest.mark.mesh({"x": 4, "y": 2})
def test_what_has_no_gradient_is_decided_by_its_forward_pass(last: Callable[[Any], Any]) -> None:
    types = "f32[8@x, 16]", "f32[16, 32@y]", "f32[32@y, 64]", "f32[64@y, 16]"
    f = sh.implicit_comm(sh.lift(lambda x, a, b, c: last(jnp.tanh(jnp.tanh(x @ a) @ b) @ c)))
    assert sh.ledger(f, *map(sh.abstract_array, types)).total.bytes == 320  # op by op 448


def test_a_program_with_a_while_loop_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    gradients = []

    def counted(*args: Any, grad: bool, **kwargs: Any) -> Any:
        gradients.append(grad)
        return Graph(*args, grad=grad, **kwargs)

    monkeypatch.setattr(complete, "Graph", counted)
    sh.check(lifted(lambda x, w: looped(x @ w)), *TYPES, mesh=MESH)
    assert gradients == [False]


@pytest.mark.parametrize("how", [lifted, sh.implicit_comm], ids=["lift", "decorated"])
def test_of_what_is_decided_nothing_is_said(how: Any) -> None:
    for f in (how(decided), how(sh.lift(decided)) if how is not lifted else how(decided)):
        assert sh.check(f, *TYPES, mesh=MESH).undecided == ()
        assert "op by op" not in str(sh.explain(f, *TYPES, mesh=MESH))


def test_what_the_solver_does_not_know_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any, **kwargs: Any) -> Any:
        raise sh.ShardingTypeError("nothing is known of `odd` at model.py:3")

    monkeypatch.setattr(complete, "Graph", fails)
    signature = sh.check(lifted(lambda x, w: jnp.cos(x @ w)), *TYPES, mesh=MESH)
    assert signature.undecided == ("`<lambda>` is not decided as a whole: nothing is known of `odd` at model.py:3",)


def test_the_command_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.py").write_text("""import shtypes as sh


@sh.implicit_comm
def loss(x, w):
    return sh.tanh(x @ w) if (x @ w).type.ndim == 2 else x
""")
    run: Run = runner(capsys)
    for command in ("check", "explain"):
        out = run(command, f"{tmp_path}/model.py:loss", *TYPES, "--mesh", "tp=4").out
        assert "op by op: `loss` is not decided as a whole: it wants values or types while Python runs it" in out
