"""How the tests compile: each program once, and large ones too."""

from __future__ import annotations

import collections
import functools
from typing import Any, Final

import jax
import jax.numpy as jnp
import pytest

from shtypes.types import dtypes

#: So many of the last programs are remembered, of some 0.13 MB each: most of what comes again does so before.
_REMEMBERED: Final = 1024


def compile_each_program_once() -> None:
    """Lets JAX compile a program that it has compiled for another function, or has forgotten, no second time.

    A test's functions are its own, and so are JAX's caches for each; a third of the programs are those of another
    test. And one context serves all lowering: to make one takes a quarter as long as to compile a small program.
    So it is with tracebacks, of which JAX asks for each frame whether its file is one of JAX's.
    """
    from jax._src import compiler, traceback_util
    from jax._src.interpreters import mlir

    compile_anew = compiler.backend_compile_and_load
    known: collections.OrderedDict[Any, Any] = collections.OrderedDict()

    def compile_once(backend: Any, module: Any, devices: Any, options: Any, host_callbacks: Any) -> Any:
        if host_callbacks:  # functions of Python, which the program does not contain
            return compile_anew(backend, module, devices, options, host_callbacks)
        key = (backend, mlir.module_to_bytecode(module), tuple(d.id for d in devices), options.SerializeAsString())
        if key not in known:
            known[key] = compile_anew(backend, module, devices, options, host_callbacks)
        known.move_to_end(key)
        if len(known) > _REMEMBERED:
            known.popitem(last=False)
        return known[key]

    compiler.backend_compile_and_load = compile_once
    mlir.make_ir_context = functools.cache(mlir.make_ir_context)
    traceback_util.include_filename = functools.cache(traceback_util.include_filename)


def compiled(lowered: Any, *, simplified: bool = True) -> Any:
    """A lowered program compiled, with other options where XLA fails by a fault of its own.

    Args:
        lowered: The program.
        simplified: Whether it has to be simplified; what is not may round otherwise.
    """
    try:
        return lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        options: dict[str, Any]
        if "elemental_ir_emitter" in str(error):  # too much for the quick emitters that `conftest` asks for
            options = {"xla_cpu_use_fusion_emitters": True}
        elif "Failed after simplification" in str(error) and not simplified:
            # on JAX 0.10, of `jax.shard_map` too: a parameter of one element in a dim, reshaped, keeps its sharding
            options = {"xla_disable_hlo_passes": "algsimp"}
        else:
            raise
        return lowered.compile(compiler_options=options)


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
