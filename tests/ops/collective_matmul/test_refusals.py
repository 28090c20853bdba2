"""What `overlap=` refuses, and why: without devices."""

from __future__ import annotations

from typing import Any

import pytest

import shtypes as sh

#: (equation, types of the operands, out, overlap, the message without its place)
REFUSED: list[tuple[str, tuple[str, ...], Any, Any, str]] = [
    ("sh,hi->si", ("f32[8@tp,4]", "f32[4,8@tp]"), None, True,
     "`overlap` needs `out`\n"
     "  why:   it says what is gathered before the products, or how their pending sum is scattered\n"
     '  try:   sh.einsum("sbh,hi->sbi", x, w, out="[_, _, _@tp]", overlap=True)'),
    ("sh,hi->si", ("f32[8,4]", "f32[4,8@tp]"), "[_,_@tp]", True,
     "`overlap` has nothing to overlap: the einsum sends nothing\n"
     "  why:   its result is f32[8,8@tp] by itself"),
    ("si,ih->sh", ("f32[8,4@tp]", "f32[4@tp,8]"), "[_,_]", True,
     "`overlap` has nothing to overlap: `out` asks for no gathered operand and no scattered sum\n"
     "  why:   the einsum gives f32[8,8]{U:tp}, and `out` is f32[8,8]: all-reduce over `tp`\n"
     "  fix:   leave `overlap` out   [forward: all-reduce over `tp`, 384 B/device; "
     "backward: all-reduce over `tp`, 384 B/device]\n"
     "  try:   shard a dim of `out` on mesh axis `tp`: a reduce-scatter can be overlapped, an all-reduce cannot"),
    ("sh,hi->si", ("f32[8@tp,4]", "f32[4,8]"), "[_,_@tp]", True,
     "`overlap` has nothing to overlap: `out` asks for no gathered operand and no scattered sum\n"
     "  why:   the einsum gives f32[8@tp,8], and `out` is f32[8,8@tp]: all-to-all over `tp`\n"
     "  fix:   leave `overlap` out   [forward: all-to-all over `tp`, 48 B/device; "
     "backward: all-to-all over `tp`, 48 B/device]"),
    ("sh,hi->si", ("f32[8@tp,4]", "f32[4,8@tp]"), "[_,_]", True,
     "`overlap` found no operand to gather\n"
     "  why:   gathering one operand does not give f32[8,8], and by itself "
     "`einsum` meets two different dims sharded on mesh axis `tp`: dim 0 of lhs and dim 1 of rhs\n"
     "  try:   gather an operand first, with sh.reshard; one collective is overlapped"),
    ("sh,hi,ij->sj", ("f32[8@tp,4]", "f32[4,8]", "f32[8,4]"), "[_,_]", True,
     "`overlap` takes an einsum of two operands, not 3\n"
     "  why:   one of them, or their product, goes round a ring\n"
     "  try:   write it as einsums of two operands, and overlap those that communicate"),
    ("ssh,hi->si", ("f32[8,8,4]", "f32[4,8@tp]"), "[_,_]", True,
     "`overlap` cannot take a diagonal: lhs has label `s` twice"),
    ("sh,hi->i", ("f32[8@tp,4]", "f32[4,8]"), "[_]", True,
     "`overlap` cannot sum label `s`, which lhs has alone\n"
     "  try:   sh.sum over it first"),
    ("sh,hi->si", ("f32[8@tp,1]", "f32[4,8]"), "[_,_]", True,
     "`overlap` cannot stretch dim `h` of lhs from 1 to 4\n"
     "  try:   sh.broadcast_to, or leave the dim out with sh.squeeze"),
    ("sh,hi->si", ("f32[8@tp,4]", "f32[4,8@tp]"), "[_,_@tp]", "both",
     "`overlap` cannot be 'both'\n"
     "  try:   overlap=True\n"
     '  try:   overlap="bidirectional"'),
]  # fmt: skip


@pytest.mark.parametrize(("equation", "types", "out", "way", "message"), REFUSED)
def test_a_refusal_says_what_there_is_to_overlap(
    equation: str, types: tuple[str, ...], out: Any, way: Any, message: str
) -> None:
    with sh.use_mesh(sh.abstract_mesh({"tp": 4})):
        operands = [sh.abstract_array(t) for t in types]
        with pytest.raises(sh.ShardingTypeError) as found:
            sh.einsum(equation, *operands, out=out, overlap=way)
    what, where, *rest = str(found.value).split("\n")
    assert "\n".join([what, *rest]) == message
    assert where.startswith("  where: test_refusals.py:")
    assert f"einsum[{equation}]({', '.join(types)})" in where
