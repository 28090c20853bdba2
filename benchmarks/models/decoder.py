"""A training step of the decoder of `examples/transformer`: typed, in JAX's explicit mode and in one `jax.shard_map`.

The typed variant is the example itself; its parallelism is a layout. The other two are written here, on one text of the
model: what they say where values meet other devices is in `Places`. All take the same weights and the same Adam of
`optax`, and keep the gradients of layers stacked over a first dim, as the scan over layers leaves them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import PartitionSpec as P

import shtypes as sh
from benchmarks.models.common import Program, Tree, put, same, sum_backward, sum_forward
from examples.transformer import model
from examples.transformer.layouts import layout


class Config(NamedTuple):
    """Sizes of the model and its batch."""

    sizes: model.Sizes = model.Sizes(
        vocab=512,
        layers=4,
        hidden=128,
        heads=8,
        key_heads=4,
        head=16,
        inner=256,
        dtype="f32",
        remat="none",
        gather_again=False,
    )
    batch: int = 16
    seq: int = 64


TINY: Final = Config(model.Sizes(32, 2, 32, 8, 4, 8, 32, dtype="f32", remat="none", gather_again=False), batch=8, seq=8)
#: The axes of each weight, by hand.
SPECS: Final[dict[str, Any]] = {
    "embedding": P("tp", None),
    "layers": {
        "attention_norm": P(None, None),
        "query": P(None, None, "tp", None),
        "key": P(None, None, "tp", None),
        "value": P(None, None, "tp", None),
        "output": P(None, "tp", None, None),
        "mlp_norm": P(None, None),
        "gate": P(None, None, "tp"),
        "up": P(None, None, "tp"),
        "down": P(None, "tp", None),
    },
    "norm": P(None),
}
ADAM: Final = optax.adam(1e-3)


@functools.cache
def data(config: Config) -> tuple[Tree, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Weights, tokens and targets, on the host."""
    with layout("one").use():
        weights = jax.tree.map(np.asarray, model.init(sh.random.key(0), config.sizes))
    tokens = np.random.default_rng(0).integers(0, config.sizes.vocab, (config.batch, config.seq), dtype=np.int32)
    return weights, tokens, np.roll(tokens, -1, 1)


# with shtypes


def typed(config: Config, mesh: Any) -> Program:
    """The example, under the policy and in the layout in force."""
    weights, *batch = data(config)
    held = jax.tree.map(sh.array, weights, model.types(config.sizes))
    optimizer = sh.optim.lift(ADAM)

    def step(weights: Tree, state: Tree, tokens: Any, targets: Any) -> Any:
        value, grads = sh.value_and_grad(model.loss)(weights, tokens, targets, config.sizes)
        grads = jax.tree.map(lambda g, w: sh.reshard(g, sh.typeof(w)), grads, weights)
        updates, state = optimizer.update(grads, state, weights)
        return sh.optim.apply_updates(weights, updates), state, sh.all_reduce(value)

    return Program(step, (held, optimizer.init(held), *(sh.array(x, "i32[batch, seq]") for x in batch)))


# in plain JAX


class Places(NamedTuple):
    """What a variant in plain JAX does where a device may need another.

    Attributes:
        weight: To a weight, before it is used.
        enter: To a replicated activation that meets sharded weights.
        leave: ``leave(equation, x, w)``: the einsum that contracts a sharded dim, and its sum.
        look_up: The rows of the embedding for tokens.
        reshape: ``reshape(x, shape, spec)``, of a dim of heads.
        losses: From scores, sharded over the vocabulary, and targets to the cross entropy of each token.
        mean: Of the losses.
        cheap: Around functions that the backward pass might compute again.
    """

    weight: Callable[[Any], Any]
    enter: Callable[[Any], Any]
    leave: Callable[[str, Any, Any], Any]
    look_up: Callable[[Any, Any], Any]
    reshape: Callable[[Any, tuple[int, ...], P], Any]
    losses: Callable[[Any, Any], Any]
    mean: Callable[[Any], Any]
    cheap: Callable[[Callable[..., Any]], Callable[..., Any]] = same


def _norm(x: Any, scale: Any) -> Any:
    return x * lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6) * scale


def _turned(x: Any) -> Any:
    """Rotary positions: [batch, seq, heads, head]."""
    half = x.shape[-1] // 2
    angles = np.arange(x.shape[1])[:, None, None] * 10_000.0 ** (-np.arange(half, dtype=np.float32) / half)
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def _weights(scores: Any) -> Any:
    """The causal softmax of scores."""
    place = np.arange(scores.shape[-1])
    return jax.nn.softmax(jnp.where(place[:, None] >= place, scores, -0.7 * float(np.finfo(np.float32).max)))


def _gated(gate: Any, up: Any) -> Any:
    return jax.nn.silu(gate) * up


def _attention(h: Any, w: Tree, places: Places) -> Any:
    query, key, value = (jnp.einsum("bsd,dnh->bsnh", h, w[name]) for name in ("query", "key", "value"))
    query, key = _turned(query), _turned(key)
    (batch, seq, heads, head), groups = query.shape, key.shape[2]
    query = places.reshape(query, (batch, seq, groups, heads // groups, head), P("dp", None, "tp", None, None))
    scores = jnp.einsum("btkgh,bskh->bkgts", query, key) / math.sqrt(head)
    mixed = jnp.einsum("bkgts,bskh->btkgh", places.cheap(_weights)(scores), value)
    mixed = places.reshape(mixed, (batch, seq, heads, head), P("dp", None, "tp", None))
    return places.leave("bsnh,nhd->bsd", mixed, w["output"])


def _mlp(h: Any, w: Tree, places: Places) -> Any:
    return places.leave("bsi,id->bsd", places.cheap(_gated)(h @ w["gate"], h @ w["up"]), w["down"])


def _loss(places: Places) -> Callable[..., Any]:
    """The model in plain JAX."""
    norm = places.cheap(_norm)

    def layer(x: Any, w: Tree) -> tuple[Any, None]:
        w = jax.tree.map(places.weight, w)
        x = x + _attention(places.enter(norm(x, w["attention_norm"])), w, places)
        return x + _mlp(places.enter(norm(x, w["mlp_norm"])), w, places), None

    def loss(weights: Tree, tokens: Any, targets: Any) -> Any:
        embedding, scale = places.weight(weights["embedding"]), places.weight(weights["norm"])
        x, _ = lax.scan(layer, places.look_up(embedding, tokens), weights["layers"])
        scores = jnp.einsum("bsd,vd->bsv", places.enter(norm(x, scale)), embedding)
        return places.mean(places.losses(scores, targets))

    return loss


def _updated(weights: Tree, state: Tree, grads: Tree) -> tuple[Tree, Tree]:
    updates, state = ADAM.update(grads, state, weights)
    return optax.apply_updates(weights, updates), state


def specs_on(mesh: Any) -> Tree:
    """The specs of the weights on a mesh that has some of the axes."""
    return jax.tree.map(lambda spec: on(mesh, spec), SPECS)


def on(mesh: Any, spec: P) -> P:
    """A spec without the axes that a mesh lacks."""
    return P(*(axis if axis in mesh.axis_names else None for axis in spec))


def _placed(config: Config, mesh: Any) -> tuple[Any, ...]:
    """The arguments of a step in plain JAX, on the devices."""
    weights, *batch = data(config)
    held = put(mesh, specs_on(mesh), weights)
    count, mu, nu = ADAM.init(held)[0].count, *(jax.tree.map(np.zeros_like, weights) for _ in range(2))
    first = optax.ScaleByAdamState(put(mesh, P(), count), *(put(mesh, specs_on(mesh), m) for m in (mu, nu)))
    rows = on(mesh, P("dp", None))
    return held, (first, optax.EmptyState()), *(put(mesh, rows, x) for x in batch)


def _cross_entropy(scores: Any, targets: Any) -> Any:
    label = targets[..., None] == np.arange(scores.shape[-1])
    return jax.nn.logsumexp(scores, -1) - jnp.sum(jnp.where(label, scores, 0), -1)


def plain() -> Callable[..., Any]:
    """The loss for one device: ``(weights, tokens, targets)`` to a scalar."""
    places = Places(
        weight=same,
        enter=same,
        leave=jnp.einsum,
        look_up=lambda table, tokens: table[tokens],
        reshape=lambda x, shape, spec: jnp.reshape(x, shape),
        losses=_cross_entropy,
        mean=jnp.mean,
    )
    return _loss(places)


def explicit(config: Config, mesh: Any) -> Program:
    """JAX's explicit mode: arrays know how they are sharded, and contractions of a sharded dim say how they end."""
    stream = on(mesh, P("dp", None, None))

    places = Places(
        weight=same,
        enter=same,
        leave=functools.partial(jnp.einsum, out_sharding=stream),
        look_up=lambda table, tokens: table.at[tokens].get(out_sharding=stream),
        reshape=lambda x, shape, spec: jnp.reshape(x, shape, out_sharding=on(mesh, spec)),
        losses=_cross_entropy,
        mean=jnp.mean,
    )

    def step(weights: Tree, state: Tree, tokens: Any, targets: Any) -> Any:
        value, grads = jax.value_and_grad(_loss(places))(weights, tokens, targets)
        return *_updated(weights, state, grads), value

    return Program(step, _placed(config, mesh))


def by_hand(config: Config, mesh: Any, policy: str, *, again: bool = False) -> Program:
    """One `jax.shard_map` with the schedule of a policy, every sum written out.

    Under "partial" cotangents of replicated values are partial, and the transpose of a psum is a psum; gradients are
    summed after the backward pass. Under "jax" what enters a block sums its cotangent, and so does each weight where it
    is used. With ``again`` the backward pass computes norms, softmaxes and gates again and keeps only what they start
    from, as it does of operations of shtypes.
    """
    data_axes, tensor = (tuple(a for a in (axis,) if a in mesh.axis_names) for axis in ("dp", "tp"))
    pending = policy == "partial"

    def total(x: Any) -> Any:
        return lax.psum(x, tensor) if pending else sum_forward(x, tensor)

    def first(size: int) -> Any:
        return lax.axis_index(tensor) * size if tensor else 0

    def look_up(table: Any, tokens: Any) -> Any:
        rows = table.shape[0]
        own = tokens - first(rows)
        found = jnp.where(((own >= 0) & (own < rows))[..., None], table[jnp.clip(own, 0, rows - 1)], 0)
        return total(found)

    def losses(scores: Any, targets: Any) -> Any:
        highest = jnp.max(lax.stop_gradient(scores), -1, keepdims=True)
        shifted = scores - (lax.pmax(highest, tensor) if tensor else highest)
        label = targets[..., None] == first(scores.shape[-1]) + np.arange(scores.shape[-1])
        sums = jnp.sum(jnp.exp(shifted), -1), jnp.sum(jnp.where(label, shifted, 0), -1)
        normal, score = sum_forward(sums, tensor)
        return jnp.log(normal) - score

    places = Places(
        weight=same if pending else lambda w: sum_backward(w, data_axes),
        enter=same if pending else lambda x: sum_backward(x, tensor),
        leave=lambda equation, x, w: total(jnp.einsum(equation, x, w)),
        look_up=look_up,
        reshape=lambda x, shape, spec: jnp.reshape(x, shape),
        losses=losses,
        mean=lambda x: jnp.sum(x) / (config.batch * config.seq),
        cheap=functools.partial(jax.checkpoint, prevent_cse=False) if again else same,
    )
    specs = specs_on(mesh)

    def summed(gradient: Any, spec: P) -> Any:
        return lax.psum(gradient, tuple(a for a in mesh.axis_names if a in ("dp", "tp") and a not in spec))

    def step(weights: Tree, state: Tree, tokens: Any, targets: Any) -> Any:
        value, grads = jax.value_and_grad(_loss(places))(weights, tokens, targets)
        if pending:
            grads = jax.tree.map(summed, grads, specs)
        return *_updated(weights, state, grads), lax.psum(value, data_axes)

    rows = on(mesh, P("dp", None))
    of_state = optax.ScaleByAdamState(P(), specs, specs), optax.EmptyState()
    ends = specs, of_state
    return Program(
        jax.shard_map(step, mesh=mesh, in_specs=(*ends, rows, rows), out_specs=(*ends, P()), check_vma=False),
        _placed(config, mesh),
    )
