"""Every public function, called in the ways in which functions of arrays are called, as far as JAX takes the call."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Final

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
#: Calls with other parameters; ``m`` is `shtypes` or JAX.
PARAMETERS: Final = """
m.pad(a, ((0, 0), (1, 2)), mode='mean')
m.pad(a, ((0, 0), (1, 2)), constant_values=(1.0, 3.0))
m.fliplr(a)
m.repeat(a, np.array([1, 0, 2, 3]), axis=0)
m.tile(q, (2, 1, 3))
m.triu(t)
m.diag(v, 2)
m.diagonal(a, 3)
m.diagonal(t, -2, 2, 0)
m.trace(t, -1, 0, 2)
m.concatenate([a, v], axis=None)
m.concatenate([a, n], 1)
m.column_stack([v, v])
m.dstack([q, r])
m.array_split(v, 3)[1]
m.concatenate(m.split(a, [1, 5], 1)[1:], 1)
m.dsplit(t, 2)[1]
m.take(a, y - 4, 1, mode='wrap')
m.take(a, y, mode='clip')
m.one_hot(i, 8, axis=0)
a.at[i].get(mode='clip')
a.at[:, i].get(mode='fill', fill_value=3.0)
a.at[:, 1:3].add(k)
a.at[i].subtract(b)
a.at[2:4].multiply(b[:2], unique_indices=True)
a.at[i].max(b)
a.at[1:3].power(2)
m.max(a, 0, where=p, initial=-1.0)
m.prod(a, 0, where=p)
m.var(a, 1, ddof=1)
m.logsumexp(a, 1, keepdims=True)
m.average(a, 0, weights=m.exp(b))
m.cummax(a, 1, reverse=True)
m.diff(a, 2, axis=0)
m.sort(a, 0, descending=True)
m.softmax(a, where=p)
m.softmax(t, (0, 1))
m.fft.fft(a, 6)
m.fft.ifft(a, axis=0, norm='ortho')
m.fft.irfft(m.fft.rfft(a), 8)
m.fft.rfftn(t, axes=(0, 2))
m.linalg.norm(t, 'fro', (2, 0))
m.linalg.vector_norm(a, axis=-1, ord=1)
m.linalg.matrix_power(q, 3)
m.linalg.multi_dot([q, a, w])
m.gelu(a, approximate=False)
m.leaky_relu(a, negative_slope=0.3)
m.elu(a, 0.7)
m.celu(a, alpha=0.7)
m.squareplus(a, b=2)
m.round(a, 1)
m.nan_to_num(m.log(a), nan=3.0)
m.isclose(a, b, atol=0.3)
m.clip(a, min=0.3)
m.clip(a, b - 0.1, b + 0.1)
a ** -1
m.abs(a) ** 0.5
m.moveaxis(t, (0, 1), (-1, 0))
m.broadcast_in_dim(a, (4, 3, 8), (0, 2))
m.select([p, n > 3], [a, b], 3.0)
m.dot(t, g)
m.dot(a, s)
m.tensordot(t, g, 2)
m.tensordot(t, g, ([0, -1], [0, 1]))
"""
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


def calls() -> tuple[Program, ...]:
    """The calls that JAX takes and that make one array of numbers."""
    return (*(call for name in names() for call in calls_of(name)), *calls_with_parameters())


def calls_with_parameters() -> tuple[Program, ...]:
    """Those that name parameters."""
    return tuple(program(line) for line in PARAMETERS.strip().splitlines())


@functools.cache
def calls_of(name: str) -> tuple[Program, ...]:
    """Those of one function, by position."""
    return tuple(p for call in _calls_of(name) if _is_taken(p := program(f"m.{name}({call})")))


def has_call(name: str) -> bool:
    """Whether JAX takes any call of a function by position."""
    return any(_is_taken(program(f"m.{name}({call})")) for call in _calls_of(name))


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
