"""How the tests compile large programs."""

from __future__ import annotations

from typing import Any

import jax


def compiled(lowered: Any) -> Any:
    """A lowered program compiled; a few programs are too much for the quick emitters that `conftest` asks XLA for."""
    try:
        return lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if "elemental_ir_emitter" not in str(error):
            raise
        return lowered.compile(compiler_options={"xla_cpu_use_fusion_emitters": True})
