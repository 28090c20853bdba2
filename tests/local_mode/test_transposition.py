"""JEP 17111: the backward passes have the collectives that it claims, and transposing again gives the program back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import shtypes as sh
from examples import jep_17111
from shtypes.core.operation import applied_by
from tests.core.hlo import collectives
from tests.tolerance import assert_close

N, ROWS = 4, 8


def kinds(f: Callable[..., Any], *args: Any) -> dict[str, int]:
    """The collectives of the compiled program, by JAX's names of the kinds."""
    text = sh.jit(f).lower(*args).compile().as_text()
    return dict(Counter(kind.value for kind, _ in collectives(text).elements()))


def transpose(f: Callable[..., Any], x: Any) -> Callable[[Any], Any]:
    """JAX's transpose of a linear function at a type."""
    pull = jax.vjp(f, x)[1]
    return lambda ct: pull(ct)[0]


def body(f: Callable[..., Any], *args: Any) -> list[str]:
    """The equations of a typed program."""
    return [str(applied_by(eqn)) for eqn in jax.make_jaxpr(f)(*args).jaxpr.eqns]


@pytest.fixture(autouse=True)
def jax_policy() -> Any:
    """The JEP's unmapped values are invariant."""
    sh.set_mesh(sh.make_mesh({"i": N}))
    with sh.policy("jax"):
        yield


def operand(name: str) -> Any:
    dims = {"cursed_identity": "[8]", "f4": "[8@i]", "f5": "[8@i]"}.get(name, "[8@i, 3]")
    shape = (8, 3) if "3" in dims else (8,)
    return sh.array(np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + 1, "f32" + dims)


def factors(name: str) -> tuple[Any, ...]:
    """The second operand, in which the program is not transposed."""
    shapes = {"f2": ("f32[8@i, 3]", (8, 3)), "f5": ("f32[32@i]", (32,))}
    return tuple(sh.array(np.full(shape, 3, np.float32), t) for t, shape in [shapes[name]]) if name in shapes else ()


#: (example, its body, its transpose's body, collectives forward and backward)
EXAMPLES: list[tuple[str, list[str], list[str], dict[str, int], dict[str, int]]] = [
    ("f1", ["reinterpret[i: S->V]", "scale[2]", "psum[i]"], ["pbroadcast[i]", "scale[2]", "reinterpret[i: V->S]"],
     {"all-reduce": 1}, {}),
    ("f2", ["reinterpret[i: S->V]", "scale[2]", "psum[i]", "pbroadcast[i]", "mul", "reinterpret[i: V->S]"],
     ["reinterpret[i: S->V]", "mul", "psum[i]", "pbroadcast[i]", "scale[2]", "reinterpret[i: V->S]"],
     {"all-reduce": 1}, {"all-reduce": 1}),
    ("cursed_identity", [], [], {}, {}),
    ("f4", ["reinterpret[i: S->V]", "all_gather_invariant[i, dim=0, tiled]"],
     ["pscatter[i, dim=0, tiled]", "reinterpret[i: V->S]"], {"all-gather": 1}, {}),
    ("f5", ["reinterpret[i: S->V]", "all_gather[i, dim=0, tiled]", "mul", "reinterpret[i: V->S]"],
     ["reinterpret[i: S->V]", "mul", "psum_scatter[i, dim=0, tiled]", "reinterpret[i: V->S]"],
     {"all-gather": 1}, {"reduce-scatter": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "forward", "backward", "sent", "sent_back"), EXAMPLES, ids=[e[0] for e in EXAMPLES])
def test_an_example_and_its_transpose_send_what_the_jep_claims(
    name: str, forward: list[str], backward: list[str], sent: dict[str, int], sent_back: dict[str, int]
) -> None:
    x, others = operand(name), factors(name)
    example = getattr(jep_17111, name)

    def f(x: Any) -> Any:
        return example(x, *others)

    y = f(x)
    assert body(f, x) == ["reinterpret[i: S->V]"] * len(others) + forward
    assert kinds(f, x) == sent
    once = transpose(f, x)
    ct = sh.reshard(sh.ones_like(y), y.type.cotangent())
    assert once(ct).type == x.type.cotangent()
    assert body(once, ct) == backward
    assert kinds(once, ct) == sent_back
    # Transposed again, and again: nothing grows.
    twice = transpose(once, ct)
    assert body(twice, x) == forward
    assert_close(np.asarray(twice(x)), np.asarray(y))
    assert body(transpose(twice, x), ct) == backward


def test_the_gradient_of_a_data_parallel_loss_sums_the_weights_gradient_once() -> None:
    """The loss of the JEP's introduction: nothing is sent for the loss itself in the backward pass."""
    w = sh.array(np.ones((3, 2), np.float32), "f32[3, 2]")
    x, y = sh.array(np.ones((8, 3), np.float32), "f32[8@i, 3]"), sh.array(np.zeros((8, 2), np.float32), "f32[8@i, 2]")
    assert kinds(jep_17111.loss, w, (x, y)) == {"all-reduce": 1}
    grad = sh.grad(jep_17111.loss)
    assert kinds(grad, w, (x, y)) == {"all-reduce": 1}  # that of the weights alone
    assert "pbroadcast[i]" in body(jep_17111.loss, w, (x, y))
    reduced = sh.reshard(w, i="R")
    assert kinds(grad, reduced, (x, y)) == {}  # the weights' gradient stays pending
    assert str(grad(reduced, (x, y)).type) == "f32[3,2]{U:i}"
    for found in (grad(w, (x, y)), sh.all_reduce(grad(reduced, (x, y)), to="I")):
        assert_close(np.asarray(found), np.ones((3, 2)))


def test_psum_idrev_and_id_psumrev_are_psum_and_pbroadcast() -> None:
    """What users of pmap wrote as custom derivatives."""
    x = operand("f1")
    varying = sh.reinterpret(x, i="V")
    total = sh.lax.psum(varying, "i")
    psum_idrev, id_psumrev = jep_17111.psum_idrev, jep_17111.id_psumrev
    assert body(psum_idrev, varying) == ["psum[i]"]
    assert body(transpose(psum_idrev, varying), total) == ["pbroadcast[i]"]
    assert body(id_psumrev, total) == ["pbroadcast[i]"]
    assert body(transpose(id_psumrev, total), varying) == ["psum[i]"]
    assert kinds(transpose(psum_idrev, varying), total) == {}
    assert kinds(transpose(id_psumrev, total), varying) == {"all-reduce": 1}


def test_one_value_used_twice_is_cast_once() -> None:
    """The JEP leaves the sum of psums to the compiler; here the cast is made once, so the sums are summed once."""
    w = sh.array(np.ones(8, np.float32), "f32[8]")
    x = sh.array(np.ones(32, np.float32), "f32[32@i]")

    @sh.shard_map(in_specs=("[_]", "[_@i]"), out_specs="[_@i]")
    def f(w: Any, x: Any) -> Any:
        return w * x + sh.sin(x) * w

    program = body(jax.grad(lambda w: sh.reshard(sh.sum(f(w, x)), "[]").to_jax()), w)
    assert program.count("pbroadcast[i]") == 1
    assert program.count("psum[i]") == 1


def test_with_explicit_every_cast_is_written() -> None:
    w, x = sh.array(np.ones(2, np.float32), "f32[2]"), operand("f4")
    written = sh.shard_map(jep_17111.scaled_explicitly, in_specs=("[_]", "[_@i]"), out_specs="[_@i]", explicit=True)
    free = sh.shard_map(lambda w, x: w * x, in_specs=("[_]", "[_@i]"), out_specs="[_@i]", explicit=True)
    assert_close(np.asarray(written(w, x)), np.asarray(x))
    for run in (free, sh.jit(free), jax.make_jaxpr(free)):
        with pytest.raises(sh.ShardingTypeError, match="from invariant to varying must be written here") as caught:
            run(w, x)
        assert 'sh.lax.pvary(x, "i")' in str(caught.value)
    assert_close(np.asarray(sh.jit(written)(w, x)), np.asarray(x))


def test_the_cotangent_of_a_permute_goes_back_to_where_the_value_came_from() -> None:
    """On a ring of four, on and back are not the same."""
    right = [(i, (i + 1) % N) for i in range(N)]
    weights = sh.array(np.arange(8, dtype=np.float32), "f32[8@i]")

    def loss(x: Any) -> Any:
        moved = sh.shard_map(lambda x: jax.lax.ppermute(x, "i", right), out_specs="[8@i]")(x)
        return sh.sum(moved * weights)

    gradient = sh.grad(loss)(sh.array(np.ones(8, np.float32), "f32[8@i]"))
    assert_close(gradient, np.roll(np.arange(8, dtype=np.float32), -2))
