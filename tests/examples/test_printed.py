"""The examples print what they printed: whole outputs as golden text. UPDATE_GOLDEN=1 writes it anew."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import shtypes as sh

pytestmark = pytest.mark.one_in(9)

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "examples"
EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.py"))
#: What starts processes is tested by itself: the order of their lines differs.
PRINTED = [name for name in EXAMPLES if name != "multiprocess"]
#: A number that was computed: its last digits are those of one machine.
_COMPUTED = re.compile(r"(?<![\w.:])\d+\.\d+(?![\w.])")


def compared(name: str, text: str) -> None:
    """Compares a text with the golden one, computed numbers to a few digits."""
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    golden = path.read_text()
    assert _COMPUTED.sub("#", text) == _COMPUTED.sub("#", golden)
    found, wanted = (np.array(_COMPUTED.findall(t), float) for t in (text, golden))
    np.testing.assert_allclose(found, wanted, rtol=2e-2)


@pytest.mark.one_in(9)
@pytest.mark.parametrize("name", PRINTED)
def test_an_example_prints_its_types_and_what_it_sends(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with sh.policy("partial"):
        importlib.import_module(f"examples.{name}").main()
    out = capsys.readouterr().out
    assert len(out.splitlines()) >= 5 or name == "microbatch"
    compared(f"printed/{name}", out)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_script_makes_its_own_devices(name: str) -> None:
    text = (ROOT / "examples" / f"{name}.py").read_text()
    assert 'os.environ.setdefault("JAX_NUM_CPU_DEVICES"' in text
    assert text.endswith('\n\nif __name__ == "__main__":\n    main()\n')


def test_a_script_runs_by_itself() -> None:
    kept = {name: value for name, value in os.environ.items() if name != "JAX_NUM_CPU_DEVICES"}
    command = [sys.executable, "-m", "examples.hlo"]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=kept, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    compared("printed/hlo", ran.stdout)
