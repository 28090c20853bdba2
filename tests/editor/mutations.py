"""Mistakes, each seeded into an example: what is written instead of what, and the line at which mypy must say so."""

from __future__ import annotations

from typing import NamedTuple


class Mutation(NamedTuple):
    """One mistake.

    Attributes:
        file: The example.
        kind: What kind of mistake it is.
        old: What is there, once.
        new: What is written instead.
        at: A part of the line that is at fault; by default the first line that is changed.
    """

    file: str
    kind: str
    old: str
    new: str
    at: str = ""


AXIS, MISSING, NONLINEAR, QUIET = "wrong axis", "missing reduction", "nonlinear on a sum", "communicates in no_comm"
SWAPPED, GRADIENT, DIMS = "swapped operands", "gradient as primal", "wrong dims"

_STEP = """

def _loss(w: Whole, x: Rows) -> Annotated[sh.Array, "f32[]{{U:x}}"]:
    return sh.sum(x @ w)


def _step(w: Whole, x: Rows) -> Whole:
    g = sh.grad(_loss)(w, x)
    {}


# The collectives by themselves"""

MUTATIONS: tuple[Mutation, ...] = (
    # gated_mlp
    Mutation("gated_mlp", SWAPPED, "sh.silu(h1), h3)", "sh.silu(h1), rx)"),
    Mutation("gated_mlp", DIMS, '"sbh,hi->sbi", rx, rw1', '"sbh,ih->sbi", rx, rw1'),
    Mutation("gated_mlp", DIMS, '"sbi,ih->sbh", h, rw2', '"sbi,hi->sbh", h, rw2'),
    Mutation("gated_mlp", NONLINEAR, "return out  #", "return sh.silu(out)  #"),
    Mutation("gated_mlp", NONLINEAR, "return out  #", "return out * out  #"),
    Mutation("gated_mlp", DIMS, 'sh.reshard(x, tp="R")', "sh.reshard(x, tp=5)"),
    Mutation("gated_mlp", SWAPPED, "return mlp(rx, rw1, rw3, rw2)", "return mlp(rx, rw2, rw3, rw1)"),
    Mutation("gated_mlp", AXIS, "rw2 = sh.reshard(w2, dp", "rw2 = sh.reshard(w2, tp", "return mlp(rx"),
    Mutation("gated_mlp", SWAPPED, "sh.sum(mlp_with_casts(x, w1, w3, w2))", "sh.sum(mlp_with_casts(w1, x, w3, w2))"),
    # replicate_forwards
    Mutation("replicate_forwards", NONLINEAR, "sh.mean(x * x, -1", "sh.mean(x * x, 0"),
    Mutation("replicate_forwards", DIMS, "sh.mean(x * x, -1, keepdims=True)", "sh.mean(x * x, -1)"),
    Mutation("replicate_forwards", AXIS, 'sh.all_gather(norm(x), "tp")', 'sh.all_gather(norm(x), "dp")'),
    Mutation("replicate_forwards", MISSING, 'mlp(sh.all_gather(norm(x), "tp"), w1', "mlp(norm(x), w1"),
    Mutation("replicate_forwards", MISSING, 'x + sh.reduce_scatter(pending, "tp", 0)', "x + pending"),
    Mutation("replicate_forwards", AXIS, 'reduce_scatter(pending, "tp", 0)', 'reduce_scatter(pending, "dp", 0)'),
    Mutation("replicate_forwards", DIMS, 'reduce_scatter(pending, "tp", 0)', 'reduce_scatter(pending, "tp", 1)'),
    Mutation("replicate_forwards", SWAPPED, "return mlp((a + b) * scale, w1", "return mlp((a + w1) * scale, w1"),
    Mutation("replicate_forwards", SWAPPED, "scale, w1, w3, w2)", "scale, w1, w2, w3)"),
    Mutation("replicate_forwards", QUIET, "def block(", "@sh.no_comm\ndef block(", "return x + sh.reduce_scatter"),
    Mutation("replicate_forwards", QUIET, "def branch(", "@sh.no_comm\ndef branch(", "return mlp(sh.all_gather"),
    # sharding_and_communication
    Mutation(
        "sharding_and_communication",
        SWAPPED,
        'nothing is sent."""\n    return a @ b',
        'nothing is sent."""\n    return b @ a',
    ),
    Mutation("sharding_and_communication", AXIS, 'sh.all_gather(a, "x") @ b', 'sh.all_gather(a, "y") @ b'),
    Mutation("sharding_and_communication", MISSING, 'sh.all_gather(a, "x") @ b', "a @ b"),
    Mutation("sharding_and_communication", AXIS, 'sh.all_gather(a @ b, "x")', 'sh.all_reduce(a @ b, "x")'),
    Mutation("sharding_and_communication", MISSING, 'sh.all_reduce(a @ b, "x")', "a @ b"),
    Mutation("sharding_and_communication", NONLINEAR, 'sh.all_reduce(a @ b, "x")', 'sh.all_reduce(sh.exp(a @ b), "x")'),
    Mutation(
        "sharding_and_communication", DIMS, 'sh.reduce_scatter(a @ b, "x", 0)', 'sh.reduce_scatter(a @ b, "x", 2)'
    ),
    Mutation("sharding_and_communication", MISSING, 'sh.reduce_scatter(a @ b, "x", 0)', "a @ b"),
    Mutation("sharding_and_communication", DIMS, 'sh.reshard(a, "[_@x, _]")', 'sh.reshard(a, "[_@x]")'),
    Mutation("sharding_and_communication", AXIS, 'sh.reshard(b, "[_, _@x]")', 'sh.reshard(b, "[_@x, _@x]")'),
    Mutation("sharding_and_communication", DIMS, '"ik,jk->ij", c, c', '"ik,kj->ij", c, c'),
    Mutation("sharding_and_communication", AXIS, 'out="[_@x, _@y]"', 'out="[_@x, _@x]"'),
    Mutation(
        "sharding_and_communication", QUIET, "def summed(", "@sh.no_comm\ndef summed(", "return sh.all_reduce(a @ b"
    ),
    Mutation(
        "sharding_and_communication",
        GRADIENT,
        "\n\n# The collectives by themselves",
        _STEP.format("return w - 0.1 * sh.exp(g)"),
        "return w - 0.1",
    ),
    Mutation(
        "sharding_and_communication",
        GRADIENT,
        "\n\n# The collectives by themselves",
        _STEP.format("return sh.grad(_loss)(g, x)"),
        "return sh.grad(_loss)(g, x)",
    ),
    # local mode
    Mutation("jep_14273", MISSING, 'return sh.lax.psum(a_block @ b_block, "j")', "return a_block @ b_block"),
    Mutation(
        "jep_14273", AXIS, 'return sh.lax.psum(a_block @ b_block, "j")', 'return sh.lax.psum(a_block @ b_block, "i")'
    ),
    Mutation(
        "jep_14273",
        NONLINEAR,
        'sh.all_reduce(sh.mean(x * x, -1, keepdims=True), "X", "Y")',
        "sh.mean(x * x, -1, keepdims=True)",
    ),
    Mutation("jep_14273", AXIS, 'keepdims=True), "X", "Y")', 'keepdims=True), "X")'),
    Mutation("shard_map_tutorial", MISSING, 'return sh.lax.psum(c_partialsum, "y")', "return c_partialsum"),
    Mutation(
        "shard_map_tutorial",
        AXIS,
        'sh.lax.psum_scatter(lhs_block @ rhs_block, "i", tiled=True)',
        'sh.lax.psum_scatter(lhs_block @ rhs_block, "j", tiled=True)',
    ),
)
