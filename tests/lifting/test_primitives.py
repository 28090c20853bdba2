"""Every primitive of JAX has a row or a reason, and every row is evaluated and compared with one device."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from shtypes._compat.jaxprs import inner_jaxprs, jaxpr_of
from shtypes.evaluation.table import BODIES, REASONS, ROWS
from shtypes.lifting.lift import lift
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
#: Rows that no program of one line reaches, and where they are.
ELSEWHERE = {
    "closed_call": "what JAX's transformations make of bodies",
    "debug_callback": "tests/lifting/test_raising_callbacks.py: it gives nothing back",
    "debug_print": "as above",
    "io_callback": "refused",
    "call_hi_primitive": "a typed call in a plain program",
    "eval_jaxpr": "`jax.lax.custom_root` on the newest JAX",
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
    "tie": "JAX's own collectives that run beside others",
    "eq_to": "JAX's total order of floats, which `sort` uses inside",
    "le_to": "as above",
    "lt_to": "as above",
    "geqp3": "`qr` with pivoting lowers to it",
    "ormqr": "kernels of `jax.scipy`",
    "select_and_scatter": "what XLA makes of a window's gradient",
}
#: Those that need whole operands.
WHOLE = {
    "cholesky_update": "a whole matrix, and there is no batch of them",
    "ragged_dot_general": "groups may end anywhere among the rows",
    "pure_callback": "the host's function gets whole arrays",
    "random_gamma": "the numbers of one key are made together",
}


@functools.cache
def defined() -> frozenset[str]:
    """The primitives that the running JAX defines."""
    run = subprocess.run([sys.executable, "-c", _ALL], capture_output=True, text=True, check=True)
    return frozenset(json.loads(run.stdout.splitlines()[-1]))


def test_every_primitive_has_a_row_or_a_reason_and_none_has_both() -> None:
    assert sorted(defined() - ROWED - set(REASONS)) == []
    assert sorted(ROWED & set(REASONS)) == []
    assert len(ROWED) > 180


def test_every_row_has_a_program_that_has_its_primitive() -> None:
    programs = primitive_programs()
    assert sorted(ROWED & defined() - set(programs) - set(ELSEWHERE) - {"full_like"}) == []  # which is ours
    assert sorted(set(programs) - ROWED) == []
    assert sorted(set(programs) & set(ELSEWHERE)) == []


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


_CHUNKS = 12


@pytest.mark.one_in(7)
@pytest.mark.parametrize(
    "start", [i if i % 3 == 0 else pytest.param(i, marks=pytest.mark.nightly) for i in range(_CHUNKS)]
)
def test_every_row_is_evaluated_on_replicated_and_on_sharded_values(start: int) -> None:
    chosen = {n: p for n, p in sorted(primitive_programs().items())[start::_CHUNKS] if n in defined()}
    with sh.use_mesh(sh.make_mesh({"x": 2})):
        given = {
            (name, s): _operands(program, s)
            for name, program in chosen.items()
            for s in (False, True)
            if not (s and name in WHOLE)
        }

        def run(given: Any) -> Any:
            return {at: _lifted(at[0], chosen[at[0]], operands) for at, operands in given.items()}

        found = sh.jit(run)(given)
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
