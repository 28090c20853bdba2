"""The programs of the shard_map tutorial and of JEP 14273: types, values and gradients, eager and compiled."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from examples import jep_14273, shard_map_tutorial
from tests.core.hlo import collectives
from tests.end_to_end import host
from tests.small_models import assert_close

RING, GRID = {"i": 4}, {"i": 4, "j": 2}
ROWS, CONTRACTED = ("f32[8@i,8]", "f32[8@i,4]"), ("f32[8,8@i]", "f32[8@i,4]")


def blocks(n: int, x: Any) -> list[Any]:
    return jnp.split(x, n)


#: (module and function, mesh, types of the operands, type of the result, the same in numpy)
PROGRAMS: list[tuple[Any, str, dict[str, int], tuple[str, ...], str, Callable[..., Any]]] = [
    (shard_map_tutorial, "matmul_basic", {"x": 4, "y": 2}, ("f32[8@x,16@y]", "f32[16@y,4]"), "f32[8@x,4]",
     lambda a, b: a @ b),
    (shard_map_tutorial, "map_of_blocks", GRID, ("f32[8@i,4]",), "f32[16@i,4]",
     lambda x: jnp.concatenate([b.T @ b for b in blocks(4, x)])),
    (shard_map_tutorial, "tiled_over_j", GRID, ("f32[12@i,12]",), "f32[12@i,24@j]", lambda x: jnp.tile(x, (1, 2))),
    (shard_map_tutorial, "sum_over_j", GRID, ("f32[12@i,12@j]",), "f32[12@i,6]", lambda x: x[:, :6] + x[:, 6:]),
    (shard_map_tutorial, "sum_over_i", GRID, ("f32[12@i,12@j]",), "f32[3,12@j]", lambda x: sum(blocks(4, x))),
    (shard_map_tutorial, "sum_over_both", GRID, ("f32[12@i,12@j]",), "f32[3,6]",
     lambda x: sum(b[:, :6] + b[:, 6:] for b in blocks(4, x))),
    (shard_map_tutorial, "gathered", RING, ("f32[8@i]",), "f32[32@i]", lambda x: jnp.tile(x, 4)),
    (shard_map_tutorial, "stacked", RING, ("f32[8@i]",), "f32[16@i,2]", lambda x: jnp.tile(x.reshape(4, 2), (4, 1))),
    (shard_map_tutorial, "scattered", RING, ("f32[16@i]",), "f32[4@i]", lambda x: sum(blocks(4, x))),
    (shard_map_tutorial, "scattered_by_hand", RING, ("f32[16@i]",), "f32[4@i]", lambda x: sum(blocks(4, x))),
    (shard_map_tutorial, "exchanged", RING, ("f32[16@i]",), "f32[16@i]", lambda x: x.reshape(4, 4).T.ravel()),
    (shard_map_tutorial, "permuted", RING, ("f32[8@i]",), "f32[8@i]", lambda x: jnp.roll(x, 2)),
    *[(shard_map_tutorial, f"matmul_allgather{v}", RING, ROWS, "f32[8@i,4]", lambda a, b: a @ b)
      for v in ("", "_overlapped", "_overlapped_bidi")],
    *[(shard_map_tutorial, f"matmul_psumscatter{v}", RING, CONTRACTED, "f32[8@i,4]", lambda a, b: a @ b)
      for v in ("", "_overlapped", "_overlapped_bidi")],
    (jep_14273, "matmul_basic", GRID, ("f32[8@i,16@j]", "f32[16@j,4]"), "f32[8@i,4]", lambda a, b: a @ b),
    (jep_14273, "matmul_reduce_scatter", GRID, ("f32[8@i,16@j]", "f32[16@j,4]"), "f32[8@i,4@j]", lambda a, b: a @ b),
    (jep_14273, "matmul_pending", GRID, ("f32[8@i,16@j]", "f32[16@j,4]"), "f32[8@i,4]{U:j}", lambda a, b: a @ b),
    (jep_14273, "f1", GRID, ("f32[12@i,12]",), "f32[12@i,24@j]", lambda x: jnp.tile(x, (1, 2))),
    (jep_14273, "f2", GRID, ("f32[12@i,24@j]",), "f32[12@i,24@j]", lambda x: x),
    (jep_14273, "f3", GRID, ("f32[12@i,12@j]",), "f32[12@i,6]", lambda x: x[:, :6] + x[:, 6:]),
    (jep_14273, "f4", GRID, ("f32[12@i,12@j]",), "f32[3,12@j]", lambda x: sum(blocks(4, x))),
    (jep_14273, "f5", GRID, ("f32[12@i,12@j]",), "f32[3,6]",
     lambda x: sum(b[:, :6] + b[:, 6:] for b in blocks(4, x))),
    (jep_14273, "collective_matmul", {"i": 8}, ("f32[16@i,4]", "f32[4,3]"), "f32[128@i,3]",
     lambda a, b: jnp.tile(a @ b, (8, 1))),
]  # fmt: skip


def made(text: str, seed: int) -> Any:
    shape = sh.ShType.parse(text).shape
    return sh.array(np.random.default_rng(seed).standard_normal(shape).astype(np.float32), text)


@pytest.mark.one_in(23)
@pytest.mark.parametrize(
    ("module", "name", "mesh", "operands", "out", "reference"),
    PROGRAMS,
    ids=[f"{p[0].__name__[9:]}.{p[1]}" for p in PROGRAMS],
)
def test_a_program_has_its_types_and_computes_what_numpy_does(
    module: Any, name: str, mesh: Any, operands: Any, out: str, reference: Callable[..., Any]
) -> None:
    sh.set_mesh(sh.make_mesh(mesh))
    f = getattr(module, name)
    values = [made(text, seed) for seed, text in enumerate(operands)]
    y = f(*values)
    assert str(y.type) == out
    plain = [jnp.asarray(np.asarray(v)) for v in values]
    wanted = reference(*plain)
    assert_close(y, wanted)
    weights = np.random.default_rng(9).uniform(0.5, 1.5, wanted.shape).astype(np.float32)
    every = tuple(range(len(values)))

    def weighted(m: Any, f: Any, *xs: Any) -> Any:
        y = f(*xs)
        return m.sum(y * weights), y

    step = sh.jit(sh.value_and_grad(functools.partial(weighted, sh, f), every, has_aux=True), region="require")
    (_, again), grads = jax.block_until_ready(step(*values))
    assert again.type == y.type
    assert_close(again, wanted)
    wanted_grads = jax.jit(jax.grad(functools.partial(weighted, jnp, reference), every, has_aux=True))(*plain)[0]
    for g, value, want in zip(grads, values, wanted_grads, strict=True):
        assert g.type == value.type.cotangent()
        assert_close(host(g), want)
    with sh.policy("jax"):  # the same text means the other replicated state
        assert str(jax.eval_shape(f, *map(sh.abstract_array, operands))) == out


@pytest.mark.parametrize(("spec", "repeats"), [("[_@i,_@j]", (4, 2)), ("[_@i,_]", (4, 1)), ("[_,_]", (1, 1))])
def test_a_result_that_is_replicated_is_repeated_along_the_axes_that_its_spec_names(spec: str, repeats: Any) -> None:
    sh.set_mesh(sh.make_mesh(GRID))
    x = sh.array(np.asarray([[3.0]], np.float32), "f32[1, 1]")
    for tile in (shard_map_tutorial.tile, jep_14273.z):
        np.testing.assert_array_equal(np.asarray(tile(x, spec)), np.tile([[3.0]], repeats))


# networks

SIZES = [16, 16, 16, 8]
LAYERS = list(itertools.pairwise(SIZES))


def network(weights: str, bias: str) -> Any:
    return [
        (made(weights.format(n, m), 10 * i + 1), made(bias.format(m), 10 * i + 2)) for i, (n, m) in enumerate(LAYERS)
    ]


def batch(inputs: str, targets: str) -> Any:
    return made(inputs, 100), made(targets, 101)


def reference_loss(params: Any, batch: Any) -> Any:
    """The tutorial's loss on one device."""
    inputs, targets = batch
    outputs = inputs
    for weights, bias in params:
        outputs = inputs @ weights + bias
        inputs = jax.nn.relu(outputs)
    return ((outputs - targets) ** 2).sum(-1).mean()


@functools.cache
def expected() -> tuple[Any, Any]:
    """The loss and the gradients of the network on one device."""
    sh.set_mesh(sh.make_mesh({"x": 1}))
    args = network("f32[{},{}]", "f32[{}]"), batch("f32[16,16]", "f32[16,8]")
    plain = jax.tree.map(lambda x: jnp.asarray(np.asarray(x)), args)
    return jax.tree.map(np.asarray, jax.jit(jax.value_and_grad(reference_loss))(*plain))  # type: ignore[no-any-return]


#: (loss, mesh, weights, bias, inputs, targets, kinds of collectives of loss and gradients: partial, jax)
NETWORKS: list[tuple[str, dict[str, int], str, str, str, str, str, str]] = [
    ("loss_dp", {"batch": 8}, "f32[{},{}]", "f32[{}]", "f32[16@batch,16]", "f32[16@batch,8]",
     "all-reduce", "all-reduce"),
    ("loss_fsdp", {"batch": 8}, "f32[{}@batch,{}]", "f32[{}@batch]", "f32[16@batch,16]", "f32[16@batch,8]",
     "all-gather all-reduce reduce-scatter", "all-gather all-reduce reduce-scatter"),
    ("loss_tp", {"feats": 8}, "f32[{}@feats,{}]", "f32[{}@feats]", "f32[16,16@feats]", "f32[16,8@feats]",
     "all-gather reduce-scatter", "all-gather reduce-scatter"),
    ("loss_fsdp_tp", {"batch": 4, "feats": 2}, "f32[{}@(feats,batch),{}]", "f32[{}@(feats,batch)]",
     "f32[16@batch,16@feats]", "f32[16@batch,8@feats]",
     "all-gather all-reduce reduce-scatter", "all-gather all-reduce reduce-scatter"),
]  # fmt: skip


@pytest.mark.one_in(13)
@pytest.mark.parametrize("policy", ["partial", "jax"])
@pytest.mark.parametrize("case", NETWORKS, ids=[c[0] for c in NETWORKS])
def test_a_network_has_the_loss_and_the_gradients_of_one_device(case: tuple[Any, ...], policy: str) -> None:
    name, mesh, weights, bias, inputs, targets, *kinds = case
    expected()  # sets a mesh of its own
    sh.set_mesh(sh.make_mesh(mesh))
    with sh.policy(policy):
        params, data = network(weights, bias), batch(inputs, targets)
        step = (
            sh.jit(sh.value_and_grad(getattr(shard_map_tutorial, name)), region="require").lower(params, data).compile()
        )
        loss, grads = step(params, data)
        wanted, wanted_grads = expected()
        assert_close(loss, wanted)
        assert_close(grads, wanted_grads)
        for g, p in zip(jax.tree.leaves(grads), jax.tree.leaves(params), strict=True):
            assert g.type == p.type.cotangent()
        found = collectives(step.as_text())
        assert " ".join(sorted({kind.value for kind, _ in found})) == kinds[policy == "jax"]


@pytest.mark.nightly
@pytest.mark.parametrize("policy", ["partial", "jax"])
def test_a_pipeline_has_the_loss_and_the_gradients_of_one_device(policy: str) -> None:
    sh.set_mesh(sh.make_mesh({"stages": 2}))
    with sh.policy(policy):
        first, last = (made("f32[4,8]", 1), made("f32[8]", 2)), (made("f32[8,2]", 3), made("f32[2]", 4))
        inner = made("f32[4@stages,8,8]", 5), made("f32[4@stages,8]", 6)
        params, data = (first, inner, last), batch("f32[32@stages,4]", "f32[32@stages,2]")

        def reference(params: Any, data: Any) -> Any:
            first, (weights, bias), last = params
            return reference_loss([first, *zip(weights, bias, strict=True), last], data)

        loss, grads = sh.jit(sh.value_and_grad(shard_map_tutorial.loss_pp))(params, data)
        plain = jax.tree.map(lambda x: jnp.asarray(np.asarray(x)), (params, data))
        wanted, wanted_grads = jax.jit(jax.value_and_grad(reference))(*plain)
        assert_close(loss, wanted)
        assert_close(grads, wanted_grads)


def test_the_types_inside_print_as_the_examples_say() -> None:
    sh.set_mesh(sh.make_mesh({"x": 4, "y": 2}))
    a, b = sh.abstract_array("f32[8@x,16@y]"), sh.abstract_array("f32[16@y,4]")
    assert str(jax.make_jaxpr(shard_map_tutorial.matmul_basic)(a, b)) == (
        "{ lambda ; a:f32[8@x,16@y] b:f32[16@y,4]. let\n"
        "    c:f32[2,8]{V:(x,y)} = reinterpret[x: S->V, y: S->V] a\n"
        "    d:f32[8,4]{V:y} = reinterpret[y: S->V] b\n"
        "    e:f32[8,4]{V:(x,y)} = reinterpret[x: R->V] d\n"
        "    f:f32[2,4]{V:(x,y)} = einsum[nk,km->nm] c e\n"
        "    g:f32[2,4]{V:x} = psum[y: V->R] f\n"
        "    h:f32[8@x,4] = reinterpret[x: V->S] g\n"
        "  in (h,) }"
    )
    assert host(shard_map_tutorial.matmul_basic(made("f32[8@x,16@y]", 0), made("f32[16@y,4]", 1))).shape == (8, 4)
