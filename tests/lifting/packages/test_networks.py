"""Networks of published libraries of modules: Haiku, Penzai, Equimo; of graphs, and of geometry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.lifting.frameworks.judging import Module, array, whole
from tests.lifting.packages.programs import Program, cases, check

hk: Any = pytest.importorskip("haiku")
eqx: Any = pytest.importorskip("equinox")
pz: Any = pytest.importorskip("penzai.pz")
llama: Any = pytest.importorskip("penzai.models.transformer.variants.llamalike_common")
jraph: Any = pytest.importorskip("jraph")
e3nn: Any = pytest.importorskip("e3nn_jax")
e3nn_haiku: Any = pytest.importorskip("e3nn_jax.haiku")

pytestmark = [
    pytest.mark.nightly,
    # The packages' own, of other packages and of JAX.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::SyntaxWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


def _of_haiku(run: Callable[..., Any], *inputs: Any) -> Module:
    pure = hk.transform_with_state(run)
    params, state = pure.init(jax.random.key(0), *inputs)

    def apply(given: Any, *xs: Any) -> Any:
        return pure.apply(*given, jax.random.key(1), *xs)

    return Module(apply, (params, state), inputs)


def _resnet() -> Module:
    """A residual network in training: its logits, and its averages of batches."""

    def run(images: Any) -> Any:
        make = hk.nets.ResNet
        net = make((1, 1, 1, 1), 8, bottleneck=False, channels_per_group=(8, 8, 16, 16), strides=(1, 2, 1, 1))
        return net(images, is_training=True)

    return _of_haiku(run, array(4, 8, 8, 3))


def _vqvae() -> Module:
    """The loss of a quantizer of vectors, and the averages that it keeps of its codes."""

    def run(x: Any) -> Any:
        found = hk.nets.VectorQuantizerEMA(8, 16, 0.25, 0.9)(x, is_training=True)
        return found["loss"], found["quantize"]

    return _of_haiku(run, array(4, 6, 8))


def _haiku_transformer() -> Module:
    """A transformer of Haiku's parts, with the loss of its language model."""

    def run(tokens: Any) -> Any:
        x = hk.Embed(32, 16)(tokens) + hk.get_parameter("positions", (8, 16), init=hk.initializers.TruncatedNormal())
        mask = np.tril(np.ones((1, 1, 8, 8)))
        h = hk.LayerNorm(-1, True, True)(x)
        x = x + hk.MultiHeadAttention(4, 4, w_init=hk.initializers.VarianceScaling())(h, h, h, mask=mask)
        x = x + hk.nets.MLP([32, 16], activation=jax.nn.gelu)(hk.LayerNorm(-1, True, True)(x))
        logits = hk.Linear(32)(x)
        return optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], tokens[:, 1:]).mean()

    return _of_haiku(run, whole(32, 4, 8))


def _penzai() -> Module:
    """A Llama of Penzai: grouped queries, rotary positions, and the loss of its language model."""
    config = llama.LlamalikeTransformerConfig(
        num_kv_heads=4, query_head_multiplier=2, embedding_dim=16, projection_dim=4, mlp_hidden_dim=32,
        num_decoder_blocks=1, vocab_size=32, mlp_variant="swiglu", tie_embedder_and_logits=False,
    )  # fmt: skip
    model = llama.build_llamalike_transformer(config, jax.random.key(0))
    frozen, params = pz.unbind_params(model, freeze=True)

    def loss(params: Any, tokens: Any) -> Any:
        bound = pz.bind_variables(frozen, params)
        logits = bound(pz.nx.wrap(tokens).tag("batch", "seq")).unwrap("batch", "seq", "vocabulary")
        return optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], tokens[:, 1:]).mean()

    return Module(loss, params, (whole(32, 4, 8),))


def _of_images(model: Any) -> Module:
    arrays, static = eqx.partition(eqx.nn.inference_mode(model), eqx.is_array)

    def apply(arrays: Any, images: Any) -> Any:
        return jax.vmap(lambda x: eqx.combine(arrays, static)(x, key=jax.random.key(0), inference=True))(images)

    return Module(apply, arrays, (array(4, 3, 8, 8),))


def _vit() -> Module:
    equimo: Any = pytest.importorskip("equimo.models.vit")
    return _of_images(equimo.VisionTransformer(8, 3, 16, 4, 4, [1], key=jax.random.key(0), num_classes=8))


def _convnext() -> Module:
    equimo: Any = pytest.importorskip("equimo.models.convnext")
    return _of_images(equimo.ConvNeXt(3, depths=[1, 1, 1, 1], dims=[8] * 4, num_classes=8, key=jax.random.key(0)))


def _graph(nodes: int, edges: int, **features: Any) -> Any:
    """The numbers of senders and receivers of a graph, and how many nodes and edges it has."""
    rng = np.random.default_rng(0)
    ends = [rng.integers(0, nodes, edges).astype(np.int32) for _ in range(2)]
    return (*ends, np.array([nodes], np.int32), np.array([edges], np.int32))


def _gcn() -> Module:
    """A network of graph convolutions, which classifies nodes."""
    senders, receivers, n, e = _graph(16, 32)

    def run(nodes: Any, senders: Any, receivers: Any) -> Any:
        graph = jraph.GraphsTuple(nodes, None, receivers, senders, None, n, e)
        graph = jraph.GraphConvolution(hk.Linear(16), add_self_edges=True)(graph)
        graph = graph._replace(nodes=jax.nn.relu(graph.nodes))
        return jraph.GraphConvolution(hk.Linear(8))(graph).nodes

    return _of_haiku(run, array(16, 8), senders, receivers)


def _graph_network() -> Module:
    """A graph network: of edges, nodes and globals, each from the others."""
    senders, receivers, n, e = _graph(16, 32)

    def run(nodes: Any, edges: Any, globals_: Any, senders: Any, receivers: Any) -> Any:
        graph = jraph.GraphsTuple(nodes, edges, receivers, senders, globals_, n, e)

        def updated(width: int) -> Any:
            return jraph.concatenated_args(lambda x: hk.nets.MLP([width, 8])(x))  # noqa: PLW0108  # made in the call

        net = jraph.GraphNetwork(updated(16), updated(16), updated(16))
        graph = net(graph)
        return graph.nodes, graph.edges, graph.globals

    inputs = (array(16, 8), array(32, 4), array(1, 4), senders, receivers)
    return _of_haiku(run, *inputs)._replace(batch=(0, 0, None, 0, 0))


def _gat() -> Module:
    """A graph attention network: a softmax over the edges of each node."""
    senders, receivers, n, e = _graph(16, 32)

    def run(nodes: Any, senders: Any, receivers: Any) -> Any:
        graph = jraph.GraphsTuple(nodes, None, receivers, senders, None, n, e)
        query, logit = hk.Linear(8), hk.Linear(1)
        net = jraph.GAT(query, lambda q, k, _: logit(jnp.concatenate([q, k], -1)), node_update_fn=jax.nn.relu)
        return net(graph).nodes

    return _of_haiku(run, array(16, 8), senders, receivers)


def _equivariant() -> Module:
    """A layer of an equivariant network: messages by spherical harmonics of where atoms lie, and gates."""

    def run(positions: Any, features: Any, senders: Any, receivers: Any) -> Any:
        vectors = e3nn.IrrepsArray("1o", positions[receivers] - positions[senders])
        x = e3nn.IrrepsArray("8x0e + 4x1o", features)
        lengths = e3nn.bessel(jnp.sqrt(jnp.sum(vectors.array**2, -1) + 1.0), 4, 8.0)
        messages = e3nn.tensor_product(x[senders], e3nn.spherical_harmonics("0e + 1o", vectors, normalize=False))
        messages = e3nn_haiku.Linear("16x0e + 8x1o")(messages)
        messages = messages * e3nn_haiku.MultiLayerPerceptron([8, 16 + 8], act=jax.nn.silu)(lengths)
        x = e3nn_haiku.Linear("12x0e + 4x1o")(e3nn.scatter_sum(messages, dst=receivers, output_size=8))
        return e3nn.gate(x).array

    senders, receivers, *_ = _graph(8, 16)
    return _of_haiku(run, array(8, 3), array(8, 20), senders, receivers)


#: Batches of which norms and averages are taken are summed in training; what edges need of nodes is gathered.
PROGRAMS: Final = {
    "haiku-ResNet": Program(_resnet, {"data": 1152, "tensor": 5143}),
    "haiku-VectorQuantizerEMA": Program(_vqvae, {"data": 155, "tensor": 284, "both": 476}),
    "haiku-transformer": Program(_haiku_transformer, {"data": 4, "tensor": 9159, "both": 11367}),
    "penzai-llama": Program(_penzai, {"data": 4, "both": 12663}),
    "equimo-VisionTransformer": Program(_vit, {"data": 4, "tensor": 10991, "both": 13583}),
    "equimo-ConvNeXt": Program(_convnext, {"data": 0}),
    "jraph-GraphConvolution": Program(_gcn, {"data": 448, "tensor": 391, "both": 1135}),
    "jraph-GraphNetwork": Program(_graph_network, {"data": 768, "tensor": 2181, "both": 4237}),
    "jraph-GAT": Program(_gat, {"data": 448, "tensor": 396, "both": 676}),
    "e3nn-gated-layer": Program(_equivariant, {"data": 358}),
}


@pytest.mark.parametrize(("name", "layout"), cases(PROGRAMS))
def test_a_network_is_that_of_one_device(name: str, layout: str) -> None:
    check(PROGRAMS[name], layout)
