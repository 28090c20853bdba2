"""What XLA makes of a ring: permutes between products, no gather, and less memory than the gathered form."""

from __future__ import annotations

import re
from typing import Any

import pytest

import shtypes as sh
from tests.traced.compiled import compiled_text, sent_by_compiled, sent_by_ledger

N = 4
#: (equation, types of the operands, out, dim of the first operand to gather without overlap)
FORMS = {
    "gathered": ("sh,hi->si", ("f32[512@tp,256]", "f32[256,512@tp]"), "[_,_@tp]"),
    "gathered and contracted": ("sh,hi->si", ("f32[512,256@tp]", "f32[256,128@tp]"), "[_,_@tp]"),
    "scattered": ("si,ih->sh", ("f32[512,512@tp]", "f32[512@tp,256]"), "[_@tp,_]"),
}


def program(form: str, way: Any) -> Any:
    equation, types, out = FORMS[form]

    def f(x: Any, y: Any) -> Any:
        if way or form == "scattered":
            return sh.einsum(equation, x, y, out=out, overlap=way)
        return sh.einsum(equation, sh.all_gather(x, "tp"), y, out=out)

    sh.set_mesh(sh.make_mesh({"tp": N}))
    return sh.jit(f).lower(*map(sh.abstract_array, types)).compile()


def order(text: str) -> str:
    """The permutes (p) and products (d) of the entry computation, in order; products are inside of fusions."""
    fused = set(re.findall(r"^%?(\S+) .*\{\n(?:(?!^\}).*\n)*?.* dot\(", text, re.M))
    found = []
    for line in text[text.index("\nENTRY") :].splitlines():
        called = re.search(r"calls=%?([\w.\-]+)", line)
        if re.search(r" collective-permute(-start)?\(", line):
            found.append("p")
        elif " dot(" in line or (called and called[1] in fused):
            found.append("d")
    return "".join(found)


@pytest.mark.parametrize("form", FORMS)
def test_a_ring_permutes_between_products_and_needs_less_memory(form: str) -> None:
    whole = program(form, False)
    assert re.search(r" (all-gather|reduce-scatter)\(", whole.as_text())
    for way, permutes in ((True, N - 1), ("bidirectional", 2 * (N - 1))):
        ring = program(form, way)
        text = ring.as_text()
        assert not re.search(r" (all-gather|reduce-scatter|all-reduce|all-to-all)(-start)?\(", text)
        steps = order(text)
        assert steps.count("p") == permutes
        assert steps.count("d") == N * permutes // (N - 1)
        # At no time is more than one stop's permutes, or products, ahead of the others.
        width = permutes // (N - 1)
        assert not re.search("p" * (2 * width) + "|" + "d" * (3 * width + 1), steps), steps
        assert ring.memory_analysis().temp_size_in_bytes < whole.memory_analysis().temp_size_in_bytes


@pytest.mark.one_in(9)
@pytest.mark.parametrize("way", [True, "bidirectional"])
def test_the_compiled_forward_and_backward_pass_send_what_the_ledger_says(way: Any) -> None:
    sh.set_mesh(sh.make_mesh({"tp": N}))

    def loss(x: Any, w1: Any, w2: Any) -> Any:
        h = sh.einsum("sh,hi->si", x, w1, out="[_,_@tp]", overlap=way)
        return sh.sum(sh.sin(sh.einsum("si,ih->sh", sh.sin(h), w2, out="[_@tp,_]", overlap=way)))

    args = [sh.ones(t) for t in ("f32[8@tp,8]", "f32[8,8@tp]", "f32[8@tp,8]")]
    step = sh.value_and_grad(loss, argnums=(0, 1, 2))
    found = sh.ledger(step, *args)
    assert set(found.by_kind()) == {"permute"}
    assert sent_by_compiled(compiled_text(sh.jit(step), *args)) == sent_by_ledger(found)
