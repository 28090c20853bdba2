"""What JAX's own explicit mode answers to the same programs; nothing runs."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from tests.meaning import Layout
from tests.peers.oracle import cotangent
from tests.peers.programs import Everything, Program

_DTYPES = {"f32": jnp.float32, "bf16": jnp.bfloat16, "c64": jnp.complex64, "i32": jnp.int32, "bool": jnp.bool_}


class Native(NamedTuple):
    """What JAX says to a program on operands of given types.

    Attributes:
        result: The result's layout; None where JAX refuses.
        gradients: The gradients' layouts; None where the gradient does not trace.
        error: What JAX says where it refuses.
    """

    result: Layout | None
    gradients: tuple[Layout, ...] | None = None
    error: str = ""


@functools.cache
def _mesh(sizes: tuple[int, ...]) -> Any:
    names = tuple("xyz"[: len(sizes)])
    return jax.sharding.AbstractMesh(sizes, names, axis_types=(AxisType.Explicit,) * len(sizes))


def _spec(layout: Layout) -> PartitionSpec:
    dims = [tuple("xyz"[a] for a in axes) or None for axes in layout.on]
    hidden = {"unreduced": "U", "reduced": "R"}
    return PartitionSpec(*dims, **{k: {"xyz"[a] for a in layout.axes(letter)} for k, letter in hidden.items()})


def _layout(mesh: tuple[int, ...], value: Any) -> Layout:
    spec = jax.typeof(value).sharding.spec
    dims = [() if d is None else (d,) if isinstance(d, str) else tuple(d) for d in spec]
    on = tuple(tuple("xyz".index(a) for a in axes) for axes in dims)
    letters = ["I"] * len(mesh)
    for axes in on:
        for a in axes:
            letters[a] = "S"
    for letter, names in (("U", spec.unreduced), ("R", spec.reduced)):
        for name in names:
            letters["xyz".index(name)] = letter
    return Layout(mesh, tuple(value.shape), on, "".join(letters))


class _Asking(Everything):
    """JAX's functions, whose contractions ask for a sharding of their results as JAX demands."""

    def __init__(self, out: Any) -> None:
        self.out = out

    def einsum(self, *args: Any) -> Any:
        return jnp.einsum(*args, out_sharding=self.out)

    def matmul(self, *args: Any) -> Any:
        return jnp.matmul(*args, out_sharding=self.out)

    def dot(self, *args: Any) -> Any:
        return jnp.dot(*args, out_sharding=self.out)


PLAIN = Everything()


def native(program: Program, given: Sequence[Layout], ask: Layout | None = None) -> Native:
    """Traces a program in explicit mode.

    Args:
        program: The program.
        given: The layouts of its operands.
        ask: The layout that contractions ask for; only for programs of one contraction.
    """
    sizes = given[0].mesh
    mesh = _mesh(sizes)
    structs = [
        jax.ShapeDtypeStruct(v.shape, _DTYPES[v.dtype], sharding=NamedSharding(mesh, _spec(t)))
        for v, t in zip(program.operands, given, strict=True)
    ]
    m = PLAIN if ask is None else _Asking(NamedSharding(mesh, _spec(ask)))
    found: list[Layout] = []
    chosen = program.differentiated

    def forward(*operands: Any) -> Any:
        y = program.fn(m, *operands)
        found.append(_layout(sizes, y))
        return y

    def backward(ct: Any, *operands: Any) -> None:
        def of_floats(*floats: Any) -> Any:
            merged = list(operands)
            for i, x in zip(chosen, floats, strict=True):
                merged[i] = x
            return program.fn(m, *merged)

        _, back = jax.vjp(of_floats, *[operands[i] for i in chosen])
        found.extend(_layout(sizes, g) for g in back(ct))

    with jax.sharding.use_abstract_mesh(mesh):
        try:
            out = jax.eval_shape(forward, *structs)
        except Exception as error:  # JAX refuses in many ways, some of them internal
            return Native(None, error=f"{type(error).__name__}: {error}")
        result = found.pop()
        if not chosen:
            return Native(result)
        ct = jax.ShapeDtypeStruct(out.shape, out.dtype, sharding=NamedSharding(mesh, _spec(cotangent(result))))
        try:
            jax.eval_shape(backward, ct, *structs)
        except Exception as error:
            return Native(result, error=f"{type(error).__name__}: {error}")
    return Native(result, tuple(found))
