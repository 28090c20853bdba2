"""What an equation may do along an axis, as data, against the typed ops: what types and what is refused."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from shtypes._compat.jaxprs import is_literal, literal_value
from shtypes.api import load
from shtypes.core.jax_type import as_jax_type
from shtypes.evaluation.positions import Counts
from shtypes.evaluation.table import BODIES
from shtypes.lifting.ways.choice import Way
from shtypes.lifting.ways.moves import windowed
from shtypes.solver import options as options_
from shtypes.solver.axis_states import INVARIANT, REDUCED, SHARDED, UNREDUCED, axis_state, typed
from shtypes.solver.graph import Graph
from shtypes.solver.option import FORBIDDEN, Operand, Option, operand, states_of
from shtypes.solver.options import comm_per_byte
from shtypes.solver.options import options as options_along
from shtypes.solver.program import Function
from shtypes.traced.program import with_gradient
from shtypes.types.mesh import Mesh
from tests.lifting.primitive_programs import primitive_programs
from tests.lifting.test_primitives import defined
from tests.peers.programs import EVERYTHING

load()  # derivatives of typed values, as each name of `sh` does

SIZE: Final = 2
MESH: Final = Mesh({"axis": SIZE})
REPLICATED: Final = (REDUCED, INVARIANT)
#: Of an equation with more combinations of states than this, so many are asked, spread evenly.
MOST: Final = 60


def equations(f: Any, *args: Any) -> list[Any]:
    """The equations of a plain function, calls of `jax.jit` inlined."""
    return list(_inlined(jax.make_jaxpr(f)(*args).jaxpr))


def _inlined(jaxpr: Any) -> Iterator[Any]:
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in ("jit", "pjit"):
            yield from _inlined(eqn.params["jaxpr"].jaxpr)
        else:
            yield eqn


def last(f: Any, *args: Any) -> Any:
    return equations(f, *args)[-1]


def operands_of(eqn: Any) -> tuple[Operand | None, ...]:
    """All operands as values; None for numbers."""
    return tuple(None if is_literal(v) else operand(v.aval) for v in eqn.invars)


def options(eqn: Any, size: int, known: tuple[Operand | None, ...] | None = None) -> tuple[Option, ...]:
    return options_along(eqn, size, operands_of(eqn) if known is None else known)


def shown(state: int) -> str:
    """``R``, ``I``, ``U`` or ``S(1)``."""
    return "RIU"[state] if state < SHARDED else f"S({state - SHARDED})"


def text(option: Option) -> str:
    return " -> ".join(", ".join(map(shown, states)) for states in (option.operands, option.results))


def found(eqn: Any) -> set[str]:
    return {text(o) for o in options(eqn, SIZE)}


def zeros(*shape: int, dtype: Any = np.float32) -> Any:
    return np.zeros(shape, dtype)


# the data, read


def test_a_product_of_matrices_has_one_option_for_each_of_its_dims() -> None:
    eqn = last(lambda x, w: x @ w, zeros(4, 8), zeros(8, 16))
    assert found(eqn) == {
        *("R, R -> R", "I, I -> I", "S(0), R -> S(0)", "R, S(1) -> S(1)"),
        *("S(1), S(0) -> U", "U, R -> U", "R, U -> U"),
    }
    assert {o.divides for o in options(eqn, SIZE) if max(o.operands) >= SHARDED} == {True}


def test_the_first_option_is_that_each_device_does_all_of_it() -> None:
    first = options(last(lambda x, w: x @ w, zeros(4, 8), zeros(8, 16)), SIZE)[0]
    assert first == Option((REDUCED, REDUCED), (REDUCED,))


def test_terms_of_a_sum_are_pending_together_and_factors_are_not() -> None:
    assert "U, U -> U" in found(last(jnp.add, zeros(4), zeros(4)))
    assert {"U, R -> U", "R, U -> U"} <= found(last(jnp.multiply, zeros(4), zeros(4)))
    assert "R, U -> U" not in found(last(jnp.divide, zeros(4), zeros(4)))
    assert not any("U" in o for o in found(last(jnp.exp, zeros(4))))


@jax.custom_vjp
def _scaled(x: Any, y: Any) -> Any:
    return jnp.sin(x) * jnp.where(y > 0, y, x)


_scaled.defvjp(lambda x, y: (_scaled(x, y), y), lambda y, ct: (ct * y, ct))


@pytest.mark.parametrize("f", [jnp.logaddexp, _scaled, jnp.nextafter])
def test_operands_of_a_rule_for_each_element_are_sharded_alike(f: Any) -> None:
    found = options(last(f, *(jnp.ones((4, 6)),) * 2), 2)
    assert (SHARDED, SHARDED) in {o.operands for o in found if SHARDED in o.results}


def test_a_dim_that_the_axis_does_not_divide_has_no_option() -> None:
    eqn = last(jnp.exp, zeros(3, 4))
    assert found(eqn) == {"R -> R", "I -> I", "S(1) -> S(1)"}
    assert {text(o) for o in options(eqn, 3)} == {"R -> R", "I -> I", "S(0) -> S(0)"}


def test_a_lookup_in_a_sharded_table_is_a_pending_sum() -> None:
    assert {"S(0), R -> U", "S(1), R -> S(1)", "R, S(0) -> S(0)"} <= found(
        last(lambda table, ids: table[ids], zeros(8, 16), zeros(4, dtype=np.int32))
    )


def test_a_maximum_over_a_sharded_dim_says_what_it_sends() -> None:
    eqn = last(lambda x: jnp.max(x, 1), zeros(4, 8))
    across = next(o for o in options(eqn, SIZE) if o.sent)
    assert across.operands == (SHARDED + 1,)
    assert across.results == (INVARIANT,)
    assert across.divides
    assert across.sent == 2 * (SIZE - 1) / SIZE  # an all-reduce of one number for each row
    assert across.sent_backward == across.sent  # one that counts the winners


def test_a_reshape_keeps_an_axis_only_where_its_slices_stay_slices() -> None:
    assert "S(0) -> S(0)" in found(last(lambda x: x.reshape(4, 8), zeros(32)))
    merged = found(last(lambda x: x.reshape(32), zeros(4, 8)))
    assert "S(0) -> S(0)" in merged
    assert not any(o.startswith("S(1)") for o in merged)


def test_constants_follow_and_say_nothing() -> None:
    eqn = last(jnp.multiply, zeros(4, 8), zeros(4, 8))
    known = (operand(eqn.invars[0].aval), operand(eqn.invars[1].aval, constant=True))
    assert {o.operands for o in options(eqn, SIZE, known)} == {
        (s, REDUCED) for s in (REDUCED, INVARIANT, UNREDUCED, SHARDED, SHARDED + 1)
    }


def test_equations_that_are_alike_are_asked_once() -> None:
    def f(x: Any) -> Any:
        with jax.named_scope("a"):
            y = jnp.sin(x)
        with jax.named_scope("b"):
            return jnp.sin(y)

    one, other = equations(f, zeros(4, 8))
    assert options(one, SIZE) is options(other, SIZE)
    assert options(one, 4) is not options(one, SIZE)


def test_dims_of_which_only_divisors_matter_are_tried_once() -> None:
    one, other, odd = (last(jnp.multiply, zeros(*shape), zeros(*shape)) for shape in ((4, 8), (6, 10), (4, 7)))
    assert options(one, SIZE) is options(other, SIZE)
    assert len(options(odd, SIZE)) < len(options(one, SIZE))
    found = [
        options_.way_options(eqn, SIZE, operands_of(eqn), assuming=False)
        for c in (4, 12)
        for eqn in [last(lambda x, k: jax.lax.conv(x, k, (1, 1), "SAME"), zeros(c, c, 8, 8), zeros(4, c, 3, 3))]
    ]
    assert found[0][0] is found[1][0]


def test_equal_ops_of_a_program_share_their_options_whatever_their_lines() -> None:
    def f(x: Any) -> Any:
        x = jnp.sin(x)
        return jnp.sin(x)

    program = Function(f, (jax.ShapeDtypeStruct((4, 4), "float32"),))
    one, other = (n for n in Graph(program, MESH, grad=False).nodes if n.op is not None)
    assert one.options is other.options


def test_a_way_is_tried_once_and_differentiated_only_where_a_plan_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    differentiated: list[Any] = []

    def noted(eqn: Any, operands: Sequence[Any]) -> Any:
        tried.append(" ".join(str(x.type) for x in operands))
        return windowed(eqn, operands)

    def noted_gradient(f: Any) -> Any:
        differentiated.append(f)
        return with_gradient(f)

    monkeypatch.setattr(options_, "ways_of", lambda eqn: [Way(noted, bool, elsewhere=False, assumes=False)])
    monkeypatch.setattr(options_, "with_gradient", noted_gradient)
    eqn = last(lambda x, k: jax.lax.conv(x, k, (1, 1), "SAME"), zeros(2, 4, 8, 12), zeros(4, 4, 3, 3))
    found = options_.way_options(eqn, SIZE, operands_of(eqn), assuming=False)
    assert [o.operands for o in found] == [(SHARDED + 2, REDUCED), (SHARDED + 3, REDUCED)]
    assert len(tried) == len(set(tried)) > len(found)
    assert not differentiated
    price = comm_per_byte(eqn, Mesh({"axis": SIZE}), operands_of(eqn), found[:1])
    assert price is not None
    assert (price.forward, price.work > 1) == (found[0].sent, True)
    assert len(differentiated) == 2  # and the undivided one, with whose work its own is compared


def test_many_operands_that_an_op_treats_alike_are_tried_alike() -> None:
    def options_of(eqn: Any) -> tuple[int, set[tuple[int, ...]]]:
        seeds = list(options_._Probe(eqn, operands_of(eqn), 2, ("axis",)).seeds())
        return len(seeds), {(*set(o.operands), *o.results) for o in options(eqn, 2)}

    few, many = (last(lambda *xs: jnp.concatenate(xs), *[zeros(4, 4)] * n) for n in (2, 12))
    assert options_of(many) == (5, options_of(few)[1])  # all of them reduced, invariant, pending, or sharded on a dim


def test_a_primitive_without_a_row_is_refused() -> None:
    eqn = last(jnp.sin, zeros(4)).replace(primitive=jax.extend.core.Primitive("unheard_of"))
    with pytest.raises(sh.ShardingTypeError, match="no row for the primitive `unheard_of`"):
        options(eqn, SIZE)


# the data, against the typed ops


def result_of(eqn: Any, states: Sequence[int], given: Sequence[Any]) -> tuple[int | None, ...] | None:
    """The states of the results where the lifted primitive types, else None."""
    values = [i for i, v in enumerate(eqn.invars) if not is_literal(v)]

    def run(*arrays: Any) -> Any:
        full = [literal_value(v) if is_literal(v) else None for v in eqn.invars]
        for i, x in zip(values, arrays, strict=True):
            full[i] = x
        return eqn.primitive.bind(*full, **eqn.primitive.get_bind_params(eqn.params))

    known = [(given[i], states[i]) for i in values]
    arrays = [sh.abstract_array(as_jax_type(typed(MESH, x.dtype, x.shape, (s,)))) for x, s in known]
    try:
        made = jax.make_jaxpr(sh.lift(run))(*arrays).out_avals
    except sh.ShardingTypeError:
        return None
    return tuple(axis_state(x, "axis") if isinstance(x, sh.ShType) else REDUCED for x in made)


def told(eqn: Any, states: Sequence[int]) -> tuple[int, ...] | None:
    """The states of the results that the data say: replicated operands are cast to what an option takes."""
    best: tuple[int, tuple[int, ...]] | None = None
    for o in options(eqn, SIZE):
        pairs = list(zip(states, o.operands, strict=True))
        casts = sum(have != need for have, need in pairs)
        seeded = all(have == need or (have in REPLICATED and need != INVARIANT) for have, need in pairs)
        beyond = any(need not in REPLICATED for need in o.operands) and all(have in REPLICATED for have in states)
        if seeded and not beyond and not o.sent and (best is None or casts < best[0]):
            best = casts, o.results
    return None if best is None else best[1]


def combinations(eqn: Any) -> list[tuple[int, ...]]:
    each = [(REDUCED,) if x is None else tuple(states_of(x, SIZE)) for x in operands_of(eqn)]
    step = max(1, math.prod(map(len, each)) // MOST)
    return list(itertools.islice(itertools.product(*each), 0, None, step))


def disagreements(eqn: Any) -> list[str]:
    """Where the data and the op differ. Of a body, which casts for itself, only what the data allow is asked."""
    given = operands_of(eqn)
    has_body = eqn.primitive.name in BODIES
    asked: list[tuple[tuple[int, ...], tuple[int, ...] | None]] = []
    if has_body:
        asked = [(o.operands, o.results) for o in options(eqn, SIZE)]
    wrong = []
    for states, says in asked or [(states, told(eqn, states)) for states in combinations(eqn)]:
        does = result_of(eqn, states, given)
        if says != does:
            line = f"{eqn.primitive.name} of {', '.join(map(shown, states))}: the data say {says}, the op {does}"
            wrong.append(line)
    return wrong


def _families() -> dict[str, Any]:
    x, y, v, t = zeros(4, 8), zeros(4, 8), zeros(8), zeros(2, 4, 4)
    ids = zeros(4, dtype=np.int32)
    return {
        "nonlinear": last(jnp.exp, x),
        "additive": last(jnp.add, x, y),
        "product": last(jnp.multiply, x, y),
        "quotient": last(jnp.divide, x, y),
        "choice": last(jax.lax.select, x > 0, x, y),
        "cast": last(lambda x: x.astype(jnp.bfloat16), x),
        "widening": last(lambda x: x.astype(np.float32), np.asarray(x, jnp.bfloat16)),
        "contraction": last(lambda x, w: x @ w, x, zeros(8, 16)),
        "batched contraction": last(lambda a, b: jnp.einsum("bij,bjk->bik", a, b), t, t),
        "sum": last(lambda x: jnp.sum(x, 1), x),
        "maximum": last(lambda x: jnp.max(x, 1), x),
        "cumulative": last(lambda x: jnp.cumsum(x, 1), x),
        "broadcast": last(lambda v: jnp.broadcast_to(v, (4, 8)), v),
        "reshape": last(lambda x: x.reshape(2, 2, 8), x),
        "transpose": last(jnp.transpose, x),
        "concatenate": last(lambda x, y: jnp.concatenate([x, y], 1), x, y),
        "pad": last(lambda x: jnp.pad(x, ((0, 0), (1, 1))), x),
        "slice": last(lambda x: x[:, 2:6], x),
        "sort": last(lambda x: jnp.sort(x, 1), x),
        "lookup": last(lambda x, i: x[i], x, ids),
        "window": last(
            lambda x: jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2), (1, 2), "VALID"), x
        ),
        "convolution": last(lambda x, k: jax.lax.conv(x, k, (1, 1), "SAME"), zeros(2, 4, 4, 4), zeros(8, 4, 3, 3)),
        "linear algebra": last(jax.lax.linalg.cholesky, t),
        "own derivative": last(jax.nn.relu, x),
    }  # fmt: skip


@pytest.mark.one_in(31)
@pytest.mark.parametrize("policy", ["partial", "jax"])
@pytest.mark.parametrize("family", list(_families()))
def test_the_data_type_what_the_typed_op_types_and_refuse_what_it_refuses(family: str, policy: str) -> None:
    with sh.policy(policy):
        assert disagreements(_families()[family]) == []


@pytest.mark.one_in(293)
@pytest.mark.parametrize("name", sorted(primitive_programs()))
def test_the_data_agree_with_the_typed_op_for_every_primitive(name: str) -> None:
    program = primitive_programs()[name]
    if name not in defined():
        pytest.skip("this release of JAX has no such primitive")
    f = functools.partial(program.fn, EVERYTHING)
    eqns = [e for e in equations(f, *map(jnp.asarray, program.arrays)) if e.primitive.name == name]
    assert [line for eqn in eqns for line in disagreements(eqn)] == []


def test_what_gives_other_results_than_each_axis_by_itself_is_no_option_of_both() -> None:
    """Elements `x[i, i]` are a device's own where rows or columns are sharded, and pending where both are."""
    own = last(lambda x: x[jnp.arange(8), jnp.arange(8)], zeros(8, 8))
    known = Operand((8, 8), "f32"), Operand((8, 2), "i32", constant=True, place=Counts(((0, 0), (1, 0))))
    nothing, rows, columns = (
        next(o for o in options(own, 2, known) if o.operands[0] == s) for s in (REDUCED, SHARDED, SHARDED + 1)
    )
    columns_first, mesh = columns.as_major(), Mesh({"a": 2, "b": 2})
    for some in ([rows, nothing], [nothing, columns], [nothing, columns_first]):
        assert comm_per_byte(own, mesh, known, some) == (0.0, 0.0, 1.0)
    assert comm_per_byte(own, mesh, known, [rows, columns_first]) == FORBIDDEN


def test_a_way_that_applies_along_each_axis_but_not_along_both_is_no_option_of_both() -> None:
    """Otherwise the lookup would gather its table, which the plan may do for all uses of the table at once."""
    lookup = last(lambda table, at: table.at[at].get(mode="fill"), zeros(8, 4), jnp.zeros((4, 8), jnp.int32))
    known, mesh = operands_of(lookup), Mesh({"a": 2, "b": 2})
    nothing, *ways = (Option((s and SHARDED, s), (s,), way=0) for s in (REDUCED, SHARDED, SHARDED + 1))
    for some in ([ways[0], nothing], [nothing, ways[1]]):
        assert comm_per_byte(lookup, mesh, known, some) not in (None, FORBIDDEN)
    assert comm_per_byte(lookup, mesh, known, ways) == FORBIDDEN
