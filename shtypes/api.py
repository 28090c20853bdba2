"""The JAX half of the public surface in one place; `shtypes` loads it when one of its names is first used."""

from __future__ import annotations

from jax.extend import source_info_util

from shtypes import jax_context as jax_context
from shtypes import tree as tree
from shtypes.array import Array as Array
from shtypes.array import abstract_array as abstract_array
from shtypes.array import array as array
from shtypes.array import from_jax as from_jax
from shtypes.array import to_jax as to_jax
from shtypes.array import typeof as typeof
from shtypes.autodiff.custom import custom_vjp as custom_vjp
from shtypes.autodiff.grad import grad as grad
from shtypes.autodiff.grad import value_and_grad as value_and_grad
from shtypes.autodiff.grad import vjp as vjp
from shtypes.control import cond as cond
from shtypes.control import fori_loop as fori_loop
from shtypes.control import scan as scan
from shtypes.control import switch as switch
from shtypes.control import while_loop as while_loop
from shtypes.jit import jit as jit
from shtypes.jit import set_region as set_region
from shtypes.meshes import abstract_mesh as abstract_mesh
from shtypes.meshes import make_mesh as make_mesh
from shtypes.meshes import set_mesh as set_mesh
from shtypes.meshes import use_mesh as use_mesh
from shtypes.notation import dims as dims
from shtypes.ops import operators as operators
from shtypes.ops.create import arange as arange
from shtypes.ops.create import full as full
from shtypes.ops.create import full_like as full_like
from shtypes.ops.create import ones as ones
from shtypes.ops.create import ones_like as ones_like
from shtypes.ops.create import zeros as zeros
from shtypes.ops.create import zeros_like as zeros_like
from shtypes.ops.einsum import dot as dot
from shtypes.ops.einsum import einsum as einsum
from shtypes.ops.einsum import matmul as matmul
from shtypes.ops.einsum import tensordot as tensordot
from shtypes.ops.elementwise import *  # noqa: F403  # one name per function of jax.numpy and jax.nn
from shtypes.ops.reduce import mean as mean
from shtypes.ops.reduce import sum as sum
from shtypes.ops.reshard import all_gather as all_gather
from shtypes.ops.reshard import all_reduce as all_reduce
from shtypes.ops.reshard import all_to_all as all_to_all
from shtypes.ops.reshard import reduce_scatter as reduce_scatter
from shtypes.ops.reshard import reshard as reshard
from shtypes.ops.reshard import shard as shard
from shtypes.ops.shape import broadcast_in_dim as broadcast_in_dim
from shtypes.ops.shape import broadcast_to as broadcast_to
from shtypes.ops.shape import expand_dims as expand_dims
from shtypes.ops.shape import matrix_transpose as matrix_transpose
from shtypes.ops.shape import moveaxis as moveaxis
from shtypes.ops.shape import permute_dims as permute_dims
from shtypes.ops.shape import ravel as ravel
from shtypes.ops.shape import reshape as reshape
from shtypes.ops.shape import squeeze as squeeze
from shtypes.ops.shape import swapaxes as swapaxes
from shtypes.ops.shape import transpose as transpose
from shtypes.remat import checkpoint as checkpoint
from shtypes.remat import checkpoint_name as checkpoint_name
from shtypes.remat import checkpoint_policies as checkpoint_policies
from shtypes.transforms import constant as constant
from shtypes.transforms import reinterpret as reinterpret
from shtypes.transforms import stop_gradient as stop_gradient
from shtypes.transforms import vmap as vmap
from shtypes.where import OURS

# JAX's equations and compiled programs name the user's lines, not ours.
for path in OURS:
    source_info_util.register_exclusion(path)
