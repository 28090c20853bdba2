"""How long it takes to know everything about a large training step, for any number of devices and on none.

A transformer of 96 layers, forward and backward: traced and typed, then its ledger, each in a new process as a user
meets it (JAX imported, nothing traced before). The ratio, of processor time, is to plain JAX, which traces the same
step for one device and knows nothing of communication.

    python benchmarks/typing_time.py            # 64 and 4096 devices, and 100,000
    python benchmarks/typing_time.py --rounds 5
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("JAX_PLATFORMS", "cpu")

MESHES = {64: (8, 8), 4096: (64, 64), 100_000: (1000, 100)}
KINDS = ("unrolled", "scanned")


def _seconds(f: Callable[..., Any], *args: Any) -> tuple[float, float, Any]:
    clock, start = time.perf_counter(), time.process_time()
    out = f(*args)
    return time.perf_counter() - clock, time.process_time() - start, out


def child(kind: str, devices: int) -> dict[str, float]:
    """Measures one program in this process."""
    import jax

    import shtypes as sh
    from benchmarks.models import transformer

    dp, tp = MESHES[devices]
    scan = kind == "scanned"
    config = transformer.Config(layers=96, batch=dp, seq=2048, hidden=64 * tp, heads=tp, inter=256 * tp)
    program = transformer.only_types(config, sh.abstract_mesh({"dp": dp, "tp": tp}), scan=scan)
    ours, busy, ledger = _seconds(sh.ledger, program.step, *program.args)
    args = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), program.args)
    native, native_busy, _ = _seconds(jax.make_jaxpr(transformer.plain_step(config, scan=scan)), *args)
    return {
        "ours": ours,
        "busy": busy,
        "native": native,
        "ratio": busy / native_busy,
        "launches": ledger.total.launches,
    }


def main() -> None:
    """Runs each measurement in processes of its own and prints medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", nargs=2, metavar=("KIND", "DEVICES"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(options.child[0], int(options.child[1]))))
        return
    print("seconds      devices   shtypes   of processor   plain JAX   ratio   collectives")
    for kind in KINDS:
        for devices in MESHES:
            command = [sys.executable, __file__, "--child", kind, str(devices)]
            rounds = [
                json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
                for _ in range(options.rounds)
            ]
            mid = {name: statistics.median(r[name] for r in rounds) for name in rounds[0]}
            print(
                f"{kind:10} {devices:9} {mid['ours']:9.3f} {mid['busy']:14.3f} {mid['native']:11.3f}"
                f" {mid['ratio']:7.2f} {mid['launches']:13.0f}"
            )


if __name__ == "__main__":
    main()
