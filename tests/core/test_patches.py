"""What is replaced in JAX: no more than the table says, each for something that is lost without it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import shtypes as sh
from shtypes._compat.patches import INSTALLED, PATCHES, Patch, without
from tests.end_to_end import host
from tests.fresh import printed
from tests.tolerance import assert_close

#: What of JAX changes when shtypes is imported: attributes of its modules, of their classes and functions, and of the
#: objects in them; entries of its tables, but for those that are ours.
CHANGES = """if True:
    import importlib, json, os, sys, types

    def of_jax(name):
        return str(name).split(".")[0] in ("jax", "jaxlib")

    import jax

    read, write = os.pipe()
    if os.fork() == 0:
        import shtypes.api
        shtypes.api.load()
        os.write(write, " ".join(name for name in sys.modules if of_jax(name)).encode())
        os._exit(0)
    os.close(write)
    for name in open(read).read().split():
        try:
            importlib.import_module(name)  # so that what an import adds is there before
        except ImportError:
            pass

    held, seen, tables = [], {}, {}

    def look(label, holder):
        if id(holder) in seen or not hasattr(holder, "__dict__"):
            return
        attributes = dict(vars(holder))
        held.append(holder)
        seen[id(holder)] = label, holder, attributes
        for name, value in attributes.items():
            value = getattr(value, "__func__", value)
            if type(value) is dict and not name.startswith("__"):
                held.append(value)
                tables[id(value)] = f"{label}.{name}", value, dict(value)
            elif isinstance(value, (type, types.FunctionType)) and of_jax(value.__module__):
                look(f"{value.__module__}.{value.__qualname__}", value)
            elif isinstance(holder, types.ModuleType) and of_jax(type(value).__module__):
                look(f"{label}.{name}", value)

    for name, module in list(sys.modules.items()):
        if of_jax(name) and module is not None:
            look(name, module)

    import shtypes.api
    shtypes.api.load()

    absent = object()
    changed, foreign = set(), set()
    for label, holder, before in seen.values():
        now = vars(holder)
        for name in {*before, *now}:
            is_now = now.get(name, absent)
            if before.get(name, absent) is not is_now and not isinstance(is_now, types.ModuleType):
                changed.add(f"{label}.{name}")
        if type(holder).__module__.startswith("shtypes"):
            changed.add(f"{label}.__class__")
    for label, table, before in tables.values():
        for key in table:
            ours = str(getattr(key, "__module__", type(key).__module__)).startswith("shtypes")
            if before.get(key, absent) is not table[key] and not (ours and key not in before):
                foreign.add(f"{label}[{key}]")
    print(json.dumps([sorted(changed), sorted(foreign), len(seen), len(tables)]))
"""


def test_the_table_is_all_that_is_replaced() -> None:
    changed, foreign, looked_at, tables = json.loads(printed(CHANGES).splitlines()[-1])
    assert looked_at > 5000
    assert tables > 100
    assert changed == sorted(patch.name for patch in INSTALLED)
    assert not foreign
    assert len(changed) <= 11


def test_the_table_is_in_the_docs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text()
    for patch in PATCHES:
        assert f"`{patch.name.removeprefix('jax._src.')}`" in page


X = np.arange(1, 9, dtype=np.float32).reshape(2, 4)


pytestmark = pytest.mark.mesh({"x": 2})


def _left_operators() -> None:
    found = jax.jit(lambda a, x: a - x)(X, sh.array(X, "[2,4@x]"))
    assert_close(host(found), 0 * X)


def _arrays_while_traced() -> None:
    found = jax.jit(lambda x: x * (2 if isinstance(x, jax.Array) else 1))(sh.array(X, "[2,4@x]"))
    assert_close(host(found), 2 * X)


def _mapped_loops() -> None:
    start, steps = sh.array(X[0], "[4@x]"), sh.array(X, "[2,4@x]")
    found = jax.vmap(lambda step: lax.scan(lambda c, _: (c + step, None), start, None, length=2)[0])(steps)
    assert_close(host(found), X[0] + 2 * X)


def _unmapped_results() -> None:
    x = sh.array(X[0], "[4@x]")
    found = jax.vmap(lambda a: sh.sin(x))(jnp.arange(3))
    assert_close(host(found), np.tile(np.sin(X[0]), (3, 1)))


def _barriers() -> None:
    x = sh.array(X, "[2,4@x]")
    for found in (lax.optimization_barrier((x, 1.0))[0], jax.jit(lambda x: lax.optimization_barrier((x, x))[1])(x)):
        assert found.type == x.type
        assert_close(host(found), X)


def _checkpointed_scan() -> None:
    w = sh.array(X[:, 0].copy(), "[2]")

    def loss(w: Any) -> Any:
        step = jax.jit(lambda c, _: (sh.sin(c) * sh.cos(w), None))
        return sh.sum(lax.scan(step, w, None, length=3)[0])

    plain = jax.grad(lambda w: sh.sum(lax.scan(lambda c, _: (sh.sin(c) * sh.cos(w), None), w, None, length=3)[0]))(w)
    for f in (jax.checkpoint(loss), jax.jit(jax.checkpoint(loss)), jax.checkpoint(jax.jit(loss))):
        for grad in (jax.grad(f), jax.jit(jax.grad(f))):
            assert_close(host(grad(w)), host(plain))


def _checkpoints() -> None:
    x = sh.array(X, "[2,4@x]")
    found = jax.checkpoint(lambda x: sh.sin(x))(x)  # noqa: PLW0108  # a new one each time
    assert isinstance(found, sh.Array)
    assert_close(host(found), np.sin(X))


def _loops_over_values() -> None:
    x, start = sh.array(X, "[2,4@x]"), sh.array(X[0], "[4@x]")
    last, ys = lax.scan(lambda c, v: (c + v, c * v), start, x)
    assert_close(host(last), X[0] + X.sum(0))
    assert_close(host(lax.map(lambda pair: pair[0] * pair[1], (x, jnp.arange(2.0)))), X * [[0], [1]])
    assert_close(host(jax.jit(lambda x: lax.map(sh.sin, x))(x)), np.sin(X))
    assert ys.type == x.type


def _mapped_branches() -> None:
    x = sh.array(X, "[2,4@x]")
    found = jax.vmap(lambda p, x: lax.cond(p, lambda x: x * 2, lambda x: x, x))(jnp.array([True, False]), x)
    assert_close(host(found), X * [[2], [1]])
    inner = jax.vmap(lambda i, x: lax.switch(i, [sh.sin, sh.cos, lambda x: x], x))(jnp.array([2, 0]), x)
    assert_close(host(inner), np.stack([X[0], np.sin(X[1])]))


def _scopes_in_backward_functions() -> None:
    f = jax.custom_vjp(sh.sin)
    f.defvjp(lambda x: (sh.sin(x), None), lambda _, ct: (sh.reshard(sh.reshard(ct, x="R"), x=1),))

    def loss(x: Any) -> Any:
        with sh.no_comm():
            y = f(x)
        return sh.sum(y)

    with pytest.raises(sh.ShardingTypeError, match="in the backward function of a `custom_vjp`"):
        sh.grad(loss)(sh.array(X, "[2,4@x]"))


def _scopes_in_tangents() -> None:
    f = jax.custom_jvp(sh.sin)
    f.defjvp(lambda x, t: (sh.sin(x[0]), sh.reshard(sh.reshard(t[0], x="R"), x=1)))

    def loss(x: Any) -> Any:
        with sh.no_comm():
            y = jax.jit(f)(x)
        return sh.sum(y)

    with pytest.raises(sh.ShardingTypeError, match="no_comm"):
        sh.grad(loss)(sh.array(X, "[2,4@x]"))


def _losses() -> None:
    value, grad = jax.value_and_grad(lambda x: sh.sum(x * x))(sh.array(X, "[2,4@x]"))
    assert_close(host(value), (X * X).sum())
    assert_close(host(grad), 2 * X)


def _annotated(f: Callable[[Any], Any]) -> Any:
    y = sh.lift(f)(sh.array(X, "[2,4@x]"))
    assert isinstance(y, sh.Array)
    assert str(y.type) == "f32[2@x,4]"


def _shardings_of_jit() -> None:
    _annotated(jax.jit(jnp.sin, out_shardings=jax.P("x")))


def _constraints() -> None:
    _annotated(lambda x: lax.with_sharding_constraint(x, jax.P("x")))


def _puts() -> None:
    _annotated(lambda x: jax.device_put(x, jax.P("x")))


def _functions_of_shards() -> None:
    x = sh.array(X, "f32[2@x, 4]")
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,), devices=jax.devices()[:2])
    mapped: Any = jax.shard_map(lambda x: jax.lax.psum(x, "x"), mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P())
    assert np.array_equal(np.asarray(sh.lift(lambda x: mapped(x * 1))(x)), X.sum(0, keepdims=True))


#: What users have by each; what another release of JAX gives without it is not asked for.
CAPABILITIES: dict[str, tuple[Callable[[], None], ...]] = {
    "Tracer.__init__": (_left_operators, _arrays_while_traced),
    "Primitive.bind": (_mapped_loops, _unmapped_results, _checkpoints, _barriers),
    "closed_call_p.to_lojax": (_checkpointed_scan,),
    "_infer_scan_length": (_loops_over_values,),
    "lax": (_mapped_branches,),
    "lu": (_scopes_in_backward_functions,),
    "_one_vjp": (_losses,),
    "_create_sharding_for_array": (_shardings_of_jit,),
    "check_shardings_are_auto": (_constraints,),
    "pspec_to_sharding": (_puts,),
    "_shmap_checks": (_functions_of_shards,),
}
EACH = [
    pytest.param(patch, capability, id=f"{patch.path}-{capability.__name__.strip('_')}")
    for patch in PATCHES
    for capability in CAPABILITIES.get(patch.path, ())
    if patch.needed()
]


def _works(capability: Callable[[], None]) -> bool:
    try:
        capability()
    except (Exception, pytest.fail.Exception):
        return False
    return True


@pytest.mark.core
@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.path)
def test_a_patch_has_a_capability_that_is_tested(patch: Patch) -> None:
    assert patch.path in CAPABILITIES, f"no test says what is lost without `{patch.name}`: add it to CAPABILITIES"


@pytest.mark.core
def test_a_capability_belongs_to_a_patch() -> None:
    gone = set(CAPABILITIES) - {patch.path for patch in PATCHES}
    assert not gone, f"no patch has these paths: {gone}; name them in CAPABILITIES as the table of patches does"


@pytest.mark.core
@pytest.mark.parametrize(("patch", "capability"), EACH)
def test_what_a_patch_gives_is_lost_without_it(patch: Patch, capability: Callable[[], None]) -> None:
    assert patch in INSTALLED, f"this JAX has no `{patch.name}`: see where it is, or whether it is still needed"
    capability()
    with without(patch):
        assert not _works(capability), f"JAX no longer needs `{patch.name}`: it can go"
    capability()


def test_what_jax_cannot_loop_over_is_refused_in_words() -> None:
    x = sh.array(X, "[2,4@x]")
    calls: dict[str, Callable[[], Any]] = {
        "no leading dim": lambda: lax.scan(lambda c, v: (c, v), 0.0, sh.zeros("f32[]")),
        "sizes 2 and 3": lambda: lax.scan(lambda c, v: (c, v), 0.0, x, length=3),
        "sizes 2 and 4": lambda: lax.map(lambda pair: pair[0], (x, jnp.ones(4))),
        "sharded over `x`": lambda: lax.map(lambda v: v, sh.array(X, "[2@x,4]")),
    }
    for words, call in calls.items():
        with pytest.raises(sh.ShardingTypeError, match=words) as error:
            call()
        assert "test_patches.py" in error.value.where


@pytest.mark.parametrize("capability", [_checkpointed_scan, _scopes_in_tangents])
def test_what_is_given_besides(capability: Callable[[], None]) -> None:
    capability()
