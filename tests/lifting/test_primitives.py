"""Every primitive of JAX has a row or a reason, and every row is evaluated and compared with one device."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import shtypes as sh
from shtypes._compat.jaxprs import inner_jaxprs, jaxpr_of
from shtypes.evaluation.table import BODIES, ROWS, WITHOUT_ROW
from shtypes.lifting.lift import lift
from tests.fresh import printed
from tests.lifting.primitive_programs import primitive_programs
from tests.peers.programs import EVERYTHING, Program
from tests.random_checks import denoted

ROWED = set(ROWS) | set(BODIES)
#: Run in a process of its own, so that all of JAX is imported there.
_ALL = """
import gc, importlib, json, pkgutil, warnings
warnings.simplefilter("ignore")
import jax._src
for m in pkgutil.walk_packages(jax._src.__path__, "jax._src."):
    if not any(s in m.name for s in ("mosaic", "test", "tpu", "triton", "export", "cloud", "tools")):
        try:
            importlib.import_module(m.name)
        except BaseException:
            pass
for name in ("sparse", "hijax", "ode"):
    importlib.import_module("jax.experimental." + name)
from jax.extend.core import Primitive
print(json.dumps(sorted({o.name for o in gc.get_objects() if isinstance(o, Primitive)})))
"""
#: Of each row with a body a small plain program that has its primitive. The rows without have `row_cases`.
PROGRAMS = {name: p for name, p in primitive_programs().items() if name in BODIES}
#: Rows with a body that no program of one line reaches, and where they are.
ELSEWHERE = {
    "closed_call": "what JAX's transformations make of bodies",
    "call_hi_primitive": "a typed call in a plain program",
    "eval_jaxpr": "`jax.lax.custom_root` on the newest JAX",
    "remat_opt": "tests/lifting/derivative_programs.py: of `optimize_remat=True`",
    **dict.fromkeys(
        (
            *("all_gather", "all_gather_invariant", "all_gather_reduced", "all_to_all", "axis_index", "pbroadcast"),
            *("pbroadcast_dynamic", "ppermute", "preduced", "psum_invariant", "pvary"),
            *("ragged_all_to_all", "reduce_scatter", "unreduced_psum", "unreduced_reduce_scatter"),
            *("reduced_vary_cast", "reduced_vary_cast_p", "vary_unreduced_cast", "vary_unreduced_cast_p"),
        ),
        "tests/local_mode/test_plain_bodies.py: bodies of `jax.shard_map`",
    ),
    "shard_map": "tests/lifting/test_shard_map_inside.py",
}


@functools.cache
def defined() -> frozenset[str]:
    """The primitives that the running JAX defines."""
    return frozenset(json.loads(printed(_ALL).splitlines()[-1]))


def test_every_primitive_has_a_row_or_a_reason_and_none_has_both() -> None:
    new, twice = sorted(defined() - ROWED - set(WITHOUT_ROW)), sorted(ROWED & set(WITHOUT_ROW))
    assert not new, (
        f"JAX has primitives that the table lacks, {new}: give each a row in a file of shtypes/evaluation/rows/ (an "
        "elementwise one is a word in `NONLINEAR` of elementwise.py), or of shtypes/lifting/rows/ if ops evaluate it; "
        "or a reason in `WITHOUT_ROW` of shtypes/evaluation/table.py"
    )
    assert not twice, f"{twice} have a row: take their reason out of `WITHOUT_ROW` of shtypes/evaluation/table.py"
    assert len(ROWED) > 180


def test_every_row_with_a_body_has_a_program() -> None:
    left = sorted(set(BODIES) & defined() - set(PROGRAMS) - set(ELSEWHERE))
    assert not left, f"no program has {left}: add a line for each to primitive_programs.py, or say in ELSEWHERE why not"


def _primitives(jaxpr: Any) -> set[str]:
    found = set()
    for eqn in jaxpr_of(jaxpr).eqns:
        found.add(eqn.primitive.name)
        for inner, _ in inner_jaxprs(eqn):
            found |= _primitives(inner)
        for key in ("fwd_jaxpr", "jaxprs"):
            for inner in eqn.params.get(key, ()) or ():
                found |= _primitives(inner) if hasattr(jaxpr_of(inner), "eqns") else set()
    return found


def test_every_row_with_a_body_is_evaluated_on_replicated_and_on_sharded_values() -> None:
    chosen = {name: p for name, p in PROGRAMS.items() if name in defined()}
    with sh.use_mesh(sh.make_mesh({"x": 2})):
        given = {
            (name, on): _operands(p, on)
            for name, p in chosen.items()
            for on in (False, True)
            if not (on and name == "pure_callback")  # whose function gets whole arrays
        }
        found = sh.jit(lambda given: {at: _lifted(at[0], chosen[at[0]], xs) for at, xs in given.items()})(given)
    for (name, sharded), y in found.items():
        f, arrays = _plain(chosen[name])
        assert name in _primitives(jax.make_jaxpr(f)(*arrays)), f"the program of `{name}` lacks it"
        wanted = np.asarray(f(*arrays))
        assert y.type.dtype == wanted.dtype, name
        shown = f"{name} of {', '.join(str(x.type) for x in given[name, sharded])}"
        np.testing.assert_allclose(denoted(y), wanted, rtol=2e-5, atol=5e-6, err_msg=shown)


def _plain(program: Program) -> tuple[Any, list[Any]]:
    return functools.partial(program.fn, EVERYTHING), [jnp.asarray(x) for x in program.arrays]


def _operands(program: Program, sharded: bool) -> list[Any]:
    """Replicated; or those of the first one's shape sharded in their first dim."""
    first = program.arrays[0].shape
    typed = []
    for x, v in zip(program.arrays, program.operands, strict=True):
        on = "@x" if sharded and x.shape == first and x.ndim and v.high == 0 else ""
        typed.append(sh.array(x, f"{v.dtype}[{', '.join([f'{n}{on * (d == 0)}' for d, n in enumerate(x.shape)])}]"))
    return typed


def _lifted(name: str, program: Program, operands: Sequence[Any]) -> Any:
    try:
        y = lift(_plain(program)[0])(*operands)
    except Exception as error:
        error.add_note(f"in the program of `{name}`: {program}")
        raise
    assert isinstance(y, sh.Array), f"`{name}`: nothing typed came out"
    return y
