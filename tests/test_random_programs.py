"""Random programs, and programs made to break the types, mean what they mean on one device.

Of each: every value and gradient, the types of gradients, equal values on replicated axes, no collective that the
ledger does not list, and the same refusals when traced and when run. `tests.random_checks` prints the smallest program.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import shtypes as sh
from shtypes.array import wrap
from shtypes.hitype import hi
from tests.random_checks import check, denoted, verify, verify_together
from tests.random_programs import MESHES, POLICIES, Program, Step, draw_program

# drawn

MODES = ("region", "region", "region", "region", "per op")
#: Seeds whose programs run one op at a time as well, which compiles each op by itself.
EAGER = (3, 14)
PLACES = [(mesh, policy) for mesh in MESHES for policy in POLICIES]


@pytest.mark.parametrize("place", range(len(PLACES)), ids=lambda i: f"{PLACES[i][0]}-{PLACES[i][1]}")
def test_short_random_programs_mean_what_one_device_computes(place: int) -> None:
    mesh, policy = PLACES[place]
    programs = [draw_program(13 * place + i, steps=(5, 8), mesh=mesh, policy=policy) for i in range(13)]
    verify_together(programs, MODES[place % 5])


@pytest.mark.parametrize("seed", EAGER)
def test_random_programs_mean_the_same_one_op_at_a_time(seed: int) -> None:
    verify(draw_program(seed, steps=(3, 5)), "eager")


@pytest.mark.nightly
@pytest.mark.parametrize("start", range(10_000, 12_000, 20))
def test_long_random_programs_mean_what_one_device_computes(start: int) -> None:
    for seed in range(start, start + 20):
        verify(draw_program(seed), "eager" if seed % 100 == 99 else MODES[seed % 5])


def test_the_generator_takes_and_refuses_and_uses_every_state() -> None:
    programs = [draw_program(seed, steps=(3, 8)) for seed in range(40)]
    steps = [s for p in programs for s in p.steps]
    assert 0.1 < sum(s.refused for s in steps) / len(steps) < 0.6
    assert {p.policy for p in programs} == {"partial", "jax"}
    text = " ".join(t for p in programs for _, t in p.inputs.values())
    assert all(found in text for found in ("U:", "R:", "I:", "@(x)", "@(x,y)")), text


# made to break


def floats(*shape: int) -> Any:
    return np.asarray(np.random.default_rng(len(shape)).integers(-8, 9, shape) / 8, np.float32)


def ints(*values: int, dtype: Any = np.int32) -> Any:
    return np.asarray(values, dtype)


def attack(
    name: str,
    mesh: dict[str, int],
    inputs: dict[str, Any],
    *texts: str,
    policy: str = "partial",
    nightly: bool = False,
) -> Any:
    """A program by hand; a text that begins with ``!`` must be refused. Long ones run with the nightly tests."""
    steps = tuple(Step(f"v{i}", t.removeprefix("!"), t.startswith("!")) for i, t in enumerate(texts))
    marks = [pytest.mark.nightly] if nightly else []
    return pytest.param(Program(mesh, policy, inputs, steps, name), id=name.replace(" ", "_"), marks=marks)


X, XY = {"x": 2}, {"x": 2, "y": 2}
FOUR = floats(4)
ATTACKS = [
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
        "v0 + n1",
        "m.astype(v0,'f32')",
    ),
    attack(
        "repeated operand",
        X,
        {"x0": (floats(4, 4), "[4,4]{I:x}"), "x1": (floats(4, 4), "[4@x,4]")},
        "x0 * x0",
        "x0 * x1 + x0",
        "x0 + x0",
        "x0 @ x0",
        "m.einsum('ij,ij->',x1,x1)",
        "m.where(x0>0.2,x0,x0)",
        "m.concatenate([x0,x0],axis=0)",
        "m.stack([x1,x1,x0])",
    ),
    attack(
        "U broadcast",
        XY,
        {"x0": (floats(4, 1), "[4,1]{U:x}"), "x1": (floats(4, 4), "[4,4]{I:x}"), "x2": (floats(1), "[1]{U:x,U:y}")},
        "x0 + x1",
        "m.broadcast_to(x0,(2,4,3))",
        "x2 + x1",
        "x0 - x2",
        "m.sum(v1,axis=0)",
        "x0 * 3",
        "m.mean(x0)",
        "m.repeat(x0,3,axis=1)",
        "m.tile(x2,(2,3))",
        "m.expand_dims(x2,0)",
    ),
    attack(
        "size 1 dims on sharded partners",
        XY,
        {"x0": (floats(1, 4), "[1,4@x]"), "x1": (floats(4, 1), "[4@y,1]"), "x2": (floats(1, 1), "[1,1]{I:x}")},
        "x0 * x1",
        "x0 + x1",
        "x2 * x0",
        "x2 + x1",
        "m.squeeze(x2)",
        "m.where(x0>0.1,x1,x2)",
        "m.sum(x0,axis=0)",
        "m.sum(v0)",
        "m.mean(v1,axis=0,keepdims=True)",
    ),
    attack(
        "axis of size 1",
        {"x": 1, "y": 2},
        {"x0": (floats(3, 4), "[3@x,4]"), "x1": (floats(3, 4), "[3,4@(x,y)]"), "x2": (floats(3, 4), "[3,4]{U:x}")},
        "m.sum(x0,axis=0)",
        "m.sum(x1)",
        "x2 * 2 + 1",
        "m.reshard(x2,'[_,_]')",
        "m.reshard(x0,'[_,_@x]')",
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
        "x0 + x1",
        "m.sum(x0,axis=0)",
        "m.sum(x0)",
        "x2 * 2",
        "m.sum(x2)",
        "x3 + 1",
        "m.sum(x3)",
        "m.concatenate([x0,x0],axis=0)",
        "!m.reshape(x0,(4,0))",
        "m.reshard(x0,'[_,_]')",
        "m.reshard(x2,'[_]')",
        "m.reshard(x3,'[_@x,_]')",
        "m.einsum('ij,j->i',x0,x1)",
        "m.prod(m.reshard(x3,'[_,_]'),axis=0)",
    ),
    attack(
        "numbers beside U",
        X,
        {"x0": (floats(4), "[4]{U:x}"), "x1": (floats(4), "[4]")},
        "x0 + 1",
        "1 - x0",
        "x0 + ROW",
        "ROW - x0",
        "x0 + SCALAR",
        "x0 + WEAK",
        "WEAK + x0",
        "x0 - ZERO_D",
        "x0 + True",
        "x0 + np.float32(0)",
        "x0 + 0.0",
        "x0 - (-0.0)",
        "m.where(x1>0.1,x0,1)",
        "m.where(MASK,2.5,x0)",
        "m.where(MASK,x0,ROW)",
        "m.pad(x0,1,constant_values=2)",
        "m.pad(x0,(1,2),constant_values=((3,4),))",
        "x0.at[0].add(2)",
        "x0.at[1].set(3)",
        "x0.at[:2].set(1.5)",
        "m.select([x1>0.3,x1>-0.3],[x0,1.5],-2)",
        "m.stack([x0,x1])",
        "m.concatenate([x0,ROW])",
        "m.diff(x0,prepend=1.5)",
        "x0 + np.asarray(1)",
        "x0 + COUNTS",
        "m.add(x0,np.int32(3))",
    ),
    attack(
        "division of U",
        X,
        {"x0": (floats(4), "[4]{U:x}"), "x1": (floats(4), "[4]{I:x}"), "n0": (ints(3, -2, 0, 5), "[4]{U:x}")},
        "x0 / 3",
        "x0 / (x1+2)",
        "n0 / 2",
        "n0 / 2.5",
        "m.divide(n0, COUNTS+2)",
        "m.mean(n0)",
        "n0 * 0.5",
        "n0 * x1",
        "n0 + x1",
        "n0 + 1",
        "1 - n0",
        "m.astype(n0,'f32')",
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
        "m.sum(x0,axis=0)",
        "m.mean(x1,axis=0)",
        "m.sum(x0)",
        "x0 * x3[:,None]",
        "x3[:,None] + x1",
        "m.reshard(x0,'[_@(y,x),_]')+x1",
        "m.einsum('ij,i->j',x0,x3)",
        "m.einsum('ij,i->ij',x0,x2)",
        "m.reshape(x0,(2,4,4))",
        "m.reshape(x0,(32,))",
        "m.reshape(x1,(4,2,2,2))",
        "m.tril(x0)",
        "m.triu(x1,1)",
        "x0[3]",
        "x1[-1]",
        "m.trace(x0)",
        "m.repeat(x1,2,axis=0)",
        "m.expand_dims(x0,1)",
        "m.reshard(x1,'[_@x,_@y]')",
    ),
    attack(
        "positions",
        XY,
        {"x0": (floats(8, 8), "[8@x,8@y]"), "x1": (floats(8), "[8@(x,y)]"), "x2": (floats(8, 8), "[8@x,8]{U:y}")},
        "m.tril(x0,1)",
        "m.trace(x0)",
        "m.trace(x2,2)",
        "m.diag(x1)",
        "m.diagonal(x2)",
        "m.einsum('ii->i',x2)",
        "m.einsum('ii->',x2)",
        "m.triu(x2,-2)",
        "x1[5]",
        "x0[5,6]",
        "x0[:,3]",
        "x2[3]",
        "x1[jnp.asarray(-1)]",
        "m.trace(x0,-3)",
        "x0[2]",
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
        "m.where(m.isfinite(x0),x0,0)",
        "m.reshard(v0,'[_]{U:x}')",
        "m.tril(m.broadcast_to(x2,(4,4)))",
        "x2 * v1",
        "m.where(m.isnan(x0),x2,0.5)",
        "m.where(m.isfinite(x0),x2,x1)",
    ),
    attack(
        "scan with U carry",
        X,
        {"x0": (floats(3, 4, 4), "[3,4,4@x]"), "x1": (floats(4), "[4]{I:x}"), "x2": (floats(4), "[4@x]")},
        "m.scan(lambda c,w: (c + m.einsum('ij,j->i',w,x2), c*2), m.zeros_like(x1), x0)[0]",
        "m.scan(lambda c,w: (c + m.einsum('ij,j->i',w,x2), c*2), m.zeros_like(x1), x0)[1]",
        "m.scan(lambda c,w: (m.scan(lambda e,r: (e*0.5 + m.sum(r*x2), None), c, w)[0], None), m.sum(x1), x0)[0]",
        "m.scan(lambda c,w:(c + x1, x1*2), x1, x0, reverse=True)[1]",
        "m.fori_loop(0,3,lambda i,c: c*0.5 + x1*x2, x2)",
        "m.fori_loop(0,2,lambda i,c: c + m.sum(x2*x1), m.sum(x1))",
    ),
    attack(
        "checkpoint casts",
        X,
        {"x0": (floats(4), "[4]{I:x}"), "x1": (floats(4), "[4@x]"), "x2": (floats(4, 4), "[4@x,4]")},
        "m.checkpoint(lambda a,b: m.tanh(a*b)*a)(x0,x1)",
        "m.checkpoint(lambda a: m.sin(m.reshard(a @ x2,'[_]{I:x}'))*a)(x1)",
        "m.checkpoint(lambda a: m.checkpoint(lambda b: b*x0 + x1)(a*2))(x1)",
        "m.checkpoint(lambda a: m.scan(lambda c,w: (c + w*a, None), a, m.reshard(x2,'[_,_@x]'))[0])(x1)",
        "m.checkpoint(lambda a: m.cond(YES, lambda: a*x1, lambda: x1))(x0)",
    ),
    attack(
        "cond results differ",
        X,
        {
            "x0": (floats(4), "[4]{I:x}"),
            "x1": (floats(4), "[4]{R:x}"),
            "x2": (floats(4), "[4]{U:x}"),
            "x3": (floats(4), "[4@x]"),
        },
        "m.cond(NO,lambda: x1,lambda: x2)",
        "m.cond(YES,lambda: x1,lambda: x3)",
        "m.cond(NO,lambda a: a,lambda a: m.reshard(x1,'[_]{I:x}'),x0)",
        "m.switch(2,[lambda: x1,lambda: x2,lambda: x1*2])",
        "m.cond(YES,lambda: (x0,x1),lambda: (x0,x2))[1]",
        "m.cond(YES, lambda a,b: a*b, lambda a,b: b, x0, x3)",
    ),
    attack(
        "vmap",
        X,
        {
            "x0": (floats(3, 4), "[3,4@x]"),
            "x1": (floats(3, 4), "[3,4]{U:x}"),
            "x2": (floats(4), "[4]{I:x}"),
            "x3": (floats(4, 3), "[4@x,3]"),
        },
        "m.vmap(lambda a: m.sum(a*x2))(x0)",
        "m.vmap(lambda a: a+1)(x1)",
        "m.vmap(lambda a,b: m.where(a>0.2,a,b),(0,None))(x0,x2)",
        "m.vmap(lambda a: a*x2,1,1)(x3)",
        "m.vmap(lambda a: x2)(x0)",
        "m.vmap(lambda a: m.reshard(a,'[_]'))(x1)",
        "m.vmap(m.vmap(lambda a: a*2))(x1)",
        "m.vmap(lambda a: m.tril(m.einsum('i,j->ij',a,x2)))(x0)",
        "m.vmap(lambda a: m.pad(a,1,constant_values=1.0))(x1)",
        "m.vmap(lambda a: a[2])(x0)",
        "m.vmap(lambda a: m.scan(lambda c,y: (c+y,c), a, x0)[0])(x0)",
        "m.vmap(lambda a: m.cumsum(a) + ROW)(x1)",
    ),
    attack(
        "bf16",
        X,
        {"x0": (floats(8, 8), "[8,8@x]"), "x1": (floats(8), "[8@x]")},
        "m.astype(x0,'bf16')",
        "m.sum(v0)",
        "m.einsum('ij,j->i',v0,m.astype(x1,'bf16'),preferred_element_type=np.float32)",
        "m.astype(m.reshard(v1,'[]'),'f32')",
        "m.sum(v0,dtype=np.float32)",
    ),
    attack(
        "where with int and bool casts",
        X,
        {"x0": (floats(4), "[4@x]"), "n0": (ints(3, -2, 0, 5), "[4]{U:x}"), "n1": (ints(3, -2, 0, 5), "[4]{R:x}")},
        "m.astype(x0>0.2,'f32')*x0",
        "m.where(n1,x0,0)",
        "m.where(n1,n0,7)",
        "m.where(n1==1,n0,n1)",
        "n0*n1",
        "m.astype(x0*4,'i32')",
        "v5*n1",
        "m.cumsum(n0)",
        "m.sort(n1)",
        "n1//2",
        "n0 - 1",
        "-n0",
        "m.sum(n0)",
        "m.mean(n0)",
        "~n1",
        "n1<<1",
        "m.argmax(n1)",
        "n0*True",
    ),
    attack(
        "gradient of integer path",
        X,
        {"x0": (floats(4), "[4@x]"), "n0": (ints(3, -2, 0, 5), "[4]")},
        "x0 * m.astype(m.astype(x0*8,'i32'),'f32')",
        "m.where(m.astype(x0*3,'i32')==1,x0,x0*2)",
        "m.stop_gradient(x0)*x0",
        "m.constant(x0)*x0",
        "x0*n0",
        "m.round(x0*3)*x0",
        "m.sign(x0)*x0",
    ),
    attack(
        "policy jax",
        XY,
        {"x0": (floats(4, 4), "[4,4@x]"), "x1": (floats(4, 4), "[4@x,4]"), "x2": (floats(4), "[4]")},
        "x0 @ x1 + x2",
        "m.all_reduce(x0 @ x1)",
        "m.silu(v1)*x2",
        "m.all_gather(x0,'x')",
        "v3*x2",
        policy="jax",
    ),
    attack(
        "take",
        XY,
        {
            "x0": (floats(8, 4), "[8@x,4]"),
            "n0": (ints(-2, 9, 3, 7), "[4]"),
            "n1": (ints(0, 7, 3, 3), "[4@y]"),
            "x1": (floats(8, 4), "[8,4]{U:x}"),
            "x2": (floats(8, 4), "[8@(y,x),4]"),
        },
        "m.take(x0,n1,axis=0)",
        "m.take(x0,n0,axis=0,mode='clip')",
        "m.take(x0,n0,axis=0,mode='wrap')",
        "m.take(x1,n1,axis=0)",
        "m.take(x0,n0,axis=0,mode='fill',fill_value=0.5)",
        "m.take(x1,n0,axis=0,mode='fill',fill_value=0.5)",
        "m.take(x2,n0,axis=0,mode='wrap')",
        "x0[n1]",
        "x1[n1,2]",
        "x0[n1,n1%4]",
        "m.one_hot(n0,8)",
        "m.take_along_axis(x1,n0[:,None]%8,axis=0)",
        "m.take(x2,n0,axis=0,mode='fill',fill_value=2.0)",
    ),
    attack(
        "wide U",
        {"x": 4},
        {"x0": (floats(4, 4), "[4@x,4]"), "x1": (floats(4, 4), "[4,4@x]")},
        "m.einsum('ij,ik->jk',x0,x0)",
        "v0*2 - 1",
        "m.reshard(v1,'[_@x,_]')",
        "m.softmax(v2,axis=1)",
        "v3 @ m.reshard(x1,'[_,_]')",
        "m.sum(v4*x0)",
    ),
    attack(
        "linalg/fft",
        X,
        {"x0": (floats(4, 4), "[4@x,4]"), "x1": (floats(4, 4), "[4,4]{U:x}"), "x2": (floats(2, 4, 4), "[2@x,4,4]")},
        "m.real(m.fft.fft(x0,axis=1))",
        "m.imag(m.fft.fft(x1))",
        "m.real(m.fft.ifft(m.fft.fft(x1)))",
        "m.linalg.solve(x2+4*jnp.eye(4), x2)",
        "m.linalg.norm(x2,axis=(1,2))",
        "m.linalg.det(x2*0.3)",
    ),
    attack(
        "plain operands first",
        X,
        {"x0": (floats(4), "[4]{I:x}")},
        "jnp.asarray(ROW) * x0",
        "ROW * x0",
        "SCALAR * x0",
        "np.float64(2)*x0",
        "WEAK*x0",
        "ZERO_D + x0",
        "TABLE[0,:4] + x0",
        "COUNTS + x0",
        "MASK * x0",
        "MASK + x0",
    ),
    attack(
        "einsum more",
        XY,
        {
            "x0": (floats(4, 4), "[4@x,4]"),
            "x1": (floats(4, 4), "[4,4]{U:x}"),
            "x2": (floats(1, 4), "[1,4@y]"),
            "x3": (floats(4), "[4]{I:x}"),
        },
        "m.einsum('ij,jk,k->i',x0,m.reshard(x1,'[_,_]'),x3)",
        "m.einsum('ij,jk,k->ik',x1,x3[:,None]*x3,x3)",
        "m.einsum('ij,ij->ij',x2,x0)",
        "m.einsum('ij,ij->',x2,x0)",
        "m.einsum('ij,kj->ik',x2,x2)",
        "m.einsum('ij,i->',x2,x3[:1])",
        "m.einsum('ii,i->i',x0,x3)",
        "m.einsum('ii,ii->i',x0,x0)",
        "m.einsum('...j,j->...',x1,x3)",
        "m.einsum('ij,i->j',m.broadcast_to(x2,(4,4)),x3)",
        "m.inner(x0,x3)",
        "m.outer(x3,x2)",
        "m.vdot(x0,x0)",
        "!m.linalg.multi_dot([x0,m.reshard(x1,'[_,_]'),x0])",
        "!m.average(x0,axis=1,weights=ROW+1)",
        "m.average(x0,axis=0)",
        nightly=True,
    ),
    attack(
        "updates",
        X,
        {
            "x0": (floats(4, 4), "[4,4]{U:x}"),
            "x1": (floats(4), "[4]{I:x}"),
            "x2": (floats(4, 4), "[4@x,4]"),
            "x3": (floats(2, 4), "[2,4]{R:x}"),
            "n0": (ints(3, 1), "[2]"),
            "x4": (floats(2, 4), "[2@x,4]"),
        },
        "x0.at[n0].add(x3)",
        "x0.at[1].set(x1)",
        "x2.at[n0].add(x3)",
        "x2.at[n0].set(x3)",
        "x3.at[n0%2].add(x4)",
        "x2.at[1].add(x1)",
        "x2.at[:,1].set(x1)",
        "x0.at[jnp.asarray([0,0,1])].add(1.5)",
        "x1.at[n0].multiply(2)",
        "x1.at[n0].max(0.5)",
        "m.dynamic_update_slice(x0,x3,(1,0))",
        "m.dynamic_update_slice(x2,x1[:,None]*1.0,(0,2))",
        "m.dynamic_slice(x0,(1,0),(2,4))",
        "m.dynamic_slice(x2,(0,n0[0]),(4,2))",
        "x2.at[0].set(0)",
        "x0.at[:2].set(0.5)",
        "x0.at[n0,n0].add(2.0)",
        "x2.at[n0,n0].add(2.0)",
        "x2.at[n0].mul(3.0)",
        "x0.at[1:3].multiply(2.0)",
        "x0.at[0].divide(4)",
        nightly=True,
    ),
    attack(
        "complex two",
        X,
        {"x1": (floats(4), "[4@x]"), "x2": (floats(4), "[4]{I:x}"), "x0": (floats(4), "[4]{U:x}")},
        "m.fft.fft(x2)",
        "m.real(x1+v0)",
        "m.imag(v0-x1)",
        "m.real((2j-x1)*(1j-x2))",
        "m.abs(v0+1.0+3j)",
        "m.imag(m.where(MASK,v0,x1))",
        "m.real(m.concatenate([v0,x2]))",
        "m.imag(m.stack([x0,m.fft.fft(x0)]))",
        "m.real(m.einsum('i,i->',x1,v0))",
        "m.astype(v0,'c64').real",
        "m.imag(x0-1j)",
        "m.real(3-x0*1j)",
        "m.abs(m.add(x1,np.complex64(1j)))",
        "m.astype(x1,'bf16')+m.astype(x2,'f32')",
    ),
    attack(
        "complex",
        X,
        {"x0": (floats(4), "[4]{U:x}"), "x1": (floats(4), "[4@x]"), "x2": (floats(4), "[4]{I:x}")},
        "m.abs(m.fft.fft(m.reshard(x0,'[_]'))+1.5)",
        "m.real(m.fft.fft(x0)*1j)",
        "m.imag((x1+2j)*x2)",
        "m.real(x0*2j)",
        "m.real(m.conj(m.fft.fft(x0)))",
        "m.real((x0+1j)*(1-2j))",
        "m.imag(x0+1j)",
        "m.real(m.einsum('i,i->',x1+1j,x2-1j))",
        "m.imag(m.where(MASK,x0,1j))",
    ),
    attack(
        "pads",
        X,
        {"x0": (floats(4), "[4]{U:x}"), "x1": (floats(4, 4), "[4@x,4]")},
        "m.pad(x0,2,mode='reflect')",
        "m.pad(x0,2,mode='edge')",
        "m.pad(x0,2,mode='wrap')",
        "!m.pad(x0,2,mode='linear_ramp',end_values=1.0)",
        "m.pad(x0,2,mode='linear_ramp')",
        "m.pad(x0,2,mode='mean')",
        "!m.pad(x0,2,mode='maximum')",
        "m.pad(x1,((0,0),(1,2)),constant_values=((0,0),(3,4)))",
        "m.pad(x0,2,mode='symmetric',reflect_type='odd')",
        nightly=True,
    ),
    attack(
        "masked nn",
        X,
        {"x0": (floats(4, 4), "[4@x,4]"), "x1": (floats(4, 4), "[4,4]{I:x}"), "x2": (floats(4), "[4]")},
        "m.softmax(x0,axis=1,where=MASK)",
        "m.logsumexp(x0,axis=1,where=x1>0.2)",
        "m.softmax(x1,axis=0)*x0",
        "m.var(x1,axis=0)",
        "m.std(x1+x0,axis=1)",
        "m.nansum(m.where(x0>0.5,jnp.nan,x0))",
        "m.prod(x1,axis=0)",
        "m.cumprod(x1,axis=1)",
        "m.count_nonzero(x0)",
        "m.count_nonzero(x0,axis=1)",
        "m.argmax(x1,axis=1)",
        "m.median(x1,axis=0)",
        "!m.max(x0)",
        "m.ptp(x1)",
        "m.sort(x0,axis=1,descending=True)",
        "m.argsort(x1,axis=0)",
        "m.top_k(x1,2)[0]",
        "m.any(x0>0.9,axis=1)",
        "m.all(x1>0)",
        "m.cumlogsumexp(x1,axis=1)",
        "m.standardize(x0)",
        nightly=True,
    ),
    attack(
        "three axes",
        {"x": 2, "y": 2, "z": 2},
        {
            "x0": (floats(8, 4), "[8@(x,z),4@y]"),
            "x1": (floats(8, 4), "[8@x,4@z]{U:y}"),
            "x2": (floats(4, 8), "[4@y,8@(z,x)]"),
            "x3": (floats(8), "[8]{U:x,I:y,R:z}"),
        },
        "!x0 @ x2",
        "x0.T",
        "m.sum(x0)",
        "m.reshard(x2,'[_@x,_@(y,z)]')",
        "m.reshard(x1,'[_@(y,x),_]{I:z}')",
        "m.reshard(x3,'[_@(x,y,z)]')",
        "m.reshard(x3,'[_@(z,y,x)]')",
        "m.mean(x1)",
        "m.einsum('ij,ij->j',x0,x0)",
        "x0*2-x0",
        "m.reshape(x1,(2,4,4))",
        "m.reshape(x0,(4,2,4))",
        "m.tril(x0)",
        "x0[5,2]",
        "m.trace(x2)",
        "m.reshard(x3,'[_]{U:z,U:x,U:y}')",
        "m.reshard(x0,'[_@(z,x),_@y]')",
        "m.reshard(x1,'[_@z,_@x]{U:y}')",
    ),
    attack(
        "second order",
        X,
        {
            "x0": (floats(4), "[4]{I:x}"),
            "x1": (floats(4, 4), "[4@x,4]"),
            "x2": (floats(4), "[4]{R:x}"),
            "x3": (floats(4), "[4]{U:x}"),
        },
        "m.grad(lambda a: m.sum(m.sin(a)*x1))(x0)",
        "m.grad(lambda a: m.sum(m.tanh(x1@a)))(x2)",
        "m.grad(lambda a: m.sum(m.grad(lambda b: m.sum(b**3*x1))(a)*m.grad(lambda b: m.sum(m.sin(b)))(a)))(x0)",
        "m.jvp(lambda a: m.tanh(x1@a),(x2,),(x2*2,))[1]",
        "m.grad(lambda a: m.sum(m.checkpoint(lambda b: m.sin(x1@b)*x0[:4])(a)))(x2)",
        "m.grad(lambda a: m.sum(m.sin(m.all_reduce(a))))(x3)",
        "m.grad(lambda a: m.sum(m.scan(lambda c,w: (m.tanh(c*w),c), a, m.reshard(x1,'[_,_]'))[1]))(x0)",
        "m.grad(lambda a: m.sum(m.vmap(lambda r: m.sum(m.sin(r*a)))(m.reshard(x1,'[_,_@x]'))))(x0)",
        "m.vjp(lambda a: x1@a, x2)[1](m.ones_like(x1@x2))[0]",
        "m.grad(lambda a: m.sum(m.jvp(lambda b: b*b*x0,(a,),(a,))[1]))(x2)",
        "m.grad(lambda a: m.sum(m.cond(YES,lambda: m.sin(a)*x2,lambda: a*x0)))(x0)",
        "m.grad(lambda a: m.sum(m.where(x1>0.2,a,x2)*m.max(a*x1,axis=1)[:,None]))(x0)",
    ),
    attack(
        "shapes",
        XY,
        {
            "x0": (floats(4, 1, 8), "[4@x,1,8@y]"),
            "x1": (floats(8, 4), "[8@(x,y),4]"),
            "x2": (floats(1, 1), "[1,1]{U:x,I:y}"),
            "x3": (floats(8), "[8@x]{U:y}"),
        },
        "m.reshape(x0,(4,8))",
        "!m.reshape(x0,(32,))",
        "m.reshape(x0,(2,2,8))",
        "m.squeeze(x0)",
        "m.broadcast_to(x0,(4,4,8))",
        "m.reshape(x1,(2,2,2,4))",
        "m.ravel(x1)",
        "m.reshape(x2,())",
        "m.reshape(x3,(2,4))",
        "m.reshape(x3,(4,2,1))",
        "m.reshape(x3,(1,8))",
        "m.moveaxis(x0,0,2)",
        "m.swapaxes(x0,0,1)",
        "!m.repeat(x3,[2]*8)",
        "m.repeat(x3,3)",
        "m.tile(x0,(1,3,1))",
        "m.stack([x0,x0],1)",
        "m.expand_dims(x1,(0,3))",
        "m.flip(x0,1)",
        "m.roll(x0,1,1)",
        "m.rot90(x1)",
        "m.vstack([x3,x3])",
        "m.column_stack([x3,x3])",
        "m.hstack([x0,x0])",
        "m.dstack([x1,x1])",
        "m.unstack(x0,axis=1)[0]",
        "m.split(x0,[0,1],axis=1)[1]",
        "m.concatenate([x0,m.zeros_like(x0)],axis=1)",
        nightly=True,
    ),
]


@pytest.mark.parametrize("program", ATTACKS)
def test_programs_made_to_break_the_types_mean_what_one_device_computes(program: Program) -> None:
    check(program)


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["per op", "eager"])
@pytest.mark.parametrize("program", ATTACKS)
def test_programs_made_to_break_the_types_mean_the_same_in_every_mode(program: Program, mode: str) -> None:
    check(program, mode)


def test_a_policy_that_changes_between_trace_and_call_traces_again() -> None:
    with sh.use_mesh(sh.make_mesh(X)):
        x = sh.array(floats(4, 4), "[4, 4@x]")
        total = sh.jit(lambda x: sh.all_reduce(sh.sum(x, axis=1)))
        with sh.policy("partial"):
            assert total(x).type.state("x") is sh.State.REDUCED
        with sh.policy("jax"):
            assert total(x).type.state("x") is sh.State.INVARIANT
        with sh.policy("partial"):
            assert total(x).type.state("x") is sh.State.REDUCED


def test_a_donated_value_is_not_read_again() -> None:
    with sh.use_mesh(sh.make_mesh(X)):
        x = sh.array(FOUR, "[4@x]")
        y = sh.jit(lambda x: x * 2, donate_argnums=0)(x)
        np.testing.assert_array_equal(denoted(y), 2 * FOUR)
        if x.is_deleted():
            with pytest.raises(RuntimeError, match="deleted"):
                jax.block_until_ready(x + 1)


@pytest.mark.parametrize(
    "call",
    [
        sh.cond,
        lambda p, f, g, *xs: sh.switch(int(p), [f, g, f], *xs),
        jax.lax.cond,
        lambda p, f, g, *xs: jax.lax.switch(int(p), [f, g, f], *xs),
    ],
    ids=["cond", "switch", "jax's cond", "jax's switch"],
)
@pytest.mark.parametrize("traced", [True, False], ids=["traced", "eager"])
def test_branches_may_all_pass_a_value_on(call: Any, traced: bool) -> None:
    with sh.use_mesh(sh.make_mesh(X)):
        x, outer = sh.array(FOUR, "[4@x]"), sh.array(FOUR, "[4]{U:x}")

        def passed(x: Any) -> Any:
            given = call(True, lambda a, b: a, lambda a, b: a, x, x)
            closed = call(True, lambda: (x, outer), lambda: (x, outer))
            return given, *closed

        found = (sh.jit(passed) if traced else passed)(x)
        assert [str(v.type) for v in found] == ["f32[4@x]", "f32[4@x]", "f32[4]{U:x}"]
        for value in found:
            np.testing.assert_array_equal(denoted(value), FOUR)


@pytest.mark.parametrize("jvp", [sh.jvp, jax.jvp], ids=["sh.jvp", "jax.jvp"])
@pytest.mark.parametrize(
    "fun",
    [sh.sin, lambda a: a * 3, lambda a: sh.reshard(a, "[_@x]"), lambda a: a.to_jax()],
    ids=["nonlinear", "linear", "reshard", "to_jax"],
)
@pytest.mark.parametrize("other", ["[4@x]", "[4]{U:x}", "[4]{I:x}", "f32[4, 1]", None])
def test_a_tangent_of_another_type_than_its_value_is_refused(fun: Any, other: str | None, jvp: Any) -> None:
    with sh.use_mesh(sh.make_mesh(X)):
        x = sh.array(FOUR, "[4]{R:x}")
        tangent = FOUR if other is None else sh.zeros(other, dtype="f32")
        with pytest.raises(sh.ShardingTypeError, match="a tangent has the type of its value"):
            jvp(fun, (x,), (tangent,))
        value, moved = jvp(fun, (x,), (x,))
        assert jax.typeof(moved) == jax.typeof(value)


def test_the_linear_part_refuses_a_tangent_of_another_type() -> None:
    with sh.use_mesh(sh.make_mesh(X)):
        x = sh.array(FOUR, "[4]{R:x}")
        _, push = sh.linearize(sh.sin, x)
        assert push(x).type == x.type
        with pytest.raises(sh.ShardingTypeError, match="a tangent has the type of its value"):
            push(sh.zeros("f32[4]{U:x}"))


# the checks can fail


def test_a_wrong_value_is_found_and_its_program_is_made_small() -> None:
    wrong = "x0 * (1.5 if hasattr(m, 'ShType') else 1)"
    steps = (Step("v0", "m.sin(x0)"), Step("v1", wrong), Step("v2", "m.sum(v0)"), Step("v3", "v1 + v0"))
    program = Program(X, "partial", {"x0": (FOUR, "[4@x]"), "x1": (FOUR, "[4]")}, steps)
    with pytest.raises(AssertionError, match=r"off by 0\.5") as caught:
        verify(program)
    text = str(caught.value)
    assert f"v1 = {wrong}" in text
    assert not any(gone in text for gone in ("v0", "v2", "v3", "x1"))


def test_a_refusal_that_does_not_come_again_is_found() -> None:
    program = Program(X, "partial", {"x0": (FOUR, "[4]")}, (Step("v0", "x0 + 1"), Step("v1", "x0 * 2", refused=True)))
    with pytest.raises(AssertionError, match="was refused"):
        check(program)


def test_a_false_claim_of_replication_is_found() -> None:
    with sh.use_mesh(sh.make_mesh(X)):
        x = sh.array(FOUR, "[4]")
        parts = [jax.device_put(FOUR + i, d) for i, d in enumerate(x.data.sharding.mesh.devices.flat)]
        broken = wrap(hi(x.type), jax.make_array_from_single_device_arrays((4,), x.data.sharding, parts))
        np.testing.assert_array_equal(denoted(x), FOUR)
        with pytest.raises(AssertionError, match="the devices of a replicated axis hold"):
            denoted(broken)
