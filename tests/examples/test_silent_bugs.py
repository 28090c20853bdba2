"""The silent bugs: plain JAX is wrong, the types say so (as golden text), and what is right equals one device."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import shtypes as sh
from examples.silent_bugs import __main__ as bugs
from examples.silent_bugs import local_bias, random_copies
from examples.silent_bugs.bug import in_types
from tests.examples.test_printed import GOLDEN, compared
from tests.tolerance import assert_close, off_by

pytestmark = pytest.mark.one_in(9)

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "silent-bugs.md").read_text()
#: Those that the types do not catch: in local mode, a program says itself what the devices add up.
NOT_CAUGHT = {"local_bias", "mean_of_ratios"}
_NUMBER = re.compile(r"\b\d+(\.\d+)?(e-\d+)?\b")


@pytest.mark.one_in(9)
@pytest.mark.parametrize("name", bugs.NAMES)
def test_plain_jax_is_silently_wrong_and_the_types_say_what_is_wrong(name: str) -> None:
    found, shown = bugs.outcome(name), bugs.bug_named(name).shown
    assert off_by(found.plain[shown], found.wanted[shown]) > 0.01
    messages = []
    for policy, naive in found.naive.items():
        fixed = found.fixed[policy]
        assert not isinstance(fixed, sh.ShardingTypeError), fixed
        for key, wanted in found.wanted.items():
            assert_close(fixed[key], wanted, what=f"{key} under {policy}")
        if isinstance(naive, sh.ShardingTypeError):
            messages.append(f"under {policy!r}\n{naive}")
        elif name in NOT_CAUGHT:
            assert off_by(naive[shown], found.wanted[shown]) > 0.01
        else:
            assert_close(naive[shown], found.wanted[shown])
    compared(f"silent_bugs/{name}", "\n\n".join([bugs.paragraph(name), *messages]) + "\n")
    assert _NUMBER.sub("#", bugs.row(name)) in _NUMBER.sub("#", PAGE)


def test_what_is_not_caught_is_said() -> None:
    texts = {name: (GOLDEN / "silent_bugs" / f"{name}.txt").read_text() for name in bugs.NAMES}
    assert {name for name, text in texts.items() if "not caught" in text} == NOT_CAUGHT
    assert len(bugs.NAMES) - len(NOT_CAUGHT) >= 12


@pytest.mark.parametrize("policy", ["partial", "jax"])
def test_written_casts_catch_the_bias_of_local_mode(policy: Any) -> None:
    refused = in_types(local_bias.BUG, local_bias.explicit, policy)
    assert isinstance(refused, sh.ShardingTypeError)
    assert re.match(r"a cast of mesh axis `tp` from \w+ to varying must be written here\n.*in layer: add", str(refused))


def test_debug_checks_catch_copies_that_come_from_the_host() -> None:
    rng = np.random.default_rng()

    def draw() -> Any:
        return rng.normal(size=random_copies.SHAPE).astype(np.float32)

    def drawn(w: Any) -> Any:
        return w + jax.pure_callback(draw, jax.ShapeDtypeStruct(random_copies.SHAPE, np.dtype("float32")))

    with sh.use_mesh(sh.make_mesh({"dp": 2})):
        claimed, zeros = sh.local_map(drawn, out="[_]"), sh.zeros("f32[16]")
        assert np.asarray(claimed(zeros)).shape == random_copies.SHAPE  # the first device's, as if it were everyone's
        with sh.debug_checks(), pytest.raises(sh.ShardingTypeError, match="not the same along mesh axis `dp`"):
            jax.block_until_ready(claimed(zeros))


def test_the_script_prints_a_paragraph_for_each_bug_or_the_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 'os.environ.setdefault("JAX_NUM_CPU_DEVICES"' in Path(bugs.__file__).read_text()
    monkeypatch.setattr(bugs, "NAMES", ["counted_copies"])
    bugs.main()
    summary = "1 of 1 are refused or come out right under both policies"
    assert capsys.readouterr().out == f"{bugs.paragraph('counted_copies')}\n\n{summary}\n"
    bugs.main(("--table",))
    head, _, row = capsys.readouterr().out.splitlines()
    assert head in PAGE
    assert row == bugs.row("counted_copies")
