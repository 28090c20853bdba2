"""A plain array beside an invariant value takes its state: nothing becomes reduced, and nothing is sent for it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from shtypes.ops.rows import Op
from shtypes.ops.table import OPS
from shtypes.types import State
from tests.end_to_end import Case, check, host, some
from tests.ops.test_table import FLOATS, calls_of, function, variables
from tests.peers.programs import VARIABLES, array
from tests.tolerance import assert_close

#: What gives each of its operands back, or takes types or gradients from none of them.
APART = {
    *("atleast_1d", "atleast_2d", "atleast_3d", "broadcast_arrays", "meshgrid", "sort_key_val", "optimization_barrier"),
    *("constant", "copy", "linalg.lu_factor", "histogram", "histogram_bin_edges"),
}  # fmt: skip
COMPOSED = (
    *("kron", "outer", "vdot", "append", "vecdot", "vecmat", "trapezoid", "cov", "ediff1d"),
    *("hstack", "fill_diagonal", "linalg.block_diag", "linalg.toeplitz", "nn.layer_norm", "nn.swiglu", "complex"),
)  # fmt: skip
CHOSEN = [op for op in OPS.values() if op.space in ("", "linalg", "fft", "nn") and op.name not in APART]
CHOSEN = some([OPS[name] for name in COMPOSED], CHOSEN)


#: Which operands are parameters: conditions, logits that are no parameter and distances that are not used are none.
TRAINED = {"where": slice(1, None), "nn.cross_entropy": slice(1), "trapezoid": slice(2)}


def beside_constants(op: Op) -> Iterator[tuple[str, str]]:
    """Calls of several floats, and the one of them that is typed: the others are plain arrays."""
    for call in [call for call in calls_of(op) if len(variables(call)) > 1][: some(4, 99)]:
        names = variables(call)
        trained = TRAINED.get(op.name, slice(None))
        yield from ((call, name) for name in names[trained] if VARIABLES[name].dtype in FLOATS)


def made(op: Op, call: str, one: str) -> list[sh.ShType]:
    """The types of the results that have a gradient for ``one``; none if the call is refused."""
    found: list[sh.ShType] = []

    def leaves(x: Any) -> list[Any]:
        plain = {name: array(name) for name in variables(call)}
        out = eval(f"op({call})", {"op": function(op), **plain, one: x})
        return jax.tree.leaves(out, is_leaf=lambda y: isinstance(y, sh.Array))

    def run(x: Any) -> None:
        out = [sh.typeof(y) if isinstance(y, sh.Array) else None for y in leaves(x)]
        wrong = [i for i, t in enumerate(out) if t and t.differentiable and t.state("x") is not State.INVARIANT]
        if wrong:  # of what does not depend on the typed operand
            tangents = jax.jvp(leaves, (array(one),), (np.ones_like(array(one)),))[1]
            out = [t for i, t in enumerate(out) if i not in wrong or np.any(tangents[i])]
        found.extend(t for t in out if t and t.differentiable)

    v = VARIABLES[one]
    with sh.use_mesh(sh.abstract_mesh({"x": 2})), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # JAX's own
        try:
            jax.eval_shape(run, sh.abstract_array(f"{v.dtype}[{','.join(map(str, v.shape))}]{{I:x}}"))
        except (TypeError, ValueError):
            return []
    return found


@pytest.mark.one_in(15)
@pytest.mark.parametrize("op", CHOSEN, ids=lambda op: op.name)
def test_a_constant_takes_the_state_of_what_it_meets(op: Op) -> None:
    calls = list(beside_constants(op))
    assert calls or op.name not in COMPOSED
    for call, one in calls:
        wrong = [str(t) for t in made(op, call, one) if t.state("x") is not State.INVARIANT]
        assert not wrong, f"{op.name}({call}), of which {one} is typed"


# what JAX has no derivative of is refused where it is differentiated; positions that are known to differ have one


X = np.linspace(0.5, 2, 24, dtype=np.float32).reshape(4, 6)
ROWS = np.linspace(0.25, 3, 18, dtype=np.float32).reshape(3, 6)
TWICE, ONCE = np.array([2, 0, 2]), np.array([3, 0, 2])
TIES = np.stack([X[2], X[0] + 1, X[2]])


@pytest.mark.one_in(7)
@pytest.mark.parametrize("mode", [lambda f: f, sh.jit, jax.jit], ids=["eager", "sh.jit", "jax.jit"])
@pytest.mark.parametrize(
    ("fn", "named"),
    [
        (lambda x: x.at[TWICE].multiply(x[:3]), "`at_multiply"),
        (lambda x: x.at[TWICE].divide(x[:3]), "`at_divide"),
        (lambda x: x.at[jnp.asarray(ONCE)].power(x[:3]), "`at_power"),
        (lambda x: sh.segment_prod(x, np.array([0, 1, 1, 0]), 2), "`segment_prod"),
        (lambda x: sh.betainc(x, x, x / 4), "`betainc`"),
    ],
)
def test_what_has_no_derivative_says_so_where_it_is_differentiated(
    fn: Callable[[Any], Any], named: str, mode: Callable[..., Any]
) -> None:
    sh.set_mesh(sh.make_mesh({"x": 2}))
    with pytest.raises(sh.ShardingTypeError) as error:
        mode(sh.grad(lambda x: sh.sum(fn(x))))(sh.array(X, "[4,6@x]"))
    assert error.value.what.startswith(named)
    assert error.value.what.endswith(" cannot be differentiated")
    assert error.value.where.startswith("test_constants.py:")


@pytest.mark.nightly
def test_known_positions_that_differ_and_extremes_have_gradients() -> None:
    changes: list[Callable[[Any, Any, Any], Any]] = [
        lambda m, x, rows: x.at[ONCE].multiply(rows, unique_indices=m is not sh),
        lambda m, x, rows: x.at[ONCE].divide(rows, unique_indices=m is not sh),
        lambda m, x, rows: x.at[ONCE].power(rows, unique_indices=m is not sh),
        lambda m, x, rows: x.at[TWICE].multiply(1.5) + x.at[ONCE].set(rows),
        lambda m, x, rows: x.at[TWICE].divide(2.0).at[TWICE].power(2) + x.at[ONCE].set(rows),
        lambda m, x, rows: x.at[TWICE].max(rows),
        lambda m, x, rows: x.at[TWICE].min(rows),
    ]
    updates = [(ROWS, ("[4,6@x]", "[3,6@x]")), (TIES, ("[4@x,6]", "[3,6]"))]
    check(
        sh.make_mesh({"x": 2}),
        [
            Case(f, (X, rows), types)
            for i, f in enumerate(changes)
            for rows, types in some(updates[i % 2 :: 2], updates)
        ],
    )


def test_arrays_of_constants_are_made_in_traced_code() -> None:
    sh.set_mesh(sh.make_mesh({"x": 2}))
    x = sh.array(X, "[4,6]")
    found = sh.jit(lambda x: (x[sh.tril_indices_from(x)], x * sh.hanning(6)))(x)
    np.testing.assert_array_equal(host(found[0]), X[np.tril_indices(4, 0, 6)])
    assert_close(host(found[1]), X * np.hanning(6))
