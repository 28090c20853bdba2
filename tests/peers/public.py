"""Every public function, called in the ways in which functions of arrays are called, as far as JAX takes the call."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import jax
import jax.numpy as jnp

import shtypes as sh
from tests.peers.programs import EVERYTHING, Program, program

CALLS = (
    "a", "q", "v", "z", "n", "p", "h", "s", "a, 0", "a, 1", "a, 2", "a, 0.5", "1, a", "n, 2", "v, 0", "t, 1",
    "a, axis=0", "a, axis=1", "v, axis=0", "a, b", "a, v", "a, w", "n, n", "q, q", "v, v", "z, z", "p, p", "a, i",
    "a, j", "a, n", "p, a, b", "a, b, c", "a, 0, 1", "a, 1, 3", "a, (8, 4)", "[a, b]", "[a, a * 2]", "a, i, 0",
    "a, 2, 0", "a, 2, 1", "a, e, 1", "a, -1, 1", "t, g", "t, q", "i, 4", "a, i, 4", "s, a", "a, s",
)  # fmt: skip
_ROOMS = ("", "linalg.", "fft.")
#: What is no function of arrays, or what JAX's function of that name is not.
_OTHERS = frozenset({
    "array", "abstract_array", "from_jax", "to_jax", "typeof", "constant", "reinterpret", "dims", "reshard", "shard",
    "all_gather", "all_reduce", "all_to_all", "reduce_scatter", "jit", "grad", "vjp", "jvp", "vmap", "value_and_grad",
    "checkpoint", "checkpoint_name", "eval_shape", "make_jaxpr", "linearize", "custom_vjp", "ledger", "explain",
    "check", "compare", "assert_comm", "make_mesh", "abstract_mesh", "set_mesh", "use_mesh", "scan", "cond", "switch",
    "while_loop", "fori_loop", "shard_map", "local_map", "set_policy", "policy", "visualize", "typed", "einsum",
    "Array",
})  # fmt: skip

#: Loops of JAX's that take minutes for the thousands of points at which a structure is looked for.
_SLOW = frozenset({"exp1", "expi", "expn"})
_QUOTIENTS = frozenset({"div", "divmod", "floor_divide", "fmod", "mod", "rem", "remainder"})


def names() -> Iterator[str]:
    """The public functions that JAX has too."""
    for room in _ROOMS:
        ours, theirs = (getattr(m, room[:-1]) if room else m for m in (sh, EVERYTHING))
        for name in sorted(set(dir(ours))):
            if name.startswith("_") or name in _OTHERS | _SLOW or not callable(getattr(ours, name)):
                continue
            if hasattr(theirs, name) and not isinstance(getattr(ours, name), type):
                yield room + name


@functools.cache
def calls() -> tuple[Program, ...]:
    """The calls that JAX takes and that make one array of numbers."""
    return tuple(p for name in names() for call in _calls_of(name) if _is_taken(p := program(f"m.{name}({call})")))


def _calls_of(name: str) -> list[str]:
    """The calls of a function; none divides integers or truth by zero, of which XLA makes what it likes."""
    if name not in _QUOTIENTS:
        return list(CALLS)
    return [call.replace("n, n", "n, n + 1") for call in CALLS if call != "p, p"]


def _is_taken(call: Program) -> bool:
    try:
        out = jax.eval_shape(lambda *xs: call.fn(EVERYTHING, *xs), *map(jnp.asarray, call.arrays))
    except Exception:  # JAX refuses in many ways
        return False
    return hasattr(out, "dtype") and 0 < out.size <= 128 and not jnp.issubdtype(out.dtype, jax.dtypes.extended)
