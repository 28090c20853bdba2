"""Published programs come in as they are: nothing in them is edited."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import shtypes as sh
from tests.lifting.packages.checkouts import FLAX, LLMS, RING
from tests.lifting.packages.published import check, compare, lifted

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # the programs' own
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
POLICIES: Final = ("partial", "jax")


def _mesh(kind: AxisType, **sizes: int) -> jax.sharding.Mesh:
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=(kind,) * len(sizes))


def _tokens(shape: tuple[int, ...], vocabulary: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).integers(1, vocabulary, shape).astype(np.int32)


def _cross_entropy(logits: Any, labels: Any) -> Any:
    hot = jax.nn.one_hot(labels, logits.shape[-1])
    return -jnp.mean(jnp.sum(hot * jax.nn.log_softmax(logits.astype(jnp.float32)), -1))


def _on_one_device(mesh: jax.sharding.Mesh) -> jax.sharding.Mesh:
    sizes, types = (1,) * len(mesh.axis_names), mesh.axis_types
    return jax.make_mesh(sizes, mesh.axis_names, axis_types=types, devices=jax.devices()[:1])


# models over an explicit mesh


def _of_llms(name: str, folder: str, **sizes: Any) -> tuple[Any, Any, Any]:
    """A module, its configuration over a mesh, and weights."""
    model = LLMS.module(f"{name}.model", folder)
    mesh = _mesh(AxisType.Explicit, x=2, y=2, z=2)
    cfg = model.Config(max_seq_len=32, causal=True, dtype=jnp.float32, mesh=mesh, **sizes)
    return model, cfg, model.Weights.init(jax.random.key(0), cfg)


def _llama(layers: int, quantised: bool = False) -> tuple[Any, Any, Any]:
    sizes = {"embed": 32, "ffw_size": 64, "q_heads": 4, "kv_heads": 2, "head_dim": 8, "vocab_size": 64}
    kernels = {"use_prefill_attn_kernel": False, "use_decode_attn_kernel": False}
    quantised_ = {"quant_layer": quantised, "quant_cache": quantised}
    return _of_llms("llama3_jax", "llama3", num_layers=layers, **sizes, **kernels, **quantised_)


def _experts() -> tuple[Any, Any, Any]:
    sizes = {"embed": 16, "q_heads": 8, "kv_heads": 2, "num_layers": 1, "head_dim": 8, "vocab_size": 32}
    experts = {"moe_ffw_size": 16, "moe_experts_per_tok": 2, "moe_num_experts": 4, "ep_strategy": "decode"}
    attention = {"sliding_attention_map": ["sliding_attention"], "sliding_window_size": 4}
    return _of_llms("gpt_oss_jax", "gpt_oss", **sizes, **experts, **attention, quant_cache=False)


def _in_float32(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms that are not rounded to bfloat16, so that roundings do not hide faults."""

    def rms_norm(x: Any, gamma: Any, eps: float = 1e-6) -> Any:
        return (1 if gamma is None else gamma) * x / jnp.sqrt(jnp.mean(x**2, axis=-1, keepdims=True) + eps)

    monkeypatch.setattr(model, "rms_norm", rms_norm)


def _train(model: Any, cfg: Any, weights: Any, vocabulary: int) -> int:
    tokens = _tokens((4, 16), vocabulary)
    segments, labels = np.ones_like(tokens), np.roll(tokens, -1, 1)

    def loss(cfg: Any) -> Any:
        return lambda w, t, s, l: _cross_entropy(model.forward(t, s, w, cfg)[0], l)

    one = _on_one_device(cfg.mesh)
    with jax.set_mesh(one):
        whole = jax.tree.map(lambda w: jax.device_put(np.asarray(w)), weights)
        of_one = loss(dataclasses.replace(cfg, mesh=one))
        wanted = jax.value_and_grad(of_one)(whole, *map(jax.device_put, (tokens, segments, labels)))
    with sh.use_mesh(cfg.mesh):
        typed = jax.tree.map(sh.from_jax, weights)
        batch = [sh.array(x, P("x", None)) for x in (tokens, segments, labels)]
        return check(lifted(loss(cfg)), (typed, *batch), wanted)


@pytest.mark.parametrize("policy", POLICIES)
def test_llama3_trains(policy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, cfg, weights = _llama(1)
    _in_float32(model, monkeypatch)
    with sh.policy(policy):
        _train(model, cfg, weights, 64)


@pytest.mark.parametrize("quantised", [False, True], ids=["float32", "int8"])
@pytest.mark.parametrize("policy", POLICIES)
def test_llama3_decodes_the_tokens_of_jax(policy: Any, quantised: bool) -> None:
    model, cfg, weights = _llama(2, quantised)
    prompt, cache = _tokens((4, 16), 64), model.KVCache.init(jax.random.key(2), cfg, 4)

    def generated(prompt: Any, weights: Any, cache: Any, of: Any) -> list[Any]:
        prefill = of(lambda t, w, c: model.prefill(t, w, c, cfg))
        step = of(lambda t, w, c: model.decode_step(t, w, c, cfg))
        token, _, cache = prefill(prompt, weights, cache)
        tokens = [token := token[:, -1:]]
        for _ in range(2):
            token, cache = step(token, weights, cache)
            tokens.append(token)
        return [np.asarray(token) for token in tokens]

    with jax.set_mesh(cfg.mesh):
        wanted = generated(jnp.asarray(prompt), weights, cache, lambda f: f)
    with sh.use_mesh(cfg.mesh), sh.policy(policy):
        cache = model.KVCache.init(jax.random.key(2), cfg, 4)
        typed = (jax.tree.map(sh.from_jax, tree) for tree in (weights, cache))
        found = generated(sh.array(prompt), next(typed), next(typed), lifted)
    assert np.array_equal(found, wanted)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_mixture_of_experts_trains(policy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, cfg, weights = _experts()
    _in_float32(model, monkeypatch)
    with sh.policy(policy):
        _train(model, cfg, weights, 32)


# models of Flax


@pytest.mark.parametrize("policy", POLICIES)
def test_gemma_trains(policy: Any) -> None:
    nnx: Any = pytest.importorskip("flax.nnx")
    model = FLAX.module("transformer", "examples/gemma")
    configs, kinds = model.TransformerConfig, model.modules.AttentionType
    shardings = FLAX.module("transformer_cfg", "examples/gemma").ShardingConfig

    def made(sharding: Any) -> Any:
        cfg = configs(
            num_layers=2,
            num_embed=64,
            embed_dim=16,
            hidden_dim=32,
            num_heads=4,
            head_dim=8,
            num_kv_heads=4,
            final_logit_softcap=30.0,
            use_post_attn_norm=True,
            use_post_ffw_norm=True,
            attention_types=(kinds.LOCAL_SLIDING, kinds.GLOBAL),
            attn_logits_soft_cap=50.0,
            use_qk_norm=True,
            sliding_window_size=4,
            shd_config=sharding,
        )
        built = model.Transformer(cfg, rngs=nnx.Rngs(params=0, dropout=1))
        built.eval()
        return nnx.split(built)

    def loss(graph: Any) -> Any:
        def of(state: Any, tokens: Any) -> Any:
            mask = tokens > 0
            positions, seen = model.build_positions_from_mask(mask), model.make_causal_attn_mask(mask)
            logits, _ = nnx.merge(graph, state)(tokens, positions, None, seen, rngs=None)
            return _cross_entropy(logits, jnp.roll(tokens, -1, 1))

        return of

    graph, state = made(shardings.no_sharding())
    tokens = _tokens((4, 8), 64)
    wanted = jax.value_and_grad(loss(graph), allow_int=True)(state, tokens)
    mesh = _mesh(AxisType.Explicit, fsdp=2, tp=4)
    with jax.set_mesh(mesh):
        sharded_graph, sharded = made(shardings.fsdp_tp_sharding(is_sampling=False))
    values, (leaves, tree) = jax.tree.leaves(state), jax.tree.flatten(sharded)
    with sh.use_mesh(mesh), sh.policy(policy):
        placed = [_as_placed(x, y) for x, y in zip(values, leaves, strict=True)]
        operands = jax.tree.unflatten(tree, placed), sh.array(tokens, P("fsdp", None))
        check(lifted(loss(sharded_graph)), operands, wanted)


def _as_placed(x: Any, like: Any) -> Any:
    """A value in the sharding of another, typed; keys and counters stay plain."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return like
    return sh.array(np.asarray(x), like.sharding.spec if isinstance(like.sharding, jax.NamedSharding) else None)


@pytest.mark.parametrize("sizes", [{"data": 2, "fsdp": 1, "tensor": 4}, {"data": 2, "fsdp": 2, "tensor": 2}], ids=str)
@pytest.mark.parametrize("policy", POLICIES)
def test_the_transformer_of_lm1b_trains(policy: Any, sizes: dict[str, int]) -> None:
    nn: Any = pytest.importorskip("flax.linen")
    models = FLAX.module("models", "examples/lm1b")
    cfg = models.TransformerConfig(
        vocab_size=64,
        output_vocab_size=64,
        emb_dim=16,
        num_heads=4,
        num_layers=2,
        qkv_dim=16,
        mlp_dim=32,
        max_len=16,
        dropout_rate=0.0,
        attention_dropout_rate=0.0,
        deterministic=True,
        logits_via_embedding=True,
    )
    rules = [("mlp", "tensor"), ("vocab", "tensor"), ("embed", "fsdp"), ("heads", "tensor"), ("kv", "tensor")]
    model, tokens = models.TransformerLM(cfg), _tokens((4, 8), 64)
    params = model.init(jax.random.key(0), tokens)

    def loss(params: Any, tokens: Any) -> Any:
        return _cross_entropy(model.apply(params, tokens), tokens)

    def in_their_rules(params: Any, tokens: Any) -> Any:
        with nn.logical_axis_rules(rules):
            return loss(params, tokens)

    wanted = jax.value_and_grad(loss)(params, tokens)
    specs = nn.logical_to_mesh(nn.get_partition_spec(params), rules)
    leaves, tree = jax.tree.flatten(params)
    with sh.use_mesh(_mesh(AxisType.Auto, **sizes)), sh.policy(policy):
        specs = jax.tree.leaves(specs, is_leaf=lambda x: isinstance(x, P))
        typed = jax.tree.unflatten(tree, [sh.array(np.asarray(x), spec) for x, spec in zip(leaves, specs, strict=True)])
        check(lifted(in_their_rules), (typed, sh.array(tokens, P("data", None))), wanted)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_residual_network_trains_with_the_statistics_of_all_devices(policy: Any) -> None:
    """As on devices of `jax.pmap`: batches are normalised by `pmean` over the axis that the model names."""
    models = FLAX.module("models", "examples/imagenet")
    model = models.ResNet(
        stage_sizes=[1, 1], block_cls=models.ResNetBlock, num_classes=10, num_filters=8, dtype=jnp.float32
    )
    rng = np.random.default_rng(0)
    images, labels = rng.standard_normal((8, 16, 16, 3)).astype(np.float32), rng.integers(0, 10, 8)

    def loss(params: Any, stats: Any, images: Any, labels: Any) -> Any:
        logits, new = model.apply({"params": params, "batch_stats": stats}, images, mutable=["batch_stats"])
        return jax.lax.pmean(_cross_entropy(logits, labels), "batch"), new

    def of_one(params: Any, stats: Any, images: Any, labels: Any) -> Any:
        mapped = jax.vmap(loss, in_axes=(None, None, 0, 0), axis_name="batch")
        value, new = mapped(params, stats, images[None], labels[None])
        return value[0], jax.tree.map(lambda x: x[0], new)

    made = jax.vmap(lambda x: model.init(jax.random.key(0), x), axis_name="batch")(images[None])
    params, stats = (jax.tree.map(lambda x: x[0], made[name]) for name in ("params", "batch_stats"))
    wanted = jax.value_and_grad(of_one, has_aux=True)(params, stats, images, labels)
    with sh.use_mesh(_mesh(AxisType.Auto, batch=4)), sh.policy(policy):
        step = sh.shard_map(loss, in_specs=(P(), P(), P("batch"), P("batch")), out_specs=(P(), P()))
        typed = [jax.tree.map(lambda x: sh.array(np.asarray(x)), tree) for tree in (params, stats)]
        check(step, (*typed, sh.array(images, P("batch")), sh.array(labels, P("batch"))), wanted, has_aux=True)


# functions of shards


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
@pytest.mark.parametrize("how", ["in a lifted program", "by sh.shard_map"])
@pytest.mark.parametrize("policy", POLICIES)
def test_ring_attention_is_attention(policy: Any, how: str, kind: AxisType) -> None:
    ring = RING.module("ringattention_jax", "ringattention").ring_attention
    rng, shape = np.random.default_rng(0), (2, 32, 4, 8)
    qkv = [rng.standard_normal(shape).astype(np.float32) for _ in range(3)]
    bias, segments = np.zeros((2, 1, 1, 32), np.float32), np.zeros((2, 32), np.int32)
    mesh = _mesh(kind, dp=2, fsdp=1, sp=4, tp=1)
    options = {
        "deterministic": True,
        "dropout_rng": None,
        "attn_pdrop": 0.0,
        "causal_block_size": 1,
        "query_chunk_size": 4,
        "key_chunk_size": 4,
        "dtype": jnp.float32,
        "policy": jax.checkpoint_policies.nothing_saveable,
        "precision": None,
        "prevent_cse": True,
    }
    spec = P(("dp", "fsdp"), "sp", "tp", None)
    specs = (spec, spec, spec, P(("dp", "fsdp"), None, None, None), P(("dp", "fsdp"), None))

    def attention(qkv: Any) -> Any:
        q, k, v = qkv
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(q.shape[-1])
        scores = jnp.where(jnp.tril(jnp.ones((32, 32), bool)), scores, -jnp.inf)
        return jnp.sum(jnp.sin(jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v)))

    def body(*args: Any) -> Any:
        return ring(*args, None, "sp", True, options)

    def program(qkv: Any, bias: Any, segments: Any) -> Any:
        mapped = jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=spec, check_vma=False)
        return jnp.sum(jnp.sin(mapped(*qkv, bias, segments)))

    wanted = jax.value_and_grad(attention)(qkv)
    with sh.use_mesh(mesh), sh.policy(policy):
        typed = [sh.array(x, s) for x, s in zip((*qkv, bias, segments), specs, strict=True)]
        ours = sh.shard_map(body, in_specs=specs, out_specs=spec)
        by = {
            "in a lifted program": sh.lift(program),
            "by sh.shard_map": lambda qkv, *more: sh.sum(sh.sin(ours(*qkv, *more))),
        }
        check(by[how], (typed[:3], *typed[3:]), wanted)
        compare(by[how](typed[:3], *typed[3:]), wanted[0])
