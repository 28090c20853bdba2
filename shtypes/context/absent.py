"""The functions of `jax.numpy` and `jax.lax` that are not here, and what to use instead. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple


class Absence(NamedTuple):
    """Names that are not here for one reason.

    Attributes:
        names: The names.
        why: The reason.
        instead: What to use.
    """

    names: tuple[str, ...]
    why: str
    instead: str


ABSENT: Final[tuple[Absence, ...]] = (
    Absence(
        ("extract", "trim_zeros", "unique_all", "unique_counts", "unique_inverse", "unique_values", "mask_indices"),
        "the size of the result would depend on values",
        "sh.unique, sh.nonzero and their kind with `size=`, or sh.where",
    ),
    Absence(("put", "place"), "values do not change in place", "x.at[...].set"),
    Absence(
        ("load", "save", "savez", "fromfile", "frombuffer", "fromfunction", "fromiter", "fromstring", "from_dlpack"),
        "arrays come from the host",
        "numpy, then sh.array(x, type)",
    ),
    Absence(
        ("apply_along_axis", "apply_over_axes", "vectorize", "frompyfunc", "piecewise"),
        "they hide which dims a function acts along",
        "sh.vmap, sh.select, or sh.local_map for a function of shards",
    ),
    Absence(
        ("poly", "polyadd", "polyder", "polydiv", "polyfit", "polyint", "polymul", "polysub", "roots"),
        "they work on a few coefficients that are known",
        "numpy on the host, and sh.polyval",
    ),
    Absence(("block",), "it is a nest of joins", "sh.concatenate, or sh.linalg.block_diag"),
    Absence(("histogram2d", "histogramdd"), "they are several searches and one sum", "sh.digitize and sh.segment_sum"),
    Absence(
        ("packbits", "unpackbits", "conv_general_dilated_local", "conv_general_dilated_patches", "composite"),
        "no rule says how their dims lie",
        "sh.local_map",
    ),
    Absence(
        ("reduce", "reduce_xor", "scatter_apply", "ragged_dot_general", "scaled_dot"),
        "what they compute is a function that no rule can see into",
        "the named reductions, x.at[...].apply, sh.ragged_dot, or sh.local_map",
    ),
    Absence(("approx_max_k", "approx_min_k"), "they are exact on most devices anyway", "sh.top_k"),
    Absence(("custom_root", "custom_linear_solve"), "they take solvers of plain arrays", "sh.custom_vjp"),
    Absence(("rng_bit_generator", "rng_uniform"), "their numbers depend on the devices", "sh.random"),
    Absence(("with_sharding_constraint",), "types say how a value lies", "sh.reshard(x, type)"),
    Absence(("after_all", "create_token"), "typed programs have no tokens", "sh.optimization_barrier"),
    Absence(
        ("array_repr", "array_str", "get_printoptions", "set_printoptions", "printoptions", "einsum_path", "iterable"),
        "numpy has them",
        "numpy",
    ),
)

_BY_NAME: Final = {name: absence for absence in ABSENT for name in absence.names}


def instead_of(name: str) -> str:
    """What to use instead of a name that is not here; empty if nothing is known."""
    absence = _BY_NAME.get(name)
    return absence.instead if absence else ""


def explanation(name: str) -> str:
    """Why a name is not here and what to use instead; empty if nothing is known."""
    absence = _BY_NAME.get(name)
    return f"; {absence.why}: use {absence.instead}" if absence else ""
