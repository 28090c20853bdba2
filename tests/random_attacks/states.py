"""Attacks on the arithmetic of states: numbers, widths, shapes and positions."""

from __future__ import annotations

import numpy as np

from tests.random_attacks.making import XY, X, attack, floats, ints

STATES = [
    attack(
        "unsigned U widened",
        X,
        {
            "n0": (ints(3, 5, 250, 7, dtype=np.uint32), "[4]{R:x}"),
            "n1": (ints(1, 2, 3, 4, dtype=np.uint32), "[4]{U:x}"),
            "x0": (floats(4), "[4]"),
        },
        "n0 - n1",
        "!m.astype(v0,'f32')",
    ),
    attack(
        "unsigned U widened by promotion",
        X,
        {
            "n0": (ints(3, 5, 250, 7, dtype=np.uint8), "[4]{R:x}"),
            "n1": (ints(1, 2, 3, 4, dtype=np.uint8), "[4]{U:x}"),
            "n2": (ints(3, -2, 0, 5), "[4]"),
            "x0": (floats(4), "[4]"),
        },
        "n0 - n1",
        "!v0 * n2",
    ),
    attack(
        "unsigned U sum promoted",
        X,
        {
            "n0": (ints(3, 5, 250, 7, dtype=np.uint8), "[4]{R:x}"),
            "n1": (ints(1, 2, 3, 4, dtype=np.uint8), "[4]{U:x}"),
            "x0": (floats(4), "[4]"),
        },
        "n0 - n1",
        "!m.sum(v0)",
    ),
    attack(
        "int8 sum over sharded",
        X,
        {"n0": (ints(100, 100, -100, 50, dtype=np.int8), "[4@x]"), "x0": (floats(4), "[4]")},
        "m.sum(n0)",
        "m.sum(n0, dtype=np.int8)",
        "m.mean(n0)",
    ),
    attack(
        "int8 U widened",
        X,
        {
            "n0": (ints(100, 100, -100, 50, dtype=np.int8), "[4@x]"),
            "n1": (ints(3, -2, 0, 5), "[4]"),
            "x0": (floats(4), "[4]"),
        },
        "m.sum(n0, dtype=np.int8)",
        "!v0 + n1",
        "!m.astype(v0,'f32')",
        "m.astype(m.reshard(v0,'[]'),'f32')",
    ),
    attack(
        "repeated operand",
        X,
        {"x0": (floats(4, 4), "[4,4]{I:x}"), "x1": (floats(4, 4), "[4@x,4]")},
        *("x0 * x0", "x0 * x1 + x0", "x0 + x0", "x0 @ x0", "m.einsum('ij,ij->',x1,x1)", "m.where(x0>0.2,x0,x0)"),
        *("m.concatenate([x0,x0],axis=0)", "m.stack([x1,x1,x0])"),
    ),
    attack(
        "U broadcast",
        XY,
        {"x0": (floats(4, 1), "[4,1]{U:x}"), "x1": (floats(4, 4), "[4,4]{I:x}"), "x2": (floats(1), "[1]{U:x,U:y}")},
        *("x0 + x1", "m.broadcast_to(x0,(2,4,3))", "x2 + x1", "x0 - x2", "m.sum(v1,axis=0)", "x0 * 3", "m.mean(x0)"),
        *("m.repeat(x0,3,axis=1)", "m.tile(x2,(2,3))", "m.expand_dims(x2,0)"),
    ),
    attack(
        "size 1 dims on sharded partners",
        XY,
        {"x0": (floats(1, 4), "[1,4@x]"), "x1": (floats(4, 1), "[4@y,1]"), "x2": (floats(1, 1), "[1,1]{I:x}")},
        *("x0 * x1", "x0 + x1", "x2 * x0", "x2 + x1", "m.squeeze(x2)", "m.where(x0>0.1,x1,x2)", "m.sum(x0,axis=0)"),
        *("m.sum(v0)", "m.mean(v1,axis=0,keepdims=True)"),
    ),
    attack(
        "axis of size 1",
        {"x": 1, "y": 2},
        {"x0": (floats(3, 4), "[3@x,4]"), "x1": (floats(3, 4), "[3,4@(x,y)]"), "x2": (floats(3, 4), "[3,4]{U:x}")},
        *("m.sum(x0,axis=0)", "m.sum(x1)", "x2 * 2 + 1", "m.reshard(x2,'[_,_]')", "m.reshard(x0,'[_,_@x]')"),
        "m.where(x0>0,x0,0)",
    ),
    attack(
        "empty arrays",
        X,
        {
            "x0": (floats(0, 4), "[0,4@x]"),
            "x1": (floats(4), "[4@x]"),
            "x2": (floats(0), "[0@x]"),
            "x3": (floats(0, 3), "[0,3]{U:x}"),
        },
        *("x0 + x1", "m.sum(x0,axis=0)", "m.sum(x0)", "x2 * 2", "m.sum(x2)", "x3 + 1", "m.sum(x3)"),
        *("m.concatenate([x0,x0],axis=0)", "!m.reshape(x0,(4,0))", "m.reshard(x0,'[_,_]')", "m.reshard(x2,'[_]')"),
        *("m.reshard(x3,'[_@x,_]')", "m.einsum('ij,j->i',x0,x1)", "m.prod(m.reshard(x3,'[_,_]'),axis=0)"),
    ),
    attack(
        "numbers beside U",
        X,
        {"x0": (floats(4), "[4]{U:x}"), "x1": (floats(4), "[4]")},
        *("x0 + 1", "1 - x0", "x0 + ROW", "ROW - x0", "x0 + SCALAR", "x0 + WEAK", "WEAK + x0", "x0 - ZERO_D"),
        *("x0 + True", "x0 + np.float32(0)", "x0 + 0.0", "x0 - (-0.0)", "m.where(x1>0.1,x0,1)"),
        *("m.where(MASK,2.5,x0)", "m.where(MASK,x0,ROW)", "m.pad(x0,1,constant_values=2)"),
        *("m.pad(x0,(1,2),constant_values=((3,4),))", "x0.at[0].add(2)", "x0.at[1].set(3)", "x0.at[:2].set(1.5)"),
        *("m.select([x1>0.3,x1>-0.3],[x0,1.5],-2)", "m.stack([x0,x1])", "m.concatenate([x0,ROW])"),
        *("m.diff(x0,prepend=1.5)", "x0 + np.asarray(1)", "x0 + COUNTS", "m.add(x0,np.int32(3))"),
    ),
    attack(
        "division of U",
        X,
        {"x0": (floats(4), "[4]{U:x}"), "x1": (floats(4), "[4]{I:x}"), "n0": (ints(3, -2, 0, 5), "[4]{U:x}")},
        *("x0 / 3", "x0 / (x1+2)", "n0 / 2", "n0 / 2.5", "m.divide(n0, COUNTS+2)", "m.mean(n0)", "n0 * 0.5"),
        *("n0 * x1", "n0 + x1", "n0 + 1", "1 - n0", "m.astype(n0,'f32')"),
    ),
    attack(
        "two axes on one dim",
        XY,
        {
            "x0": (floats(8, 4), "[8@(x,y),4]"),
            "x1": (floats(8, 4), "[8@(y,x),4]"),
            "x2": (floats(8), "[8@x]{I:y}"),
            "x3": (floats(8), "[8]{I:x}"),
        },
        *("m.sum(x0,axis=0)", "m.mean(x1,axis=0)", "m.sum(x0)", "x0 * x3[:,None]", "x3[:,None] + x1"),
        *("m.reshard(x0,'[_@(y,x),_]')+x1", "m.einsum('ij,i->j',x0,x3)", "m.einsum('ij,i->ij',x0,x2)"),
        *("m.reshape(x0,(2,4,4))", "m.reshape(x0,(32,))", "m.reshape(x1,(4,2,2,2))", "m.tril(x0)", "m.triu(x1,1)"),
        *("x0[3]", "x1[-1]", "m.trace(x0)", "m.repeat(x1,2,axis=0)", "m.expand_dims(x0,1)"),
        "m.reshard(x1,'[_@x,_@y]')",
    ),
    attack(
        "positions",
        XY,
        {"x0": (floats(8, 8), "[8@x,8@y]"), "x1": (floats(8), "[8@(x,y)]"), "x2": (floats(8, 8), "[8@x,8]{U:y}")},
        *("m.tril(x0,1)", "m.trace(x0)", "m.trace(x2,2)", "m.diag(x1)", "m.diagonal(x2)", "m.einsum('ii->i',x2)"),
        *("m.einsum('ii->',x2)", "m.triu(x2,-2)", "x1[5]", "x0[5,6]", "x0[:,3]", "x2[3]", "x1[jnp.asarray(-1)]"),
        *("m.trace(x0,-3)", "x0[2]"),
    ),
    attack(
        "largest of shards",
        XY,
        {"x0": (floats(4, 2), "[4@x,2]{I:y}"), "x1": (floats(4, 2), "[4@x,2]{R:y}")},
        "m.shard_map(lambda a: m.lax.pmax(m.max(a), 'x'), out_specs='[]{I:y}')(x0) * 0.5",
        "m.shard_map(lambda a: m.lax.pmin(m.min(m.sin(a)), 'x'), out_specs='[]{R:y}')(x1) * 0.5",
    ),
    attack(
        "numbers beside bf16",
        X,
        {"x0": (floats(4), "[4]{I:x}"), "x1": (floats(4), "[4@x]")},
        "m.diff(m.astype(x0,'bf16'), prepend=0.5)",
        "m.concatenate([m.astype(x0,'bf16'), m.astype(x0,'bf16')*0.25]) + 1",
        "m.maximum(m.astype(x1,'bf16'), 0.25) / 3",
    ),
    attack(
        "nan and masks",
        X,
        {
            "x0": (np.asarray([1, np.nan, np.inf, -1], np.float32), "[4]"),
            "x1": (floats(4), "[4@x]"),
            "x2": (floats(4), "[4]{I:x}"),
        },
        *("m.where(m.isfinite(x0),x0,0)", "m.reshard(v0,'[_]{U:x}')", "m.tril(m.broadcast_to(x2,(4,4)))", "x2 * v1"),
        *("m.where(m.isnan(x0),x2,0.5)", "m.where(m.isfinite(x0),x2,x1)"),
    ),
]
