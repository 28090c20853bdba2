"""How often one call of `sh.einsum` goes from file to file of the package: ``python -m tests.file_changes``.

Each file that a call enters is one that a reader must open, and leaving it again one more place to remember.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np

import shtypes as sh

PACKAGE = os.path.dirname(str(sh.__file__)) + os.sep


def files_entered(call: Callable[[], Any]) -> list[str]:
    """The file of each frame of the package that a call enters, in order, one for a run in the same file."""
    entered: list[str] = []

    def profile(frame: FrameType, event: str, argument: object) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(PACKAGE) and (not entered or entered[-1] != name):
            entered.append(name)

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return [name.removeprefix(PACKAGE) for name in entered]


def measured() -> dict[str, list[str]]:
    """The first eager einsum of a process, and one that is traced when its types were met before."""
    sh.set_mesh(sh.make_mesh({"dp": 2, "tp": 2}))
    x = sh.array(np.ones((4, 8, 16), np.float32), "f32[4@dp,8,16]{R:tp}")
    w = sh.array(np.ones((16, 32), np.float32), "f32[16,32@tp]{R:dp}")
    sh.sin(x)
    found = {"eager": files_entered(lambda: sh.einsum("bsd,df->bsf", x, w))}

    def traced(x: Any, w: Any) -> Any:
        found["traced"] = files_entered(lambda: sh.einsum("bsd,df->bsf", x, w))
        return x

    jax.make_jaxpr(traced)(x, w)
    return found


def main() -> None:
    """Prints the changes of file; with ``--json`` their numbers alone."""
    found = measured()
    if "--json" in sys.argv:
        print(json.dumps({kind: len(files) - 1 for kind, files in found.items()}))
        return
    for kind, files in found.items():
        print(f"{kind}: {len(files) - 1} changes")
        for (here, there), n in Counter(itertools.pairwise(files)).most_common(20):
            print(f"  {n:3}  {here} -> {there}")


if __name__ == "__main__":
    main()
