"""`jax.shard_map` in lifted programs: local mode, with the collectives of `jax.lax` as they are."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType

import shtypes as sh
from tests.end_to_end import close, host
from tests.local_mode.test_plain_bodies import BODIES, P, W, X, by_jax, typed
from tests.traced.compiled import compiled_text, sent_by_compiled, sent_by_ledger

pytestmark = pytest.mark.one_in(9)

KINDS = {"auto": AxisType.Auto, "explicit": AxisType.Explicit}


def mesh_of(kind: str) -> Any:
    return jax.make_mesh((4, 2), ("x", "y"), axis_types=(KINDS[kind],) * 2)


def checked(case: Any, *, mesh: Any) -> Callable[..., Any]:
    """The body mapped by JAX: with its checks, or without where JAX needs that."""

    def mapped(x: Any, w: Any) -> Any:
        specs = {"mesh": mesh, "in_specs": (case.x, P()), "out_specs": case.out}
        try:
            return jax.shard_map(case.body, **specs)(x, w)
        except (TypeError, ValueError) as error:
            if isinstance(error, sh.ShardingTypeError):
                raise
            return jax.shard_map(case.body, **specs, check_vma=False)(x, w)

    return mapped


@pytest.mark.one_in(77)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", BODIES)
def test_it_has_the_values_and_gradients_of_jax(name: str, kind: str) -> None:
    case, mesh = BODIES[name], mesh_of(kind)
    value, gradients = by_jax(case, X, W)
    for policy in ("partial", "jax"):
        with sh.policy(policy), sh.use_mesh(mesh):
            args = typed(case)
            op = sh.lift(checked(case, mesh=mesh))
            close(host(sh.jit(op)(*args)), value, "value")
            if gradients is None:
                continue

            def loss(x: Any, w: Any, op: Any = op) -> Any:
                return sh.all_reduce(sh.sum(sh.sin(op(x, w))))

            step = sh.grad(loss, argnums=(0, 1))
            for mine, theirs in zip(sh.jit(step)(*args), gradients, strict=True):
                close(host(mine), theirs, "gradient")
            assert sent_by_compiled(compiled_text(sh.jit(step), *args)) == sent_by_ledger(
                sh.ledger(sh.jit(step), *args)
            )


def summed(x: Any, w: Any) -> Any:
    return lax.psum(jnp.sin(x) @ w, "x")


WANTED = np.sin(X).reshape(4, 2, 4, 6).sum(0) @ W

#: A function of shards in a program, in the ways that programs have it: all denote the same.
WAYS: dict[str, Callable[[Any], Callable[[Any, Any], Any]]] = {
    "a decorator": lambda mesh: functools.partial(
        jax.shard_map, mesh=mesh, in_specs=(P("x"), P()), out_specs=P()
    )(summed),
    "the mesh in context": lambda mesh: jax.shard_map(summed, in_specs=(P("x"), P()), out_specs=P()),
    "an abstract mesh": lambda mesh: jax.shard_map(
        summed, mesh=mesh.abstract_mesh, in_specs=(P("x"), P()), out_specs=P()
    ),
    "one axis": lambda mesh: jax.shard_map(
        summed, mesh=mesh, in_specs=(P("x"), P()), out_specs=P(), axis_names={"x"}
    ),
    "two in one another": lambda mesh: jax.shard_map(
        jax.shard_map(summed, in_specs=(P("x"), P()), out_specs=P(), axis_names={"x"}),
        mesh=mesh, in_specs=(P(), P()), out_specs=P(), axis_names={"y"},
    ),
    "jit": lambda mesh: jax.jit(jax.shard_map(summed, mesh=mesh, in_specs=(P("x"), P()), out_specs=P())),
    "jit inside": lambda mesh: jax.shard_map(jax.jit(summed), mesh=mesh, in_specs=(P("x"), P()), out_specs=P()),
    "checkpoint": lambda mesh: jax.checkpoint(
        jax.shard_map(summed, mesh=mesh, in_specs=(P("x"), P()), out_specs=P())
    ),
    "vmap around": lambda mesh: jax.vmap(
        jax.shard_map(lambda x, w: lax.psum(jnp.sin(x) @ w, "x"), mesh=mesh, in_specs=(P("x"), P()), out_specs=P()),
        (1, None), 1,
    ),
    "scan around": lambda mesh: lambda x, w: lax.scan(
        lambda c, _: (jax.shard_map(summed, mesh=mesh, in_specs=(P("x"), P()), out_specs=P())(x, w) + 0 * c, None),
        jnp.zeros((2, 4, 4)), None, length=2,
    )[0],
    "cond around": lambda mesh: lambda x, w: lax.cond(
        w[0, 0] < 9,
        jax.shard_map(summed, mesh=mesh, in_specs=(P("x"), P()), out_specs=P()),
        jax.shard_map(lambda x, w: -summed(x, w), mesh=mesh, in_specs=(P("x"), P()), out_specs=P()),
        x,
        w,
    ),
    "a tree": lambda mesh: lambda x, w: jax.shard_map(
        lambda t: {"y": summed(**t)}, mesh=mesh, in_specs=({"x": P("x"), "w": P()},), out_specs=P()
    )({"x": x, "w": w})["y"],
    "closed over": lambda mesh: lambda x, w: jax.shard_map(
        lambda x: summed(x, w), mesh=mesh, in_specs=P("x"), out_specs=P()
    )(x),
    "a value of the program": lambda mesh: lambda x, w: jax.shard_map(
        lambda s, w: lax.psum(s @ w, "x"), mesh=mesh, in_specs=(P("x"), P()), out_specs=P()
    )(jnp.sin(x), w),
    "smap": lambda mesh: jax.smap(summed, axis_name="x", in_axes=(0, None), out_axes=None),
}  # fmt: skip


@pytest.mark.one_in(17)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
def test_however_a_program_has_it(way: str, kind: str) -> None:
    mesh = mesh_of(kind)
    with sh.use_mesh(mesh):
        op = sh.lift(WAYS[way](mesh))
        x, w = sh.array(X, "[8@x,4,6]"), sh.array(W, "[6,4]")
        y = op(x, w)
        assert str(y.type) == "f32[2,4,4]"
        close(host(y), WANTED, "value")
        gradient = sh.grad(lambda x, w: sh.sum(op(x, w)))(x, w)
        close(host(gradient), np.cos(X) * W.sum(1), "gradient")


def test_in_specs_are_reshards_and_are_seen() -> None:
    mesh = mesh_of("auto")
    op = sh.lift(jax.shard_map(summed, mesh=mesh, in_specs=(P("x"), P()), out_specs=P()))
    with sh.use_mesh(mesh):
        for t, kinds in (("[8,4,6]", []), ("[8,4@x,6]", ["all-to-all"]), ("[8@(x,y),4,6]", ["all-gather"])):
            x, w = sh.array(X, t), sh.array(W, "[6,4@y]")
            assert [entry.kind for entry in sh.ledger(op, x, w)] == [*kinds, "all-gather", "all-reduce"]
            with pytest.raises(sh.ShardingTypeError), sh.no_comm():
                op(x, w)
            close(host(op(x, w)), WANTED, "value")


def test_specs_that_are_not_given_are_those_of_the_arguments() -> None:
    mesh = mesh_of("explicit")
    with sh.use_mesh(mesh):
        x, w = sh.array(X, "[8@x,4,6]"), sh.array(W, "[6,4]")
        close(host(sh.lift(jax.shard_map(summed, mesh=mesh, out_specs=P()))(x, w)), WANTED, "value")
        with pytest.raises(sh.ShardingTypeError, match=r"`jax.shard_map` has no in_specs"):
            sh.lift(lambda x, w: jax.shard_map(summed, mesh=mesh, out_specs=P())(x * 1, w))(x, w)


@pytest.mark.parametrize("kind", KINDS)
def test_a_function_of_shards_is_jaxs_own_before_and_after(kind: str) -> None:
    mesh = mesh_of(kind)
    given = jax.shard_map(summed, mesh=mesh, in_specs=(P("x"), P()), out_specs=P())
    in_context = jax.shard_map(summed, in_specs=(P("x"), P()), out_specs=P())
    plain_x, plain_w = (
        jax.device_put(X, jax.NamedSharding(mesh, P("x"))),
        jax.device_put(W, jax.NamedSharding(mesh, P())),
    )
    for order in ((0, 1, 0), (1, 0, 1)):
        for mapped in (given, in_context):
            for lifted in order:
                with sh.use_mesh(mesh):
                    if lifted:
                        y = host(sh.lift(mapped)(sh.array(X, "[8@x,4,6]"), sh.array(W, "[6,4]")))
                    else:
                        y = np.asarray(jax.jit(mapped)(plain_x, plain_w))
                close(y, WANTED, "value")


def test_another_mesh_is_refused() -> None:
    other = jax.make_mesh((2, 4), ("x", "y"))
    with sh.use_mesh(mesh_of("auto")), pytest.raises(sh.ShardingTypeError, match=r"`jax.shard_map` is over") as caught:
        sh.lift(lambda x: jax.shard_map(jnp.sin, mesh=other, in_specs=P("x"), out_specs=P("x"))(x * 1))(
            sh.array(X, "[8@x,4,6]")
        )
    assert "test_shard_map_inside.py" in caught.value.where


def test_scopes_hold_in_the_body() -> None:
    mesh = mesh_of("auto")

    def body(x: Any) -> Any:
        with sh.no_comm():
            return lax.psum(x, "x")

    with sh.use_mesh(mesh), pytest.raises(sh.ShardingTypeError, match="no_comm"):
        sh.lift(jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P()))(sh.array(X, "[8@x,4,6]"))


def test_typed_ops_and_collectives_in_the_body() -> None:
    mesh = mesh_of("auto")

    def body(x: Any, w: Any) -> Any:
        return sh.lax.psum(sh.einsum("abc,cd->abd", jnp.sin(x), w), "x")

    with sh.use_mesh(mesh):
        op = sh.lift(jax.shard_map(body, mesh=mesh, in_specs=(P("x"), P()), out_specs=P()))
        close(host(op(sh.array(X, "[8@x,4,6]"), sh.array(W, "[6,4]"))), WANTED, "value")
