"""Functions of `jax.numpy` and `jax.lax`, and parameters, that shtypes does not have, with alternatives."""

from __future__ import annotations

from typing import Final, NamedTuple


class Unsupported(NamedTuple):
    """Names that are unsupported for one reason."""

    names: tuple[str, ...]
    why: str
    instead: str


UNSUPPORTED: Final[tuple[Unsupported, ...]] = (
    Unsupported(
        ("trim_zeros",),
        "the size of the result would depend on values",
        "x[start:stop], of positions that are known",
    ),
    Unsupported(
        ("load", "save", "savez", "fromfile", "frombuffer", "fromiter", "fromstring", "from_dlpack"),
        "arrays come from the host",
        "numpy, then sh.array(x, type)",
    ),
    Unsupported(
        ("vectorize", "frompyfunc"),
        "what they make is a function of plain arrays, which hides the dims that it acts along",
        "sh.vmap, or sh.lift of what they make",
    ),
    Unsupported(("composite",), "what it makes is a function of plain arrays", "sh.lift of what it makes"),
    Unsupported(("platform_dependent",), "types are the same on every platform", "sh.lift of a function that calls it"),
    Unsupported(
        ("scaled_dot", "scaled_dot_general", "scaled_matmul", "get_scaled_dot_general_config"),
        "it is a kernel for one kind of device",
        "sh.local_map",
    ),
    Unsupported(("mulhi",), "its primitive has no row", "sh.local_map"),
    Unsupported(
        ("rng_bit_generator", "rng_uniform"),
        "their numbers depend on the devices",
        "sh.random",
    ),
    Unsupported(("PRNGKey",), "a key says which generator it is for, and raw words do not", "sh.random.key"),
    Unsupported(("key_dtype", "Key"), "a key has the dtype of its generator", "sh.random.key(seed, impl=name).dtype"),
    Unsupported(("with_sharding_constraint",), "types say how a value lies", "sh.reshard(x, type)"),
    Unsupported(("after_all", "create_token"), "typed programs have no tokens", "sh.optimization_barrier"),
    Unsupported(
        ("precv", "psend", "psum_scatter_start", "psum_scatter_done"),
        "it sends to one device, or starts what another call ends",
        "the collectives of sh.lax, inside sh.shard_map",
    ),
    Unsupported(("dce_sink", "stage"), "it is for JAX's own transformations", "sh.optimization_barrier"),
    Unsupported(("dtype",), "a value has it", "x.dtype, or sh.result_type"),
    Unsupported(
        (
            *("conv_dimension_numbers", "conv_general_permutations", "conv_general_shape_tuple", "conv_shape_tuple"),
            *("conv_transpose_shape_tuple", "padtype_to_pads", "reduce_window_shape_tuple", "shape_as_value"),
        ),
        "they compute with shapes, and with no arrays",
        "jax.lax",
    ),
    Unsupported(
        ("array_repr", "array_str", "get_printoptions", "set_printoptions", "printoptions", "einsum_path", "iterable"),
        "numpy has them",
        "numpy",
    ),
)


class UnsupportedParameters(NamedTuple):
    """Parameters of JAX that functions do not take."""

    names: tuple[str, ...]
    why: str
    instead: tuple[str, ...] = ()  # the alternatives
    functions: tuple[str, ...] = ()  # the functions that they belong to; empty for all others


#: The first matching entry applies.
UNSUPPORTED_PARAMETERS: Final[tuple[UnsupportedParameters, ...]] = (
    UnsupportedParameters(
        ("axis_name", "axis_index_groups", "axis", "tiled", "split_axis", "concat_axis"),
        "it changes how a global value lies, and names mesh axes",
        ("the functions of that name in sh.lax, inside sh.shard_map",),
        ("all_gather", "all_to_all"),
    ),
    UnsupportedParameters(
        ("xs", "out_shardings"), "its keywords are mesh axes", ("sh.reshard(x, type)",), ("reshard",)
    ),
    UnsupportedParameters(
        ("out_sharding",), "a result's type says how it lies", ("out=", "type=", "sh.reshard(y, type)")
    ),
    UnsupportedParameters(("device",), "a type says over which mesh a value lies", ("mesh=", "sh.reshard(x, type)")),
    UnsupportedParameters(
        ("implementation", "return_residual"),
        "each device runs what XLA makes of the formula",
        ("sh.local_map around a kernel",),
        ("dot_product_attention",),
    ),
    UnsupportedParameters(
        ("mode",),
        "each element is made of its own bits, as in JAX's default mode",
        functions=("bernoulli", "categorical", "choice", "gumbel"),
    ),
    UnsupportedParameters(
        ("method",),
        "the numbers are those of JAX's default method, which all its releases have",
        functions=("beta", "chisquare", "gamma", "loggamma", "poisson"),
    ),
    UnsupportedParameters(
        (
            *("_dot_general", "_split_transpose", "_use_logging", "skip_format_check"),
            *("in_nzs", "saveable_args"),
        ),
        "it is JAX's own",
    ),
    UnsupportedParameters(
        ("out",),
        "operands alone say the result's type, which `out=` asks for elsewhere; values do not change in place",
        ("sh.reshard(y, type) of the result", "x.at[...].set"),
    ),
    UnsupportedParameters(("where",), "it is numpy's, and JAX refuses it too", ("sh.where",)),
    UnsupportedParameters(
        ("axis_shapes", "axis_names", "axis_types"),
        "its axes are explicit, and given with their sizes",
        ('sh.make_mesh({"x": 2})',),
        ("make_mesh",),
    ),
    UnsupportedParameters(
        ("check_vma", "check_rep"),
        "types say where values vary, and what a spec claims is always checked",
        ("without it", "explicit=True"),
        ("shard_map",),
    ),
    UnsupportedParameters(
        ("static_argnames", "concrete"),
        "arguments that are no arrays are taken as they are",
        ("static_argnums=",),
        ("checkpoint",),
    ),
    UnsupportedParameters(
        ("nondiff_argnames",), "arguments are told by their places", ("nondiff_argnums=",), ("custom_vjp",)
    ),
    UnsupportedParameters(
        ("reduce_axes",),
        "types say which sums are pending",
        ("sh.all_reduce",),
        ("grad", "value_and_grad", "vjp"),
    ),
    UnsupportedParameters(("allow_int",), "integers have no cotangents", ("argnums=",), ("jacrev",)),
    UnsupportedParameters(("operand",), "it is JAX's old name", ("operands by place",), ("cond", "switch")),
    UnsupportedParameters(
        ("spmd_axis_name", "sum_match"), "types say how the mapped dim lies", ("axis_name=",), ("vmap",)
    ),
    UnsupportedParameters(("partitioned",), "each device calls with its own part", functions=("callback", "print")),
    UnsupportedParameters(
        ("object", "dtype", "copy", "order", "ndmin", "args"),
        "it takes an array or numbers, and a type",
        ("sh.asarray", 'sh.array(x, "bf16[...]")'),
        ("array",),
    ),
)

_BY_NAME: Final = {name: absence for absence in UNSUPPORTED for name in absence.names}


def unsupported_parameter(function: str, parameter: str) -> UnsupportedParameters | None:
    """The entry for an unsupported parameter of a function, or None."""
    for entry in UNSUPPORTED_PARAMETERS:
        if parameter in entry.names and function in (entry.functions or (function,)):
            return entry
    return None


def alternative_to(name: str) -> str:
    """The alternative to an unsupported name, or empty."""
    absence = _BY_NAME.get(name)
    return absence.instead if absence else ""


def explanation(name: str) -> str:
    """Why a name is unsupported, and its alternative, or empty."""
    absence = _BY_NAME.get(name)
    return f"; {absence.why}: use {absence.instead}" if absence else ""
