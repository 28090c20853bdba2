"""A decoder language model. Its parallelism is only its types.

The model names the dims of its values and says where one value lies otherwise than another. Which mesh axes shard a dim
is said from outside, by `sh.dim_axes`; `layouts.toml` holds such sets of rules. The dims are

=============  ==========================================================================================
``batch``      sequences
``seq``        positions, inside a block
``stream``     positions, between blocks: of the residual stream
``keys``       positions of keys and values, where queries meet them: sharded, they go round in a ring
``hidden``     features of the residual stream; sharded for masters only (ZeRO)
``heads``      query heads, in the weights and beside them
``key_heads``  heads of keys and values
``inner``      features inside the MLP
``vocab``      tokens
``expert``     experts, in the weights of a mixture (`experts.py`), where ``features`` is ``hidden``
=============  ==========================================================================================

and a value is moved in three places: where a block starts (`gathered`: from ``stream`` to ``seq``, and each weight from
its master to what computes), where it ends (`summed`: a pending sum to ``stream``), and where attention needs all keys.
With `experts.py` in the place of the MLP, tokens go to their experts and back as well.
On a mesh where no axis differs between the two ends, nothing is sent.

The interface: `Sizes`, `WEIGHTS`, `init(key, sizes)`, `embed(weights, tokens)`, `layer(x, w, sizes)`,
`scores(weights, x)`, `loss(weights, tokens, targets, sizes)`; tokens and targets are ``i32[batch, seq]``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

import jax

import shtypes as sh
from examples.transformer import experts
from examples.transformer.ring import ring_attention

Tree = Any

#: The dims of each weight; those of ``layers`` are stacked over a first dim, ``layer``.
WEIGHTS: dict[str, Any] = {
    "embedding": "[vocab, hidden]",
    "layers": {
        "attention_norm": "[hidden]",
        "query": "[hidden, heads, head]",
        "key": "[hidden, key_heads, head]",
        "value": "[hidden, key_heads, head]",
        "output": "[heads, head, hidden]",
        "mlp_norm": "[hidden]",
        "gate": "[hidden, inner]",
        "up": "[hidden, inner]",
        "down": "[inner, hidden]",
    },
    "norm": "[hidden]",
}


@dataclass(frozen=True)
class Sizes:
    """What a model is made of, and how it is computed.

    Attributes:
        vocab: How many tokens there are; bytes, by default.
        layers: How many layers.
        hidden: Features of the residual stream.
        heads: Query heads.
        key_heads: Heads of keys and values, each shared by ``heads // key_heads`` query heads.
        head: Features of a head.
        inner: Features inside the MLP, or inside each expert.
        experts: How many experts a layer has; 0: one MLP for all tokens.
        chosen: How many of them take a token.
        capacity: How many times more places experts have than there are choices; None: no token is left out.
        group: How many positions of a sequence share these places; None: all.
        balance: The weight in the loss of how unevenly tokens are spread over the experts.
        dtype: What products are computed in, and values sent in. Sums over devices, norms and the residual stream are
            f32, and so are the weights that are trained.
        remat: What of a layer the backward pass computes again: ``"none"``, all but the products (``"dots"``), or
            ``"everything"``.
        gather_again: Whether the backward pass gathers again the weights that a layer has gathered (ZeRO-3), or they
            are kept until then (ZeRO-2).
    """

    vocab: int = 256
    layers: int = 4
    hidden: int = 64
    heads: int = 8
    key_heads: int = 4
    head: int = 16
    inner: int = 128
    experts: int = 0
    chosen: int = 2
    capacity: float | None = None
    group: int | None = None
    balance: float = 0.01
    dtype: Literal["f32", "bf16"] = "bf16"
    remat: Literal["none", "dots", "everything"] = "everything"
    gather_again: bool = True

    def __post_init__(self) -> None:
        """Refuses a dtype and a policy of recomputation that are none."""
        for field, hint in get_type_hints(Sizes).items():
            known = get_args(hint) if get_origin(hint) is Literal else ()
            if known and getattr(self, field) not in known:
                raise sh.ShardingTypeError(f"`{field}` is one of {', '.join(known)}, not {getattr(self, field)!r}")

    def dims(self) -> dict[str, int]:
        """The sizes of the dims of weights."""
        names = ("vocab", "hidden", "heads", "key_heads", "head", "inner")
        mixed = {"expert": self.experts, "score": self.experts, "features": self.hidden} if self.experts else {}
        return {"layer": self.layers, **{name: getattr(self, name) for name in names}, **mixed}

    def weights(self) -> dict[str, Any]:
        """The dims of each weight: `WEIGHTS`, with those of experts in the place of an MLP's."""
        return WEIGHTS | {"layers": WEIGHTS["layers"] | experts.WEIGHTS} if self.experts else WEIGHTS


def types(sizes: Sizes) -> Tree:
    """The types of all weights, by the mesh and the axes of dim names in context."""

    def parsed(text: str, stacked: bool) -> sh.ShType:
        return sh.ShType.parse("f32[layer, " + text[1:] if stacked else "f32" + text)

    with sh.dims(**sizes.dims()):
        return {
            name: {n: parsed(t, True) for n, t in dims.items()} if name == "layers" else parsed(dims, False)
            for name, dims in sizes.weights().items()
        }


def init(key: Any, sizes: Sizes) -> Tree:
    """Weights, sampled alike on every mesh: scales of norms are 1, products keep the size of their rows."""
    wanted, tree = jax.tree.flatten_with_path(types(sizes))
    keys = sh.random.split(key, len(wanted))

    def sampled(key: Any, path: Any, t: sh.ShType) -> Any:
        name = path[-1].key
        if name.endswith("norm"):
            return sh.ones(t)
        summed = {"output": sizes.heads * sizes.head, "down": sizes.inner}.get(name, sizes.hidden)
        return sh.random.normal(key, t) / summed**0.5

    return jax.tree.unflatten(tree, [sampled(keys[i], path, t) for i, (path, t) in enumerate(wanted)])


def moved(x: Any, dims: str, comm_dtype: str | None = None) -> Any:
    """A value where dims of these names lie. Its own names stay, for a position is one here and there.

    Axes along which it is replicated, here and there, stay as they are: no policy changes how its gradient is summed.
    """
    wanted = sh.ShType.parse(x.type.dtype_name + dims, shape=x.shape).named(x.type.names)
    for state in (sh.State.REDUCED, sh.State.INVARIANT, sh.State.VARYING):
        wanted = wanted.with_axes(set(x.type.axes(state)).difference(wanted.axes(sh.State.SHARDED)), state)
    return sh.reshard(x, wanted, comm_dtype=comm_dtype)


def sent(x: Any, dims: str, sizes: Sizes) -> Any:
    """An f32 value where products need it: sent in their dtype, its gradient summed in f32."""
    return moved(x, dims, None if sizes.dtype == "f32" else sizes.dtype)


def gathered(x: Any, dims: str, sizes: Sizes) -> Any:
    """The same in the dtype of products."""
    return sent(x, dims, sizes).astype(sizes.dtype)


def summed(x: Any, dims: str) -> Any:
    """A pending sum, finished in f32."""
    return moved(x.astype("f32"), dims)


def embed(weights: Tree, tokens: Any) -> Any:
    """The residual stream before the first layer: f32[batch, stream, hidden]. Each device looks up its own tokens."""
    return summed(sh.nn.embedding(weights["embedding"], tokens), "[batch, stream, hidden]")


def mixed(query: Any, key: Any, value: Any) -> Any:
    """Causal attention of a whole sequence to itself, with grouped heads."""
    query, key = sh.nn.rotary_embedding(query), sh.nn.rotary_embedding(key)
    lying = "[batch, keys, key_heads, head]"
    key, value = (moved(y.astype("f32"), lying, y.type.dtype_name).astype(y.dtype) for y in (key, value))
    if sh.typeof(key).dims[1].axes:
        return ring_attention(query, key, value)
    return sh.nn.dot_product_attention(query, key, value, is_causal=True)


def attention(x: Any, w: Tree, mix: Callable[..., Any] = mixed) -> Any:
    """A pending sum over the axes of ``heads``; ``mix`` is what queries do with keys and values."""
    return sh.nn.linear(mix(*(sh.nn.linear(x, w[name]) for name in ("query", "key", "value"))), w["output"], dims=2)


def mlp(x: Any, w: Tree) -> Any:
    """A gated MLP; a pending sum over the axes of ``inner``."""
    return sh.nn.linear(sh.nn.swiglu(sh.nn.linear(x, w["gate"]), sh.nn.linear(x, w["up"])), w["down"])


def layer(x: Any, w: Tree, sizes: Sizes, mix: Callable[..., Any] = mixed) -> tuple[Any, Any]:
    """Both blocks, each behind a norm and beside the residual stream, f32[batch, stream, hidden].

    The weights are those of one layer, as they are trained; each is gathered here if it is sharded more finely than
    its use.

    Returns:
        The residual stream, and how unevenly tokens are spread over experts, a scalar, or None.
    """
    dims = sizes.weights()["layers"]
    w = {name: sh.checkpoint_name(gathered(w[name], dims[name], sizes), "weight") for name in dims}
    h = gathered(sh.nn.rms_norm(x, w["attention_norm"].astype("f32")), "[batch, seq, hidden]", sizes)
    x = x + summed(attention(h, w, mix), "[batch, stream, hidden]")
    h = gathered(sh.nn.rms_norm(x, w["mlp_norm"].astype("f32")), "[batch, seq, hidden]", sizes)
    if sizes.experts:
        made, uneven = experts.mixture(h, w, sizes.chosen, sizes.capacity, sizes.group)
    else:
        made, uneven = mlp(h, w), None
    return x + summed(made, "[batch, stream, hidden]"), uneven


def scores(weights: Tree, x: Any, sizes: Sizes) -> Any:
    """How likely each token comes next, before softmax: [batch, seq, vocab]. No device has the scores of all tokens."""
    h = gathered(sh.nn.rms_norm(x, weights["norm"].astype("f32")), "[batch, seq, hidden]", sizes)
    return sh.einsum("bsh,vh->bsv", h, weights["embedding"])


def kept(sizes: Sizes) -> Any:
    """The checkpoint policy of a layer."""
    policies = sh.checkpoint_policies
    if sizes.remat == "none":
        return policies.save_anything_except_these_names(*["weight"] * sizes.gather_again)
    again = {"dots": policies.dots_saveable, "everything": policies.nothing_saveable}[sizes.remat]
    return (
        again
        if sizes.gather_again
        else policies.save_from_both_policies(again, policies.save_only_these_names("weight"))
    )


def layers(x: Any, stacked: Tree, sizes: Sizes) -> tuple[Any, Any]:
    """All layers, one after the other; beside the stream the mean of what each returns beside it."""
    step = sh.checkpoint(functools.partial(layer, sizes=sizes), policy=kept(sizes), prevent_cse=False)
    x, uneven = sh.scan(step, x, stacked)
    return x, None if uneven is None else sh.mean(uneven)


def mean_loss(weights: Tree, x: Any, targets: Any, sizes: Sizes) -> Any:
    """The mean cross entropy after the last layer: a pending sum over the axes of ``batch`` and ``seq``."""
    found = scores(weights, x, sizes)
    axes = sh.typeof(found).dims[-1].axes
    whole = f"{{I:({','.join(axes)})}}" if axes else ""
    return sh.mean(sh.nn.cross_entropy(found, targets, out="[batch, seq]" + whole))


def loss(weights: Tree, tokens: Any, targets: Any, sizes: Sizes) -> Any:
    """The mean cross entropy: a pending sum over the axes of ``batch`` and ``seq``.

    With experts, how unevenly they are chosen is added. It is a mean over tokens too; where devices have the same
    tokens it is one value, and becomes a term of the sum once.
    """
    ends = {name: gathered(weights[name], WEIGHTS[name], sizes) for name in ("embedding", "norm")}
    x, uneven = layers(embed(ends, tokens), weights["layers"], sizes)
    value = mean_loss(ends, x, targets, sizes)
    return value if uneven is None else value + sizes.balance * sh.reshard(uneven, sh.typeof(value))
