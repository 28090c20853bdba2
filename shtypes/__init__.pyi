"""The public names, as type checkers see them. Written by `python generate/stubs.py`."""

from typing import Any

from jax import eval_shape as eval_shape
from jax import make_jaxpr as make_jaxpr

from shtypes.analysis.check import Signature as Signature
from shtypes.analysis.check import assert_comm as assert_comm
from shtypes.analysis.check import check as check
from shtypes.analysis.compare import Comparison as Comparison
from shtypes.analysis.compare import compare as compare
from shtypes.analysis.compute import Compute as Compute
from shtypes.analysis.compute import compute as compute
from shtypes.analysis.explain.explanation import Explanation as Explanation
from shtypes.analysis.explain.explanation import explain as explain
from shtypes.analysis.explain_reshard import Resharding as Resharding
from shtypes.analysis.explain_reshard import ReshardPrice as ReshardPrice
from shtypes.analysis.explain_reshard import explain_reshard as explain_reshard
from shtypes.analysis.explain_reshard import price as price
from shtypes.analysis.memory import Memory as Memory
from shtypes.analysis.memory import memory as memory
from shtypes.analysis.visualize import Picture as Picture
from shtypes.analysis.visualize import visualize as visualize
from shtypes.autodiff.checkpoint import checkpoint as checkpoint
from shtypes.autodiff.checkpoint import checkpoint_name as checkpoint_name
from shtypes.autodiff.checkpoint import checkpoint_policies as checkpoint_policies
from shtypes.autodiff.custom import custom_vjp as custom_vjp
from shtypes.autodiff.grad import grad as grad
from shtypes.autodiff.grad import jvp as jvp
from shtypes.autodiff.grad import linearize as linearize
from shtypes.autodiff.grad import value_and_grad as value_and_grad
from shtypes.autodiff.grad import vjp as vjp
from shtypes.autodiff.jacobian import hessian as hessian
from shtypes.autodiff.jacobian import jacfwd as jacfwd
from shtypes.autodiff.jacobian import jacrev as jacrev
from shtypes.autodiff.train_step import train_step as train_step
from shtypes.control.branches import cond as cond
from shtypes.control.branches import switch as switch
from shtypes.control.loops import fori_loop as fori_loop
from shtypes.control.loops import map_ as _map
from shtypes.control.loops import scan as scan
from shtypes.control.loops import while_loop as while_loop
from shtypes.control.vmap import vmap as vmap
from shtypes.core.array import Array as Array
from shtypes.core.array import ArrayLike
from shtypes.core.checks import debug_checks as debug_checks
from shtypes.core.checks import set_debug_checks as set_debug_checks
from shtypes.core.conversion import abstract_array as abstract_array
from shtypes.core.conversion import array as array
from shtypes.core.conversion import from_jax as from_jax
from shtypes.core.conversion import to_jax as to_jax
from shtypes.core.conversion import typeof as typeof
from shtypes.core.meshes import abstract_mesh as abstract_mesh
from shtypes.core.meshes import make_mesh as make_mesh
from shtypes.core.meshes import set_mesh as set_mesh
from shtypes.core.meshes import use_mesh as use_mesh
from shtypes.core.processes import addressable_slices as addressable_slices
from shtypes.core.processes import array_from_process as array_from_process
from shtypes.dispatch.reshard import all_gather as all_gather
from shtypes.dispatch.reshard import all_reduce as all_reduce
from shtypes.dispatch.reshard import all_to_all as all_to_all
from shtypes.dispatch.reshard import reduce_scatter as reduce_scatter
from shtypes.dispatch.reshard import reshard as reshard
from shtypes.dispatch.reshard import shard as shard
from shtypes.errors import Fix as Fix
from shtypes.errors import ShardingTypeError as ShardingTypeError
from shtypes.lifting.lift import lift as lift
from shtypes.local_mode.local_map import local_map as local_map
from shtypes.local_mode.shard_map import shard_map as shard_map
from shtypes.namespaces import debug as debug
from shtypes.namespaces import fft as fft
from shtypes.namespaces import init as init
from shtypes.namespaces import lax as lax
from shtypes.namespaces import linalg as linalg
from shtypes.namespaces import nn as nn
from shtypes.namespaces import optim as optim
from shtypes.namespaces import random as random
from shtypes.namespaces import tree as tree
from shtypes.ops.arithmetic import add as add
from shtypes.ops.arithmetic import astype as astype
from shtypes.ops.arithmetic import clip as clip
from shtypes.ops.arithmetic import divide as _true_divide
from shtypes.ops.arithmetic import divide as divide
from shtypes.ops.arithmetic import multiply as multiply
from shtypes.ops.arithmetic import negative as _neg
from shtypes.ops.arithmetic import negative as negative
from shtypes.ops.arithmetic import positive as positive
from shtypes.ops.arithmetic import power as _pow
from shtypes.ops.arithmetic import power as power
from shtypes.ops.arithmetic import subtract as _sub
from shtypes.ops.arithmetic import subtract as subtract
from shtypes.ops.create import arange as arange
from shtypes.ops.create import asarray as asarray
from shtypes.ops.create import copy as copy
from shtypes.ops.create import empty_like as empty_like
from shtypes.ops.create import full as full
from shtypes.ops.create import full_like as full_like
from shtypes.ops.create import ones as ones
from shtypes.ops.create import ones_like as ones_like
from shtypes.ops.create import zeros as _empty
from shtypes.ops.create import zeros as zeros
from shtypes.ops.create import zeros_like as zeros_like
from shtypes.ops.describe import bfloat16 as bfloat16
from shtypes.ops.describe import bool_ as bool_
from shtypes.ops.describe import broadcast_shapes as broadcast_shapes
from shtypes.ops.describe import can_cast as can_cast
from shtypes.ops.describe import complex64 as complex64
from shtypes.ops.describe import complex128 as complex128
from shtypes.ops.describe import complexfloating as complexfloating
from shtypes.ops.describe import e as e
from shtypes.ops.describe import finfo as finfo
from shtypes.ops.describe import float16 as float16
from shtypes.ops.describe import float32 as float32
from shtypes.ops.describe import float64 as float64
from shtypes.ops.describe import floating as floating
from shtypes.ops.describe import iinfo as iinfo
from shtypes.ops.describe import inexact as inexact
from shtypes.ops.describe import inf as inf
from shtypes.ops.describe import int8 as int8
from shtypes.ops.describe import int16 as int16
from shtypes.ops.describe import int32 as int32
from shtypes.ops.describe import int64 as int64
from shtypes.ops.describe import integer as integer
from shtypes.ops.describe import iscomplexobj as iscomplexobj
from shtypes.ops.describe import isdtype as isdtype
from shtypes.ops.describe import isrealobj as isrealobj
from shtypes.ops.describe import isscalar as isscalar
from shtypes.ops.describe import issubdtype as issubdtype
from shtypes.ops.describe import nan as nan
from shtypes.ops.describe import ndim as ndim
from shtypes.ops.describe import newaxis as newaxis
from shtypes.ops.describe import number as number
from shtypes.ops.describe import pi as pi
from shtypes.ops.describe import promote_types as promote_types
from shtypes.ops.describe import result_type as result_type
from shtypes.ops.describe import shape as shape
from shtypes.ops.describe import signedinteger as signedinteger
from shtypes.ops.describe import size as size
from shtypes.ops.describe import uint8 as uint8
from shtypes.ops.describe import uint16 as uint16
from shtypes.ops.describe import uint32 as uint32
from shtypes.ops.describe import uint64 as uint64
from shtypes.ops.describe import unsignedinteger as unsignedinteger
from shtypes.ops.einsum import dot as dot
from shtypes.ops.einsum import einsum as einsum
from shtypes.ops.einsum import inner as inner
from shtypes.ops.einsum import matmul as matmul
from shtypes.ops.einsum import tensordot as tensordot
from shtypes.ops.elementwise import abs as _absolute
from shtypes.ops.elementwise import abs as abs
from shtypes.ops.elementwise import angle as angle
from shtypes.ops.elementwise import arccos as _acos
from shtypes.ops.elementwise import arccos as arccos
from shtypes.ops.elementwise import arccosh as _acosh
from shtypes.ops.elementwise import arccosh as arccosh
from shtypes.ops.elementwise import arcsin as _asin
from shtypes.ops.elementwise import arcsin as arcsin
from shtypes.ops.elementwise import arcsinh as _asinh
from shtypes.ops.elementwise import arcsinh as arcsinh
from shtypes.ops.elementwise import arctan as _atan
from shtypes.ops.elementwise import arctan as arctan
from shtypes.ops.elementwise import arctan2 as _atan2
from shtypes.ops.elementwise import arctan2 as arctan2
from shtypes.ops.elementwise import arctanh as _atanh
from shtypes.ops.elementwise import arctanh as arctanh
from shtypes.ops.elementwise import beta as beta
from shtypes.ops.elementwise import betainc as betainc
from shtypes.ops.elementwise import betaln as betaln
from shtypes.ops.elementwise import bitwise_and as bitwise_and
from shtypes.ops.elementwise import bitwise_count as bitwise_count
from shtypes.ops.elementwise import bitwise_not as _bitwise_invert
from shtypes.ops.elementwise import bitwise_not as _invert
from shtypes.ops.elementwise import bitwise_not as bitwise_not
from shtypes.ops.elementwise import bitwise_or as bitwise_or
from shtypes.ops.elementwise import bitwise_xor as bitwise_xor
from shtypes.ops.elementwise import cbrt as cbrt
from shtypes.ops.elementwise import ceil as ceil
from shtypes.ops.elementwise import celu as celu
from shtypes.ops.elementwise import clz as clz
from shtypes.ops.elementwise import copysign as copysign
from shtypes.ops.elementwise import cos as cos
from shtypes.ops.elementwise import cosh as cosh
from shtypes.ops.elementwise import deg2rad as _radians
from shtypes.ops.elementwise import deg2rad as deg2rad
from shtypes.ops.elementwise import digamma as digamma
from shtypes.ops.elementwise import elu as elu
from shtypes.ops.elementwise import entr as entr
from shtypes.ops.elementwise import equal as _eq
from shtypes.ops.elementwise import equal as equal
from shtypes.ops.elementwise import erf as erf
from shtypes.ops.elementwise import erfc as erfc
from shtypes.ops.elementwise import erfinv as _erf_inv
from shtypes.ops.elementwise import erfinv as erfinv
from shtypes.ops.elementwise import exp as exp
from shtypes.ops.elementwise import exp1 as exp1
from shtypes.ops.elementwise import exp2 as exp2
from shtypes.ops.elementwise import expi as expi
from shtypes.ops.elementwise import expit as expit
from shtypes.ops.elementwise import expm1 as expm1
from shtypes.ops.elementwise import expn as expn
from shtypes.ops.elementwise import fabs as fabs
from shtypes.ops.elementwise import factorial as factorial
from shtypes.ops.elementwise import float_power as float_power
from shtypes.ops.elementwise import floor as floor
from shtypes.ops.elementwise import floor_divide as floor_divide
from shtypes.ops.elementwise import fmax as fmax
from shtypes.ops.elementwise import fmin as fmin
from shtypes.ops.elementwise import fmod as fmod
from shtypes.ops.elementwise import gamma as gamma
from shtypes.ops.elementwise import gammainc as _igamma
from shtypes.ops.elementwise import gammainc as gammainc
from shtypes.ops.elementwise import gammaincc as _igammac
from shtypes.ops.elementwise import gammaincc as gammaincc
from shtypes.ops.elementwise import gammaln as _lgamma
from shtypes.ops.elementwise import gammaln as gammaln
from shtypes.ops.elementwise import gammasgn as gammasgn
from shtypes.ops.elementwise import gcd as gcd
from shtypes.ops.elementwise import gelu as gelu
from shtypes.ops.elementwise import greater as _gt
from shtypes.ops.elementwise import greater as greater
from shtypes.ops.elementwise import greater_equal as _ge
from shtypes.ops.elementwise import greater_equal as greater_equal
from shtypes.ops.elementwise import hard_sigmoid as hard_sigmoid
from shtypes.ops.elementwise import hard_silu as hard_silu
from shtypes.ops.elementwise import hard_swish as hard_swish
from shtypes.ops.elementwise import hard_tanh as hard_tanh
from shtypes.ops.elementwise import heaviside as heaviside
from shtypes.ops.elementwise import hyp1f1 as hyp1f1
from shtypes.ops.elementwise import hypot as hypot
from shtypes.ops.elementwise import i0 as i0
from shtypes.ops.elementwise import i0e as _bessel_i0e
from shtypes.ops.elementwise import i0e as i0e
from shtypes.ops.elementwise import i1 as i1
from shtypes.ops.elementwise import i1e as _bessel_i1e
from shtypes.ops.elementwise import i1e as i1e
from shtypes.ops.elementwise import igamma_grad_a as igamma_grad_a
from shtypes.ops.elementwise import isclose as isclose
from shtypes.ops.elementwise import iscomplex as iscomplex
from shtypes.ops.elementwise import isfinite as _is_finite
from shtypes.ops.elementwise import isfinite as isfinite
from shtypes.ops.elementwise import isinf as isinf
from shtypes.ops.elementwise import isnan as isnan
from shtypes.ops.elementwise import isneginf as isneginf
from shtypes.ops.elementwise import isposinf as isposinf
from shtypes.ops.elementwise import isreal as isreal
from shtypes.ops.elementwise import kl_div as kl_div
from shtypes.ops.elementwise import lcm as lcm
from shtypes.ops.elementwise import ldexp as ldexp
from shtypes.ops.elementwise import leaky_relu as leaky_relu
from shtypes.ops.elementwise import left_shift as _bitwise_left_shift
from shtypes.ops.elementwise import left_shift as _shift_left
from shtypes.ops.elementwise import left_shift as left_shift
from shtypes.ops.elementwise import less as _lt
from shtypes.ops.elementwise import less as less
from shtypes.ops.elementwise import less_equal as _le
from shtypes.ops.elementwise import less_equal as less_equal
from shtypes.ops.elementwise import log as log
from shtypes.ops.elementwise import log1mexp as log1mexp
from shtypes.ops.elementwise import log1p as log1p
from shtypes.ops.elementwise import log2 as log2
from shtypes.ops.elementwise import log10 as log10
from shtypes.ops.elementwise import log_ndtr as log_ndtr
from shtypes.ops.elementwise import log_sigmoid as log_sigmoid
from shtypes.ops.elementwise import logaddexp as logaddexp
from shtypes.ops.elementwise import logaddexp2 as logaddexp2
from shtypes.ops.elementwise import logical_and as logical_and
from shtypes.ops.elementwise import logical_not as logical_not
from shtypes.ops.elementwise import logical_or as logical_or
from shtypes.ops.elementwise import logical_xor as logical_xor
from shtypes.ops.elementwise import logistic as logistic
from shtypes.ops.elementwise import logit as logit
from shtypes.ops.elementwise import maximum as maximum
from shtypes.ops.elementwise import minimum as minimum
from shtypes.ops.elementwise import mish as mish
from shtypes.ops.elementwise import mod as mod
from shtypes.ops.elementwise import multigammaln as multigammaln
from shtypes.ops.elementwise import nan_to_num as nan_to_num
from shtypes.ops.elementwise import ndtr as ndtr
from shtypes.ops.elementwise import ndtri as ndtri
from shtypes.ops.elementwise import nextafter as nextafter
from shtypes.ops.elementwise import not_equal as _ne
from shtypes.ops.elementwise import not_equal as not_equal
from shtypes.ops.elementwise import poch as poch
from shtypes.ops.elementwise import polygamma as polygamma
from shtypes.ops.elementwise import population_count as population_count
from shtypes.ops.elementwise import rad2deg as _degrees
from shtypes.ops.elementwise import rad2deg as rad2deg
from shtypes.ops.elementwise import random_gamma_grad as random_gamma_grad
from shtypes.ops.elementwise import reciprocal as reciprocal
from shtypes.ops.elementwise import reduce_precision as reduce_precision
from shtypes.ops.elementwise import rel_entr as rel_entr
from shtypes.ops.elementwise import relu as relu
from shtypes.ops.elementwise import relu6 as relu6
from shtypes.ops.elementwise import rem as rem
from shtypes.ops.elementwise import remainder as remainder
from shtypes.ops.elementwise import right_shift as _bitwise_right_shift
from shtypes.ops.elementwise import right_shift as right_shift
from shtypes.ops.elementwise import rint as rint
from shtypes.ops.elementwise import round as _around
from shtypes.ops.elementwise import round as round
from shtypes.ops.elementwise import rsqrt as rsqrt
from shtypes.ops.elementwise import selu as selu
from shtypes.ops.elementwise import shift_right_arithmetic as shift_right_arithmetic
from shtypes.ops.elementwise import shift_right_logical as shift_right_logical
from shtypes.ops.elementwise import sigmoid as sigmoid
from shtypes.ops.elementwise import sign as sign
from shtypes.ops.elementwise import signbit as signbit
from shtypes.ops.elementwise import silu as silu
from shtypes.ops.elementwise import sin as sin
from shtypes.ops.elementwise import sinc as sinc
from shtypes.ops.elementwise import sinh as sinh
from shtypes.ops.elementwise import soft_sign as soft_sign
from shtypes.ops.elementwise import softplus as softplus
from shtypes.ops.elementwise import spacing as spacing
from shtypes.ops.elementwise import sparse_plus as sparse_plus
from shtypes.ops.elementwise import sparse_sigmoid as sparse_sigmoid
from shtypes.ops.elementwise import spence as spence
from shtypes.ops.elementwise import sqrt as sqrt
from shtypes.ops.elementwise import square as square
from shtypes.ops.elementwise import squareplus as squareplus
from shtypes.ops.elementwise import swish as swish
from shtypes.ops.elementwise import tan as tan
from shtypes.ops.elementwise import tanh as tanh
from shtypes.ops.elementwise import trunc as trunc
from shtypes.ops.elementwise import xlog1py as xlog1py
from shtypes.ops.elementwise import xlogy as xlogy
from shtypes.ops.elementwise import zeta as zeta
from shtypes.ops.functions import all as all
from shtypes.ops.functions import allclose as allclose
from shtypes.ops.functions import amax as amax
from shtypes.ops.functions import amin as amin
from shtypes.ops.functions import any as any
from shtypes.ops.functions import append as append
from shtypes.ops.functions import apply_along_axis as apply_along_axis
from shtypes.ops.functions import apply_over_axes as apply_over_axes
from shtypes.ops.functions import approx_max_k as approx_max_k
from shtypes.ops.functions import approx_min_k as approx_min_k
from shtypes.ops.functions import argmax as argmax
from shtypes.ops.functions import argmin as argmin
from shtypes.ops.functions import argpartition as argpartition
from shtypes.ops.functions import argsort as argsort
from shtypes.ops.functions import argwhere as argwhere
from shtypes.ops.functions import array_equal as array_equal
from shtypes.ops.functions import array_equiv as array_equiv
from shtypes.ops.functions import array_split as array_split
from shtypes.ops.functions import associative_scan as associative_scan
from shtypes.ops.functions import atleast_1d as atleast_1d
from shtypes.ops.functions import atleast_2d as atleast_2d
from shtypes.ops.functions import atleast_3d as atleast_3d
from shtypes.ops.functions import average as average
from shtypes.ops.functions import batch_matmul as batch_matmul
from shtypes.ops.functions import bernoulli as bernoulli
from shtypes.ops.functions import bessel_jn as bessel_jn
from shtypes.ops.functions import bincount as bincount
from shtypes.ops.functions import bitcast_convert_type as bitcast_convert_type
from shtypes.ops.functions import block as block
from shtypes.ops.functions import boxcox as boxcox
from shtypes.ops.functions import boxcox1p as boxcox1p
from shtypes.ops.functions import broadcast as broadcast
from shtypes.ops.functions import broadcast_arrays as broadcast_arrays
from shtypes.ops.functions import broadcast_in_dim as broadcast_in_dim
from shtypes.ops.functions import broadcast_like as broadcast_like
from shtypes.ops.functions import broadcast_to as broadcast_to
from shtypes.ops.functions import broadcast_to_rank as broadcast_to_rank
from shtypes.ops.functions import choose as choose
from shtypes.ops.functions import clamp as clamp
from shtypes.ops.functions import collapse as collapse
from shtypes.ops.functions import column_stack as column_stack
from shtypes.ops.functions import comb as comb
from shtypes.ops.functions import complex as complex
from shtypes.ops.functions import compress as compress
from shtypes.ops.functions import concat as concat
from shtypes.ops.functions import concatenate as concatenate
from shtypes.ops.functions import conj as conj
from shtypes.ops.functions import conjugate as conjugate
from shtypes.ops.functions import conv as conv
from shtypes.ops.functions import conv_general_dilated as conv_general_dilated
from shtypes.ops.functions import conv_general_dilated_local as conv_general_dilated_local
from shtypes.ops.functions import conv_general_dilated_patches as conv_general_dilated_patches
from shtypes.ops.functions import conv_transpose as conv_transpose
from shtypes.ops.functions import conv_with_general_padding as conv_with_general_padding
from shtypes.ops.functions import convert_element_type as convert_element_type
from shtypes.ops.functions import convolve as convolve
from shtypes.ops.functions import corrcoef as corrcoef
from shtypes.ops.functions import correlate as correlate
from shtypes.ops.functions import count_nonzero as count_nonzero
from shtypes.ops.functions import cov as cov
from shtypes.ops.functions import cross as cross
from shtypes.ops.functions import cumlogsumexp as cumlogsumexp
from shtypes.ops.functions import cummax as cummax
from shtypes.ops.functions import cummin as cummin
from shtypes.ops.functions import cumprod as cumprod
from shtypes.ops.functions import cumsum as cumsum
from shtypes.ops.functions import cumulative_prod as cumulative_prod
from shtypes.ops.functions import cumulative_sum as cumulative_sum
from shtypes.ops.functions import custom_linear_solve as custom_linear_solve
from shtypes.ops.functions import custom_root as custom_root
from shtypes.ops.functions import dawsn as dawsn
from shtypes.ops.functions import delete as delete
from shtypes.ops.functions import diag as diag
from shtypes.ops.functions import diagflat as diagflat
from shtypes.ops.functions import diagonal as diagonal
from shtypes.ops.functions import diff as diff
from shtypes.ops.functions import digitize as digitize
from shtypes.ops.functions import div as div
from shtypes.ops.functions import divmod as divmod
from shtypes.ops.functions import dot_general as dot_general
from shtypes.ops.functions import dsplit as dsplit
from shtypes.ops.functions import dstack as dstack
from shtypes.ops.functions import dynamic_index_in_dim as dynamic_index_in_dim
from shtypes.ops.functions import dynamic_slice as dynamic_slice
from shtypes.ops.functions import dynamic_slice_in_dim as dynamic_slice_in_dim
from shtypes.ops.functions import dynamic_update_index_in_dim as dynamic_update_index_in_dim
from shtypes.ops.functions import dynamic_update_slice as dynamic_update_slice
from shtypes.ops.functions import dynamic_update_slice_in_dim as dynamic_update_slice_in_dim
from shtypes.ops.functions import ediff1d as ediff1d
from shtypes.ops.functions import erfcinv as erfcinv
from shtypes.ops.functions import erfcx as erfcx
from shtypes.ops.functions import expand_dims as expand_dims
from shtypes.ops.functions import extract as extract
from shtypes.ops.functions import fill_diagonal as fill_diagonal
from shtypes.ops.functions import flatnonzero as flatnonzero
from shtypes.ops.functions import flip as flip
from shtypes.ops.functions import fliplr as fliplr
from shtypes.ops.functions import flipud as flipud
from shtypes.ops.functions import fresnel as fresnel
from shtypes.ops.functions import frexp as frexp
from shtypes.ops.functions import fromfunction as fromfunction
from shtypes.ops.functions import gather as gather
from shtypes.ops.functions import gradient as gradient
from shtypes.ops.functions import histogram as histogram
from shtypes.ops.functions import histogram2d as histogram2d
from shtypes.ops.functions import histogram_bin_edges as histogram_bin_edges
from shtypes.ops.functions import histogramdd as histogramdd
from shtypes.ops.functions import hsplit as hsplit
from shtypes.ops.functions import hstack as hstack
from shtypes.ops.functions import hyp2f1 as hyp2f1
from shtypes.ops.functions import imag as imag
from shtypes.ops.functions import index_in_dim as index_in_dim
from shtypes.ops.functions import index_take as index_take
from shtypes.ops.functions import insert as insert
from shtypes.ops.functions import integer_pow as integer_pow
from shtypes.ops.functions import interp as interp
from shtypes.ops.functions import intersect1d as intersect1d
from shtypes.ops.functions import isin as isin
from shtypes.ops.functions import ix_ as ix_
from shtypes.ops.functions import kron as kron
from shtypes.ops.functions import lexsort as lexsort
from shtypes.ops.functions import log_softmax as log_softmax
from shtypes.ops.functions import loggamma as loggamma
from shtypes.ops.functions import logmeanexp as logmeanexp
from shtypes.ops.functions import logsumexp as logsumexp
from shtypes.ops.functions import mask_indices as mask_indices
from shtypes.ops.functions import matrix_transpose as matrix_transpose
from shtypes.ops.functions import max as max
from shtypes.ops.functions import mean as mean
from shtypes.ops.functions import median as median
from shtypes.ops.functions import min as min
from shtypes.ops.functions import minmax as minmax
from shtypes.ops.functions import modf as modf
from shtypes.ops.functions import moveaxis as moveaxis
from shtypes.ops.functions import mul as mul
from shtypes.ops.functions import nanargmax as nanargmax
from shtypes.ops.functions import nanargmin as nanargmin
from shtypes.ops.functions import nancumprod as nancumprod
from shtypes.ops.functions import nancumsum as nancumsum
from shtypes.ops.functions import nanmax as nanmax
from shtypes.ops.functions import nanmean as nanmean
from shtypes.ops.functions import nanmedian as nanmedian
from shtypes.ops.functions import nanmin as nanmin
from shtypes.ops.functions import nanpercentile as nanpercentile
from shtypes.ops.functions import nanprod as nanprod
from shtypes.ops.functions import nanquantile as nanquantile
from shtypes.ops.functions import nanstd as nanstd
from shtypes.ops.functions import nansum as nansum
from shtypes.ops.functions import nanvar as nanvar
from shtypes.ops.functions import nonzero as nonzero
from shtypes.ops.functions import one_minus_square as one_minus_square
from shtypes.ops.functions import optimization_barrier as optimization_barrier
from shtypes.ops.functions import owens_t as owens_t
from shtypes.ops.functions import packbits as packbits
from shtypes.ops.functions import pad as pad
from shtypes.ops.functions import partition as partition
from shtypes.ops.functions import percentile as percentile
from shtypes.ops.functions import permute_dims as permute_dims
from shtypes.ops.functions import piecewise as piecewise
from shtypes.ops.functions import place as place
from shtypes.ops.functions import poly as poly
from shtypes.ops.functions import polyadd as polyadd
from shtypes.ops.functions import polyder as polyder
from shtypes.ops.functions import polydiv as polydiv
from shtypes.ops.functions import polyfit as polyfit
from shtypes.ops.functions import polyint as polyint
from shtypes.ops.functions import polymul as polymul
from shtypes.ops.functions import polynomial as polynomial
from shtypes.ops.functions import polysub as polysub
from shtypes.ops.functions import polyval as polyval
from shtypes.ops.functions import prod as prod
from shtypes.ops.functions import ptp as ptp
from shtypes.ops.functions import put as put
from shtypes.ops.functions import put_along_axis as put_along_axis
from shtypes.ops.functions import quantile as quantile
from shtypes.ops.functions import ragged_dot as ragged_dot
from shtypes.ops.functions import ragged_dot_general as ragged_dot_general
from shtypes.ops.functions import ravel as ravel
from shtypes.ops.functions import ravel_multi_index as ravel_multi_index
from shtypes.ops.functions import real as real
from shtypes.ops.functions import reduce as reduce
from shtypes.ops.functions import reduce_and as reduce_and
from shtypes.ops.functions import reduce_max as reduce_max
from shtypes.ops.functions import reduce_min as reduce_min
from shtypes.ops.functions import reduce_or as reduce_or
from shtypes.ops.functions import reduce_prod as reduce_prod
from shtypes.ops.functions import reduce_sum as reduce_sum
from shtypes.ops.functions import reduce_window as reduce_window
from shtypes.ops.functions import reduce_xor as reduce_xor
from shtypes.ops.functions import repeat as repeat
from shtypes.ops.functions import reshape as reshape
from shtypes.ops.functions import resize as resize
from shtypes.ops.functions import rev as rev
from shtypes.ops.functions import roll as roll
from shtypes.ops.functions import rollaxis as rollaxis
from shtypes.ops.functions import roots as roots
from shtypes.ops.functions import rot90 as rot90
from shtypes.ops.functions import scatter as scatter
from shtypes.ops.functions import scatter_add as scatter_add
from shtypes.ops.functions import scatter_apply as scatter_apply
from shtypes.ops.functions import scatter_max as scatter_max
from shtypes.ops.functions import scatter_min as scatter_min
from shtypes.ops.functions import scatter_mul as scatter_mul
from shtypes.ops.functions import scatter_sub as scatter_sub
from shtypes.ops.functions import searchsorted as searchsorted
from shtypes.ops.functions import segment_max as segment_max
from shtypes.ops.functions import segment_min as segment_min
from shtypes.ops.functions import segment_prod as segment_prod
from shtypes.ops.functions import select as select
from shtypes.ops.functions import select_n as select_n
from shtypes.ops.functions import setdiff1d as setdiff1d
from shtypes.ops.functions import setxor1d as setxor1d
from shtypes.ops.functions import sici as sici
from shtypes.ops.functions import slice as slice
from shtypes.ops.functions import slice_in_dim as slice_in_dim
from shtypes.ops.functions import softmax as softmax
from shtypes.ops.functions import sort as sort
from shtypes.ops.functions import sort_complex as sort_complex
from shtypes.ops.functions import sort_key_val as sort_key_val
from shtypes.ops.functions import sph_harm_y as sph_harm_y
from shtypes.ops.functions import split as split
from shtypes.ops.functions import squeeze as squeeze
from shtypes.ops.functions import stack as stack
from shtypes.ops.functions import standardize as standardize
from shtypes.ops.functions import std as std
from shtypes.ops.functions import sum as sum
from shtypes.ops.functions import swapaxes as swapaxes
from shtypes.ops.functions import take as take
from shtypes.ops.functions import take_along_axis as take_along_axis
from shtypes.ops.functions import tile as tile
from shtypes.ops.functions import top_k as top_k
from shtypes.ops.functions import trace as trace
from shtypes.ops.functions import transpose as transpose
from shtypes.ops.functions import trapezoid as trapezoid
from shtypes.ops.functions import tril as tril
from shtypes.ops.functions import triu as triu
from shtypes.ops.functions import union1d as union1d
from shtypes.ops.functions import unique as unique
from shtypes.ops.functions import unique_all as unique_all
from shtypes.ops.functions import unique_counts as unique_counts
from shtypes.ops.functions import unique_inverse as unique_inverse
from shtypes.ops.functions import unique_values as unique_values
from shtypes.ops.functions import unpackbits as unpackbits
from shtypes.ops.functions import unravel_index as unravel_index
from shtypes.ops.functions import unstack as unstack
from shtypes.ops.functions import unwrap as unwrap
from shtypes.ops.functions import vander as vander
from shtypes.ops.functions import var as var
from shtypes.ops.functions import vsplit as vsplit
from shtypes.ops.functions import vstack as vstack
from shtypes.ops.functions import where as where
from shtypes.ops.functions import wofz as wofz
from shtypes.ops.lookup import embedding as embedding
from shtypes.ops.lookup import one_hot as one_hot
from shtypes.ops.lookup import segment_sum as segment_sum
from shtypes.ops.ranges import broadcasted_iota as broadcasted_iota
from shtypes.ops.ranges import diag_indices_from as diag_indices_from
from shtypes.ops.ranges import eye as eye
from shtypes.ops.ranges import geomspace as geomspace
from shtypes.ops.ranges import identity as identity
from shtypes.ops.ranges import indices as indices
from shtypes.ops.ranges import iota as iota
from shtypes.ops.ranges import linspace as linspace
from shtypes.ops.ranges import logspace as logspace
from shtypes.ops.ranges import meshgrid as meshgrid
from shtypes.ops.ranges import tri as tri
from shtypes.ops.ranges import tril_indices_from as tril_indices_from
from shtypes.ops.ranges import triu_indices_from as triu_indices_from
from shtypes.ops.reinterpret import constant as constant
from shtypes.ops.reinterpret import reinterpret as reinterpret
from shtypes.ops.reinterpret import stop_gradient as stop_gradient
from shtypes.programs.jit import jit as jit
from shtypes.programs.jit import set_region as set_region
from shtypes.resharding.costs import CostModel as CostModel
from shtypes.resharding.costs import Link as Link
from shtypes.resharding.costs import cost_model as cost_model
from shtypes.resharding.costs import use_cost_model as use_cost_model
from shtypes.resharding.devices import Device as Device
from shtypes.scopes.comm import comm_budget as comm_budget
from shtypes.scopes.comm import implicit_comm as implicit_comm
from shtypes.scopes.comm import no_comm as no_comm
from shtypes.signatures.typed import typed as typed
from shtypes.suggestions.suggest import apply as apply
from shtypes.suggestions.suggest import suggest as suggest
from shtypes.traced.ledger import Ledger as Ledger
from shtypes.traced.ledger import ledger as ledger
from shtypes.traced.merging import merge_reshards as merge_reshards
from shtypes.training.batches import prefetch_to_device as prefetch_to_device
from shtypes.types import Dim as Dim
from shtypes.types import ShType as ShType
from shtypes.types import State as State
from shtypes.types.notation.dim_names import dim_axes as dim_axes
from shtypes.types.notation.dim_names import dims as dims
from shtypes.types.policy import current_policy as current_policy
from shtypes.types.policy import policy as policy
from shtypes.types.policy import set_policy as set_policy

absolute = _absolute
acos = _acos
acosh = _acosh
around = _around
asin = _asin
asinh = _asinh
atan = _atan
atan2 = _atan2
atanh = _atanh
bessel_i0e = _bessel_i0e
bessel_i1e = _bessel_i1e
bitwise_invert = _bitwise_invert
bitwise_left_shift = _bitwise_left_shift
bitwise_right_shift = _bitwise_right_shift
degrees = _degrees
empty = _empty
eq = _eq
erf_inv = _erf_inv
ge = _ge
gt = _gt
igamma = _igamma
igammac = _igammac
invert = _invert
is_finite = _is_finite
le = _le
lgamma = _lgamma
lt = _lt
map = _map
ne = _ne
neg = _neg
pow = _pow
radians = _radians
shift_left = _shift_left
sub = _sub
true_divide = _true_divide

def bartlett(M: Any) -> Array: ...
def blackman(M: Any) -> Array: ...
def diag_indices(n: Any, ndim: int = 2) -> tuple[Array, ...]: ...
def hamming(M: Any) -> Array: ...
def hanning(M: Any) -> Array: ...
def kaiser(M: Any, beta: Any) -> Array: ...
def matvec(
    x1: ArrayLike,
    x2: ArrayLike,
    /,
    *,
    out: Any = None,
    overlap: bool = False,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Array: ...
def outer(
    a: ArrayLike,
    b: ArrayLike,
    *,
    out: Any = None,
    overlap: bool = False,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Array: ...
def tril_indices(n: Any, k: int = 0, m: Any = None) -> tuple[Array, Array]: ...
def triu_indices(n: Any, k: int = 0, m: Any = None) -> tuple[Array, Array]: ...
def vdot(
    a: ArrayLike,
    b: ArrayLike,
    *,
    out: Any = None,
    overlap: bool = False,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Array: ...
def vecdot(
    x1: ArrayLike,
    x2: ArrayLike,
    /,
    *,
    axis: int = -1,
    out: Any = None,
    overlap: bool = False,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Array: ...
def vecmat(
    x1: ArrayLike,
    x2: ArrayLike,
    /,
    *,
    out: Any = None,
    overlap: bool = False,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Array: ...

__version__: str
