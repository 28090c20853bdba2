"""What is printed, kept as files: run with ``UPDATE_GOLDEN=1`` to write them anew, and read the diff."""

from __future__ import annotations

import os
from pathlib import Path


def golden(name: str, text: str) -> None:
    """Asserts that ``text`` is what the file holds."""
    path = Path(__file__).parent / name
    text = "\n".join(line.rstrip() for line in text.rstrip("\n").split("\n")) + "\n"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
