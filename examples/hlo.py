"""What a compiled program communicates, read off its text: to hold against a ledger.

Run ``python -m examples.hlo``: a gather that is the same in each step of a loop is moved out of it by XLA.
"""

from __future__ import annotations

import os

os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")

import re
from collections import Counter
from typing import Annotated as A
from typing import Any

_COLLECTIVE = re.compile(
    r" = (?P<results>.*?) (?P<kind>all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
)
_CALLED = re.compile(r"(?:body|condition|to_apply|calls)=%?([\w.\-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_HEAD = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[\w.\-]+) .*\{$")


def collectives_run(text: str) -> Counter[str]:
    """How many arrays each kind of collective sends when the program runs, the trips of loops multiplied.

    XLA may combine several all-reduces into one with several operands: operands are counted, not instructions.

    Args:
        text: ``compiled.as_text()``.
    """
    computations: dict[str, list[str]] = {}
    entry = name = ""
    for line in text.splitlines():
        head = _HEAD.match(line)
        if head:
            name = head["name"]
            computations[name] = []
            entry = name if head["entry"] else entry
        elif name:
            computations[name].append(line)
    found: Counter[str] = Counter()

    def visit(name: str, times: int) -> None:
        for line in computations[name]:
            call, trips = _COLLECTIVE.search(line), _TRIPS.search(line)
            if call:
                operands = len(re.findall(r"\w+\[", call["results"])) if call["kind"] == "all-reduce" else 1
                found[call["kind"]] += operands * times
            for called in _CALLED.findall(line):
                visit(called, times * (int(trips[1]) if trips else 1))

    visit(entry, 1)
    return found


def compiled_text(jitted: Any, *args: Any) -> str:
    """The compiled program, with every collective that the program asks for: XLA merges those of the same value."""
    text: str = jitted.lower(*args).compile(compiler_options={"xla_disable_hlo_passes": "cse"}).as_text()
    return text


def main() -> None:
    """Prints the ledger of a small program beside what the compiled one runs, with XLA's passes and without them."""
    import shtypes as sh

    sh.set_mesh(sh.make_mesh({"dp": 8}))
    x, w = sh.ones("f32[16@dp, 32]"), sh.ones("f32[32@dp, 32]")

    def layers(x: A[sh.Array, "f32[16@dp, 32]"], w: A[sh.Array, "f32[32@dp, 32]"]) -> A[sh.Array, "f32[16@dp, 32]"]:
        """The same weights in each layer, gathered where they are used."""
        return sh.scan(lambda x, _: (sh.tanh(x @ sh.all_gather(w, "dp")), None), x, None, 6)[0]

    run = sh.jit(layers)
    print(sh.ledger(run, x, w))
    lowered = run.lower(x, w)
    for disabled in ("", "cse", "cse,while-loop-invariant-code-motion"):
        text = lowered.compile(compiler_options={"xla_disable_hlo_passes": disabled}).as_text()
        print(f"compiled {f'without {disabled}' if disabled else 'as usual'}: {dict(collectives_run(text))}")


if __name__ == "__main__":
    main()
