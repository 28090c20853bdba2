"""A plain array beside an invariant value takes its state: nothing becomes reduced, and nothing is sent for it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import jax
import pytest

import shtypes as sh
from shtypes.ops.rows import Op
from shtypes.ops.table import OPS
from shtypes.types import State
from tests.end_to_end import some
from tests.ops.test_table import FLOATS, calls_of, function, variables
from tests.peers.programs import VARIABLES, array

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
    """The types of the results that have a gradient; none if the call is refused."""
    found: list[sh.ShType] = []

    def run(x: Any) -> None:
        plain = {name: array(name) for name in variables(call)}
        out = eval(f"op({call})", {"op": function(op), **plain, one: x})
        leaves = jax.tree.leaves(out, is_leaf=lambda y: isinstance(y, sh.Array))
        found.extend(t for y in leaves if isinstance(y, sh.Array) and (t := sh.typeof(y)).differentiable)

    v = VARIABLES[one]
    with sh.use_mesh(sh.abstract_mesh({"x": 2})), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # JAX's own
        try:
            jax.eval_shape(run, sh.abstract_array(f"{v.dtype}[{','.join(map(str, v.shape))}]{{I:x}}"))
        except (TypeError, ValueError):
            return []
    return found


@pytest.mark.one_in(7)
@pytest.mark.parametrize("op", CHOSEN, ids=lambda op: op.name)
def test_a_constant_takes_the_state_of_what_it_meets(op: Op) -> None:
    calls = list(beside_constants(op))
    assert calls or op.name not in COMPOSED
    for call, one in calls:
        wrong = [str(t) for t in made(op, call, one) if t.state("x") is not State.INVARIANT]
        assert not wrong, f"{op.name}({call}), of which {one} is typed"
