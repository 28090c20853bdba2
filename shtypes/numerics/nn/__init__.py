"""`sh.nn`: the functions of `jax.nn` and the layers that models are made of, on typed values.

Nothing here communicates unless ``out=`` or an `implicit_comm` scope asks for it; each docstring says what is
sent then.
"""

from shtypes.numerics import init
from shtypes.numerics.nn.attention import dot_product_attention
from shtypes.numerics.nn.layers import dropout, geglu, glu, linear, swiglu
from shtypes.numerics.nn.loss import cross_entropy
from shtypes.numerics.nn.norms import layer_norm, rms_norm
from shtypes.numerics.nn.positions import rotary_embedding
from shtypes.ops.elementwise import (
    celu,
    elu,
    gelu,
    hard_sigmoid,
    hard_silu,
    hard_swish,
    hard_tanh,
    leaky_relu,
    log1mexp,
    log_sigmoid,
    mish,
    relu,
    relu6,
    selu,
    sigmoid,
    silu,
    soft_sign,
    softplus,
    sparse_plus,
    sparse_sigmoid,
    squareplus,
    swish,
    tanh,
)
from shtypes.ops.lookup import embedding, one_hot
from shtypes.ops.nn import log_softmax, softmax, standardize
from shtypes.ops.reduce_nonlinear import logsumexp
from shtypes.ops.statistics import logmeanexp

initializers = init

__all__ = [
    "celu", "cross_entropy", "dot_product_attention", "dropout", "elu", "embedding", "geglu", "gelu", "glu",
    "hard_sigmoid", "hard_silu", "hard_swish", "hard_tanh", "init", "initializers", "layer_norm", "leaky_relu",
    "linear", "log1mexp", "log_sigmoid", "log_softmax", "logmeanexp", "logsumexp", "mish", "one_hot", "relu",
    "relu6", "rms_norm", "rotary_embedding", "selu", "sigmoid", "silu", "soft_sign", "softmax", "softplus",
    "sparse_plus", "sparse_sigmoid", "squareplus", "standardize", "swiglu", "swish", "tanh",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
