"""The JAX half of the public surface in one place; `shtypes` loads it when one of its names is first used."""

from types import FunctionType as _FunctionType

from jax import eval_shape as eval_shape  # these two of JAX's own take typed values as they are
from jax import make_jaxpr as make_jaxpr
from jax.extend import source_info_util

from shtypes import debug as debug
from shtypes import init as init
from shtypes import jax_context as jax_context
from shtypes import lax as lax
from shtypes import nn as nn
from shtypes import random as random
from shtypes import tree as tree
from shtypes.analysis.assertions import assert_comm as assert_comm
from shtypes.analysis.check import Signature as Signature
from shtypes.analysis.check import check as check
from shtypes.analysis.compare.compare import compare as compare
from shtypes.analysis.compare.report import Comparison as Comparison
from shtypes.analysis.costs import CostModel as CostModel
from shtypes.analysis.costs import Link as Link
from shtypes.analysis.costs import cost_model as cost_model
from shtypes.analysis.explain.explanation import Explanation as Explanation
from shtypes.analysis.explain.explanation import explain as explain
from shtypes.analysis.ledger import Ledger as Ledger
from shtypes.analysis.ledger import ledger as ledger
from shtypes.analysis.picture.visualize import Picture as Picture
from shtypes.analysis.picture.visualize import visualize as visualize
from shtypes.analysis.scopes import comm_budget as comm_budget
from shtypes.analysis.scopes import implicit_comm as implicit_comm
from shtypes.analysis.scopes import no_comm as no_comm
from shtypes.array import Array as Array
from shtypes.array import abstract_array as abstract_array
from shtypes.array import array as array
from shtypes.array import from_jax as from_jax
from shtypes.array import to_jax as to_jax
from shtypes.array import typeof as typeof
from shtypes.autodiff.custom import custom_vjp as custom_vjp
from shtypes.autodiff.grad import grad as grad
from shtypes.autodiff.grad import jvp as jvp
from shtypes.autodiff.grad import linearize as linearize
from shtypes.autodiff.grad import value_and_grad as value_and_grad
from shtypes.autodiff.grad import vjp as vjp
from shtypes.autodiff.jacobian import hessian as hessian
from shtypes.autodiff.jacobian import jacfwd as jacfwd
from shtypes.autodiff.jacobian import jacrev as jacrev
from shtypes.branches import cond as cond
from shtypes.branches import switch as switch
from shtypes.checks import debug_checks as debug_checks
from shtypes.checks import set_debug_checks as set_debug_checks
from shtypes.control import fori_loop as fori_loop
from shtypes.control import map_ as _map
from shtypes.control import scan as scan
from shtypes.control import while_loop as while_loop
from shtypes.jit import jit as jit
from shtypes.jit import set_region as set_region
from shtypes.local_mode.local_map import local_map as local_map
from shtypes.local_mode.shard_map import shard_map as shard_map
from shtypes.mapping import vmap as vmap
from shtypes.meshes import abstract_mesh as abstract_mesh
from shtypes.meshes import make_mesh as make_mesh
from shtypes.meshes import set_mesh as set_mesh
from shtypes.meshes import use_mesh as use_mesh
from shtypes.notation import dims as dims
from shtypes.ops import composed as _composed  # noqa: F401  # connects itself
from shtypes.ops import fft as fft
from shtypes.ops import linalg as linalg
from shtypes.ops import operators as operators
from shtypes.ops.arrange import flip as flip
from shtypes.ops.arrange import fliplr as fliplr
from shtypes.ops.arrange import flipud as flipud
from shtypes.ops.arrange import repeat as repeat
from shtypes.ops.arrange import roll as roll
from shtypes.ops.arrange import rot90 as rot90
from shtypes.ops.arrange import tile as tile
from shtypes.ops.associative import *  # noqa: F403  # associative_scan
from shtypes.ops.conv import conv as conv
from shtypes.ops.conv import conv_general_dilated as conv_general_dilated
from shtypes.ops.conv import conv_transpose as conv_transpose
from shtypes.ops.conv import conv_with_general_padding as conv_with_general_padding
from shtypes.ops.create import arange as arange
from shtypes.ops.create import asarray as asarray
from shtypes.ops.create import copy as copy
from shtypes.ops.create import empty as empty
from shtypes.ops.create import empty_like as empty_like
from shtypes.ops.create import full as full
from shtypes.ops.create import full_like as full_like
from shtypes.ops.create import ones as ones
from shtypes.ops.create import ones_like as ones_like
from shtypes.ops.create import zeros as zeros
from shtypes.ops.create import zeros_like as zeros_like
from shtypes.ops.cumulative import cumlogsumexp as cumlogsumexp
from shtypes.ops.cumulative import cummax as cummax
from shtypes.ops.cumulative import cummin as cummin
from shtypes.ops.cumulative import cumprod as cumprod
from shtypes.ops.cumulative import cumsum as cumsum
from shtypes.ops.cumulative import diff as diff
from shtypes.ops.describe import *  # noqa: F403  # shapes and dtypes
from shtypes.ops.diagonals import diag as diag
from shtypes.ops.diagonals import diagonal as diagonal
from shtypes.ops.diagonals import trace as trace
from shtypes.ops.diagonals import tril as tril
from shtypes.ops.diagonals import triu as triu
from shtypes.ops.edits import *  # noqa: F403  # elements put in and left out
from shtypes.ops.einsum import dot as dot
from shtypes.ops.einsum import einsum as einsum
from shtypes.ops.einsum import inner as inner
from shtypes.ops.einsum import matmul as matmul
from shtypes.ops.einsum import matvec as matvec
from shtypes.ops.einsum import outer as outer
from shtypes.ops.einsum import tensordot as tensordot
from shtypes.ops.einsum import vdot as vdot
from shtypes.ops.einsum import vecdot as vecdot
from shtypes.ops.einsum import vecmat as vecmat
from shtypes.ops.elementwise import *  # noqa: F403  # one name per function of jax.numpy and jax.nn
from shtypes.ops.extremes import all as all
from shtypes.ops.extremes import amax as amax
from shtypes.ops.extremes import amin as amin
from shtypes.ops.extremes import any as any
from shtypes.ops.extremes import argmax as argmax
from shtypes.ops.extremes import argmin as argmin
from shtypes.ops.extremes import max as max
from shtypes.ops.extremes import median as median
from shtypes.ops.extremes import min as min
from shtypes.ops.extremes import nanargmax as nanargmax
from shtypes.ops.extremes import nanargmin as nanargmin
from shtypes.ops.extremes import nanmax as nanmax
from shtypes.ops.extremes import nanmin as nanmin
from shtypes.ops.extremes import ptp as ptp
from shtypes.ops.gather import gather as gather
from shtypes.ops.gather import scatter as scatter
from shtypes.ops.gather import scatter_add as scatter_add
from shtypes.ops.gather import scatter_max as scatter_max
from shtypes.ops.gather import scatter_min as scatter_min
from shtypes.ops.gather import scatter_mul as scatter_mul
from shtypes.ops.gather import scatter_sub as scatter_sub
from shtypes.ops.joins import array_split as array_split
from shtypes.ops.joins import column_stack as column_stack
from shtypes.ops.joins import concat as concat
from shtypes.ops.joins import concatenate as concatenate
from shtypes.ops.joins import dsplit as dsplit
from shtypes.ops.joins import dstack as dstack
from shtypes.ops.joins import hsplit as hsplit
from shtypes.ops.joins import hstack as hstack
from shtypes.ops.joins import split as split
from shtypes.ops.joins import stack as stack
from shtypes.ops.joins import unstack as unstack
from shtypes.ops.joins import vsplit as vsplit
from shtypes.ops.joins import vstack as vstack
from shtypes.ops.lax_names import *  # noqa: F403  # what only jax.lax calls so
from shtypes.ops.lookup import embedding as embedding
from shtypes.ops.lookup import one_hot as one_hot
from shtypes.ops.lookup import segment_sum as segment_sum
from shtypes.ops.lookup import take as take
from shtypes.ops.lookup import take_along_axis as take_along_axis
from shtypes.ops.nn import log_softmax as log_softmax
from shtypes.ops.nn import softmax as softmax
from shtypes.ops.nn import standardize as standardize
from shtypes.ops.pad import pad as pad
from shtypes.ops.products import *  # noqa: F403  # products beyond einsum
from shtypes.ops.ranges import *  # noqa: F403  # arrays by the positions of their elements
from shtypes.ops.reduce import mean as mean
from shtypes.ops.reduce import sum as sum
from shtypes.ops.reduce_nonlinear import logsumexp as logsumexp
from shtypes.ops.reduce_nonlinear import prod as prod
from shtypes.ops.reduce_nonlinear import std as std
from shtypes.ops.reduce_nonlinear import var as var
from shtypes.ops.reduce_where import average as average
from shtypes.ops.reduce_where import count_nonzero as count_nonzero
from shtypes.ops.reduce_where import nansum as nansum
from shtypes.ops.reshard import all_gather as all_gather
from shtypes.ops.reshard import all_reduce as all_reduce
from shtypes.ops.reshard import all_to_all as all_to_all
from shtypes.ops.reshard import reduce_scatter as reduce_scatter
from shtypes.ops.reshard import reshard as reshard
from shtypes.ops.reshard import shard as shard
from shtypes.ops.search import *  # noqa: F403  # finding and counting
from shtypes.ops.segments import *  # noqa: F403  # rows by segment
from shtypes.ops.select import select as select
from shtypes.ops.select import where as where
from shtypes.ops.shape import atleast_1d as atleast_1d
from shtypes.ops.shape import atleast_2d as atleast_2d
from shtypes.ops.shape import atleast_3d as atleast_3d
from shtypes.ops.shape import broadcast as broadcast
from shtypes.ops.shape import broadcast_arrays as broadcast_arrays
from shtypes.ops.shape import broadcast_in_dim as broadcast_in_dim
from shtypes.ops.shape import broadcast_to as broadcast_to
from shtypes.ops.shape import collapse as collapse
from shtypes.ops.shape import expand_dims as expand_dims
from shtypes.ops.shape import matrix_transpose as matrix_transpose
from shtypes.ops.shape import moveaxis as moveaxis
from shtypes.ops.shape import permute_dims as permute_dims
from shtypes.ops.shape import ravel as ravel
from shtypes.ops.shape import reshape as reshape
from shtypes.ops.shape import rollaxis as rollaxis
from shtypes.ops.shape import squeeze as squeeze
from shtypes.ops.shape import swapaxes as swapaxes
from shtypes.ops.shape import transpose as transpose
from shtypes.ops.slices import dynamic_index_in_dim as dynamic_index_in_dim
from shtypes.ops.slices import dynamic_slice as dynamic_slice
from shtypes.ops.slices import dynamic_slice_in_dim as dynamic_slice_in_dim
from shtypes.ops.slices import dynamic_update_slice as dynamic_update_slice
from shtypes.ops.slices import dynamic_update_slice_in_dim as dynamic_update_slice_in_dim
from shtypes.ops.slices import index_in_dim as index_in_dim
from shtypes.ops.slices import slice_ as _slice
from shtypes.ops.slices import slice_in_dim as slice_in_dim
from shtypes.ops.sorting import argpartition as argpartition
from shtypes.ops.sorting import argsort as argsort
from shtypes.ops.sorting import lexsort as lexsort
from shtypes.ops.sorting import partition as partition
from shtypes.ops.sorting import sort as sort
from shtypes.ops.sorting import sort_complex as sort_complex
from shtypes.ops.sorting import sort_key_val as sort_key_val
from shtypes.ops.sorting import top_k as top_k
from shtypes.ops.special import *  # noqa: F403  # more elementwise functions
from shtypes.ops.special import complex_ as _complex
from shtypes.ops.special import divmod_ as _divmod
from shtypes.ops.statistics import *  # noqa: F403  # quantiles, covariances, comparisons
from shtypes.ops.windows import *  # noqa: F403  # pooling
from shtypes.remat import checkpoint as checkpoint
from shtypes.remat import checkpoint_name as checkpoint_name
from shtypes.remat import checkpoint_policies as checkpoint_policies
from shtypes.signatures.typed import typed as typed
from shtypes.transforms import constant as constant
from shtypes.transforms import reinterpret as reinterpret
from shtypes.transforms import stop_gradient as stop_gradient
from shtypes.where import OURS as _OURS
from shtypes.where import is_public as _is_public
from shtypes.where import maker as _maker
from shtypes.where import public as _public

complex = _complex
divmod = _divmod
map = _map
slice = _slice

#: Functions that take functions and return others.
_MAKERS = frozenset(
    {"checkpoint", "grad", "hessian", "jacfwd", "jacrev", "local_map", "shard_map", "value_and_grad", "vmap"}
)

# JAX's equations and compiled programs name the user's lines, not ours.
for _path in _OURS:
    source_info_util.register_exclusion(_path)

# Every error of a public function names the user's line, and so does one of a function that it returns.
for _name, _function in list(globals().items()):
    _ours = isinstance(_function, _FunctionType) and _function.__module__.startswith("shtypes")
    if _ours and not _name.startswith("_") and not _is_public(_function):
        globals()[_name] = (_maker if _name in _MAKERS else _public)(_function)
