"""The names of `sh.nn`, as type checkers see them. Written by `python generate/stubs.py`."""

from shtypes.namespaces import init as init
from shtypes.numerics.nn.attention import dot_product_attention as dot_product_attention
from shtypes.numerics.nn.layers import dropout as dropout
from shtypes.numerics.nn.layers import geglu as geglu
from shtypes.numerics.nn.layers import linear as linear
from shtypes.numerics.nn.layers import swiglu as swiglu
from shtypes.numerics.nn.loss import cross_entropy as cross_entropy
from shtypes.numerics.nn.norms import layer_norm as layer_norm
from shtypes.numerics.nn.norms import rms_norm as rms_norm
from shtypes.numerics.nn.rotary import rotary_embedding as rotary_embedding
from shtypes.ops.elementwise import celu as celu
from shtypes.ops.elementwise import elu as elu
from shtypes.ops.elementwise import gelu as gelu
from shtypes.ops.elementwise import hard_sigmoid as hard_sigmoid
from shtypes.ops.elementwise import hard_silu as hard_silu
from shtypes.ops.elementwise import hard_swish as hard_swish
from shtypes.ops.elementwise import hard_tanh as hard_tanh
from shtypes.ops.elementwise import leaky_relu as leaky_relu
from shtypes.ops.elementwise import log1mexp as log1mexp
from shtypes.ops.elementwise import log_sigmoid as log_sigmoid
from shtypes.ops.elementwise import mish as mish
from shtypes.ops.elementwise import relu as relu
from shtypes.ops.elementwise import relu6 as relu6
from shtypes.ops.elementwise import selu as selu
from shtypes.ops.elementwise import sigmoid as sigmoid
from shtypes.ops.elementwise import silu as silu
from shtypes.ops.elementwise import soft_sign as soft_sign
from shtypes.ops.elementwise import softplus as softplus
from shtypes.ops.elementwise import sparse_plus as sparse_plus
from shtypes.ops.elementwise import sparse_sigmoid as sparse_sigmoid
from shtypes.ops.elementwise import squareplus as squareplus
from shtypes.ops.elementwise import swish as swish
from shtypes.ops.elementwise import tanh as tanh
from shtypes.ops.functions import nn_glu as _glu
from shtypes.ops.functions import nn_log_softmax as _log_softmax
from shtypes.ops.functions import nn_logmeanexp as _logmeanexp
from shtypes.ops.functions import nn_logsumexp as _logsumexp
from shtypes.ops.functions import nn_softmax as _softmax
from shtypes.ops.functions import nn_standardize as _standardize
from shtypes.ops.lookup import embedding as embedding
from shtypes.ops.lookup import one_hot as one_hot

glu = _glu
log_softmax = _log_softmax
logmeanexp = _logmeanexp
logsumexp = _logsumexp
softmax = _softmax
standardize = _standardize
initializers = init
