"""How the tests compile large programs."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from shtypes.types import dtypes


def compiled(lowered: Any) -> Any:
    """A lowered program compiled; a few programs are too much for the quick emitters that `conftest` asks XLA for."""
    try:
        return lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if "elemental_ir_emitter" not in str(error):
            raise
        return lowered.compile(compiler_options={"xla_cpu_use_fusion_emitters": True})


@functools.cache
def compiles(dtype: str) -> bool:
    """Whether XLA converts a dtype here: without instructions for half floats it calls functions that it has not."""
    try:
        jax.jit(lambda x: x.astype(dtypes.to_numpy(dtype)).astype(jnp.complex64)).lower(jnp.ones(1)).compile()
    except jax.errors.JaxRuntimeError as error:
        if "Failed to materialize symbols" not in str(error):
            raise
        return False
    return True


def needs(dtype: str) -> None:
    """Skips a test where XLA cannot compile it on one device either."""
    if not compiles(dtype):
        pytest.skip(f"XLA cannot convert {dtype} on this processor")
