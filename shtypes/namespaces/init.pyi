"""The names of `sh.init`, as type checkers see them. Written by `python generate/stubs.py`."""

from typing import Any

from shtypes.numerics.init import Dims, Initializer
from shtypes.numerics.init import constant as constant
from shtypes.numerics.init import delta_orthogonal as delta_orthogonal
from shtypes.numerics.init import normal as normal
from shtypes.numerics.init import ones as ones
from shtypes.numerics.init import orthogonal as orthogonal
from shtypes.numerics.init import truncated_normal as truncated_normal
from shtypes.numerics.init import uniform as uniform
from shtypes.numerics.init import variance_scaling as variance_scaling
from shtypes.numerics.init import zeros as zeros

def glorot_normal(
    in_axis: Dims = -2, out_axis: Dims = -1, batch_axis: Dims = ..., dtype: Any = None
) -> Initializer: ...
def glorot_uniform(
    in_axis: Dims = -2, out_axis: Dims = -1, batch_axis: Dims = ..., dtype: Any = None
) -> Initializer: ...
def he_normal(in_axis: Dims = -2, out_axis: Dims = -1, batch_axis: Dims = ..., dtype: Any = None) -> Initializer: ...
def he_uniform(in_axis: Dims = -2, out_axis: Dims = -1, batch_axis: Dims = ..., dtype: Any = None) -> Initializer: ...
def kaiming_normal(
    in_axis: Dims = -2, out_axis: Dims = -1, batch_axis: Dims = ..., dtype: Any = None
) -> Initializer: ...
def kaiming_uniform(
    in_axis: Dims = -2, out_axis: Dims = -1, batch_axis: Dims = ..., dtype: Any = None
) -> Initializer: ...
def lecun_normal(in_axis: Dims = -2, out_axis: Dims = -1, batch_axis: Dims = ..., dtype: Any = None) -> Initializer: ...
def lecun_uniform(
    in_axis: Dims = -2, out_axis: Dims = -1, batch_axis: Dims = ..., dtype: Any = None
) -> Initializer: ...
def xavier_normal(
    in_axis: Dims = -2, out_axis: Dims = -1, batch_axis: Dims = ..., dtype: Any = None
) -> Initializer: ...
def xavier_uniform(
    in_axis: Dims = -2, out_axis: Dims = -1, batch_axis: Dims = ..., dtype: Any = None
) -> Initializer: ...
