"""The table of primitives: the function that evaluates each with typed operands.

Each device binds the primitive on its shards; `EXCEPTIONS` lists the primitives for which it does something else.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from shtypes.types import ShType

#: From an equation and its operands to the list of results.
Row = Callable[[Any, list[Any]], list[Any]]
R = TypeVar("R", bound=Row)

#: By the name of a primitive. At least one operand is typed; concrete scalars are numbers, other constants typed.
ROWS: Final[dict[str, Row]] = {}
#: For primitives with bodies or derivative rules, and those of shtypes: constants are as they are, and all operands
#: may be plain.
BODIES: Final[dict[str, Row]] = {}
#: Evaluators of primitives without a row, tried in turn: the first that does not return None.
FALLBACKS: Final[list[Callable[[Any, list[Any]], list[Any] | None]]] = []

#: How a primitive is evaluated along sharded dims without gathering them: the `Way`s of `lifting.ways.choice`.
WAYS: Final[dict[str, list[Any]]] = {}
#: The primitives that move elements along dims: the calls in which these are grouped have a way.
MOVING: Final[set[str]] = set()
#: The row that chooses among `WAYS` and the primitive's row, where communication is allowed.
CHOICES: Final[dict[str, Row]] = {}

#: Rewrites of a program before its evaluation, where communication is allowed.
#: They take the sizes of its sharded dims, too.
REWRITES: Final[list[Callable[[Any, frozenset[int]], Any]]] = []


def sharded_sizes(types: Iterable[ShType | None]) -> frozenset[int]:
    """The sizes of the sharded dims of arguments; None for plain ones."""
    return frozenset(dim.size for t in types if t is not None for dim in t.dims if dim.axes)


def rewritten(jaxpr: Any, sharded: frozenset[int] = frozenset()) -> Any:
    """Applies `REWRITES` to a program whose arguments have sharded dims of these sizes."""
    return functools.reduce(lambda program, rewrite: rewrite(program, sharded), REWRITES, jaxpr)


_ACROSS: Final = "argmax argmin reduce_and reduce_max reduce_min reduce_or reduce_prod"
#: The reductions of a sharded dim that finish with a collective, where communication is allowed.
ACROSS: Final = frozenset(_ACROSS.split())

#: By reason, the primitives for which a device may do something else than bind them on its shards.
_EXCEPTIONS_BY_REASON: Final = {
    "its result is its operand: nothing runs": "copy tie",
    "of a position in a sharded dim each device has its own rows; a number that fills a pending sum counts once": (
        "dynamic_slice gather slice"
    ),
    "of a sharded dim each device changes its own rows": (
        "dynamic_update_slice scatter scatter-add scatter-max scatter-min scatter-mul scatter-sub"
    ),
    "of what goes with the keys and is sharded along them each device finds its own rows": "sort",
    "along sharded dims, where it may communicate, each device reduces its part and a collective joins these": _ACROSS,
    "it is the reduction of a dim, since an axis that `jax.vmap` names is one": "pmax pmin psum",
    "as an einsum it is the same dot, and its transposes are dots that share their copies": "dot_general",
    "it is no primitive of JAX's: the number in the type of its operand": "full_like",
    "each device that has another part calls the host with that": "debug_callback debug_print io_callback",
}
EXCEPTIONS: Final = {name: why for why, names in _EXCEPTIONS_BY_REASON.items() for name in names.split()}


def row(*names: str, table: dict[str, Row] = ROWS) -> Callable[[R], R]:
    """Registers a function as the row of primitives."""

    def add(fn: R) -> R:
        table.update(dict.fromkeys(names, fn))
        return fn

    return add


def body_row(*names: str) -> Callable[[R], R]:
    """Registers a function as the row of primitives with bodies or derivative rules."""
    return row(*names, table=BODIES)


#: By reason, the primitives without a row.
_WITHOUT_ROW_BY_REASON: Final = {
    "it sends to one device, or starts what another call ends, which no collective of `sh.lax` does": (
        "all_gather_done all_gather_reduced_start all_gather_start all_to_all_done all_to_all_start pbroadcast_done "
        "pbroadcast_start ppermute_done ppermute_start precv psend psum_done psum_invariant_start psum_start "
        "reduce_scatter_done reduce_scatter_start unreduced_psum_start unreduced_reduce_scatter_start"
    ),
    "it finishes a pending maximum or minimum, and types have pending sums only": "unreduced_pmax unreduced_pmin",
    "it changes a reference in place, which typed values do not have": (
        "accum_grad_in_ref addupdate empty_ref free_ref freeze get new_ref swap run_state run_scoped masked_load "
        "masked_swap pin unpin box_get box_set new_box new_log log_extend log_read empty2 get_global"
    ),
    "it belongs to a Pallas kernel, a function of one device's shards: `sh.local_map`": (
        "pallas_call core_map mpmd_map dma_start dma_wait semaphore_read semaphore_signal semaphore_wait delay "
        "get_barrier_semaphore multiple_of num_programs program_id program_order tpu_custom_call jaxpr_call mulhi "
        "conv has_memory_space matmul_lhs_fifo matmul_pop_fifo "
        "matmul_acc_lhs matmul_pop matmul_push_rhs pack_elementwise unpack_elementwise roll stochastic_round bitcast "
        "trace_value pack_dtype unpack_dtype broadcast_to einshape_lo fusible custom_fusion philox2x32 philox4x32 "
        "threefry4x32 thunky.all_gather thunky.all_reduce thunky.all_to_all thunky.async_done thunky.async_start "
        "thunky.call_jax "
        "thunky.call_thunky_nested thunky.collective_group thunky.collective_permute thunky.cond thunky.copy "
        "thunky.custom_call thunky.inline_constant thunky.memset thunky.memzero thunky.ptx_kernel "
        "thunky.reduce_scatter thunky.while"
    ),
    "an annotation of shardings is kept as an equation of its own, where a program says it on the mesh that it sees": (
        "reshard sharding_constraint device_put"
    ),
    "its arrays are sparse, in a format that no sharding type describes": (
        "bcoo_dot_general bcoo_dot_general_sampled bcoo_extract bcoo_fromdense bcoo_sort_indices bcoo_spdot_general "
        "bcoo_sum_duplicates bcoo_todense bcoo_transpose bcsr_dot_general bcsr_extract bcsr_fromdense bcsr_todense "
        "coo_fromdense coo_matmat coo_matvec coo_spmm coo_spmv coo_todense csr_fromdense csr_matmat csr_matvec "
        "csr_spmm csr_spmv csr_todense spsolve todense"
    ),
    "it is a kernel of one kind of GPU, made for what one device holds: `sh.local_map`": (
        "cudnn_fusion dot_product_attention_bwd dot_product_attention_bwd_wrapper dot_product_attention_fp8_bwd "
        "dot_product_attention_fp8_bwd_wrapper dot_product_attention_fp8_fwd dot_product_attention_fp8_fwd_wrapper "
        "dot_product_attention_fwd dot_product_attention_fwd_wrapper scaled_dot scaled_matmul scaled_matmul_wrapper"
    ),
    "it calls code that JAX does not know, of one device's shards: `sh.local_map`": (
        "buffer_callback ffi_call call_exported custom_partitioning"
    ),
    "it has shapes that are known at run time only": ("dim_as_value dimension_size shape_assertion"),
    "it orders effects by tokens, which no typed value carries": "after_all create_token add_dependency call",
    "`checkify.checkify` takes it out of the function that is lifted: `sh.lift(checkify.checkify(f))`": "check",
    "JAX's own transformations leave it, and no program is traced to it": (
        "call_hi_primitive_linearized create_linear custom_jvp_call_jaxpr custom_lin dce_sink "
        "stage unreachable zeros_like jaxpr_call reciprocal"
    ),
    "it says where bytes lie on one device, which a type does not": (
        "layout_constraint with_memory_space_constraint relayout inspect_sharding shard_alike compute_on "
        "xla_metadata_call xla_metadata_value"
    ),
    "it has no operands, so that it is evaluated as it is": "empty iota",
    "it makes arrays of a dtype that only the package that defines it knows": "from_edtype to_edtype",
    "it makes keys and random bits by another way than `jax.random`": (
        "iota_2x32_shape prng_join prng_random_bits prng_seed prng_split rng_uniform"
    ),
}
WITHOUT_ROW: Final = {name: why for why, names in _WITHOUT_ROW_BY_REASON.items() for name in names.split()}


def why_no_row(name: str) -> str:
    """Why a primitive has no row."""
    return WITHOUT_ROW.get(name, "a package defines it, or a newer release of JAX: what it does on shards is not known")
