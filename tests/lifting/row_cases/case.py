"""What a case of a row is: a plain function that is one primitive, and operands on corners of it."""

from __future__ import annotations

import importlib
import re
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import jax.numpy as jnp
import ml_dtypes
import numpy as np

_SPEC: Final = re.compile(r"(?P<dtype>\w+)\[(?P<shape>[\d,]*)\](?P<kind>.*)")
DTYPES: Final[dict[str, Any]] = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f8": ml_dtypes.float8_e4m3fn,
    "f8_e5m2": ml_dtypes.float8_e5m2,
    "f32": np.float32,
    "f64": np.float64,
    "c64": np.complex64,
    "c128": np.complex128,
    "bool": np.bool_,
    **{f"{k}{n}": np.dtype(f"{name}{n}") for k, name in (("i", "int"), ("u", "uint")) for n in (8, 16, 32, 64)},
}


class Case(NamedTuple):
    """One case.

    Attributes:
        primitive: The primitive that the function binds.
        label: What tells it apart from the others of this primitive.
        fn: The function, of plain arrays.
        operands: The arrays.
        close: How its values are compared: ``"bits"``, ``"ulps"`` of each element, or ``"sums"``, of the largest.
        live: The operands that are differentiated; all floats if None.
        orders: Up to which order it is differentiated.
        x64: Whether it is one of 64 bits.
        whole: Why only replicated operands type; empty where sharded ones do.
        rounds: Whether its derivative rounds, so that of a pending sum each term is rounded.
    """

    primitive: str
    label: str
    fn: Callable[..., Any]
    operands: tuple[Any, ...]
    close: str = "bits"
    live: tuple[int, ...] | None = None
    orders: int = 2
    x64: bool = False
    whole: str = ""
    rounds: bool = False

    @property
    def id(self) -> str:
        """What messages call it."""
        return f"{self.primitive}: {self.label}"


def case(primitive: str, label: str, fn: Callable[..., Any], *specs: Any, **options: Any) -> Case:
    """A case of a primitive.

    Args:
        primitive: The primitive.
        label: What tells it apart.
        fn: The function.
        *specs: The operands: arrays, or texts as `made` reads them.
        **options: Fields of `Case`.
    """
    operands = tuple(made(s, f"{primitive}{label}{i}") if isinstance(s, str) else s for i, s in enumerate(specs))
    wide = any(str(getattr(x, "dtype", "")).endswith(("64", "128")) and x.dtype != np.complex64 for x in operands)
    return Case(primitive, label, fn, operands, **{"x64": wide, **options})


def primitive(name: str) -> Any:
    """A primitive of JAX's that no module publishes; None where the running JAX has none of this name."""
    modules = (importlib.import_module(f"jax._src.lax.{m}") for m in ("lax", "linalg"))
    return next((p for module in modules if (p := getattr(module, f"{name}_p", None)) is not None), None)


def made(spec: str, seed: str = "") -> Any:
    """An array from a text: a dtype, a shape, and what is in it.

    ``!`` has NaN, infinities, both zeros, subnormals, the largest and the least numbers among others, ``+`` positive
    numbers, ``u`` those between 0 and 1, ``s`` those between -1 and 1, ``<n`` integers below n, ``~n`` those from -n to n.
    """
    found = _SPEC.fullmatch(spec)
    assert found is not None, spec
    dtype, kind = np.dtype(DTYPES[found["dtype"]]), found["kind"]
    shape = tuple(int(n) for n in found["shape"].split(",") if n)
    rng = np.random.default_rng(zlib.crc32(f"{seed} {spec}".encode()))
    if dtype == np.bool_:
        return np.asarray(rng.random(shape) < 0.5)
    if dtype.kind in "iu":
        return _integers(rng, dtype, shape, kind)
    if dtype.kind == "c":
        real, imag = (_floats(rng, np.dtype(f"f{dtype.itemsize // 2}"), shape, kind) for _ in range(2))
        return (
            np.asarray(real + 1j * np.where(np.isfinite(imag), imag, 0), dtype)
            if kind == "!"
            else np.asarray(real + 1j * imag, dtype)
        )
    return _floats(rng, dtype, shape, kind)


def _integers(rng: Any, dtype: Any, shape: tuple[int, ...], kind: str) -> Any:
    info = np.iinfo(dtype)
    if kind == "!":
        x = rng.integers(info.min, info.max, shape, dtype, endpoint=True)
        return _sprinkled(rng, x, [info.min, info.max, 0, 1, info.max - 1, info.min + 1])
    if kind.startswith("~"):
        return rng.integers(-int(kind[1:]), int(kind[1:]) + 1, shape, dtype)
    return rng.integers(0, int(kind[1:]) if kind.startswith("<") else 8, shape, dtype)


def _floats(rng: Any, dtype: Any, shape: tuple[int, ...], kind: str) -> Any:
    if kind == "+":
        return rng.uniform(0.5, 2.5, shape).astype(dtype)
    if kind == "u":
        return rng.uniform(0.1, 0.9, shape).astype(dtype)
    if kind == "s":
        return rng.uniform(-0.9, 0.9, shape).astype(dtype)
    x = np.asarray(rng.normal(size=shape)).astype(dtype)
    if kind != "!":
        assert not kind, kind
        return x
    about: Any = jnp  # its finfo has no annotations
    info = about.finfo(dtype)
    special = [np.nan, np.inf, -np.inf, -0.0, 0.0, float(info.max), -float(info.max), float(info.tiny)]
    special += [float(info.tiny) / 2, -float(info.smallest_subnormal), 1.0, -1.0, 0.5, -2.5]
    return _sprinkled(rng, x, special)


def _sprinkled(rng: Any, x: Any, special: Sequence[Any]) -> Any:
    """Special values in the places of half of the elements."""
    flat = np.array(x).reshape(-1)
    places = rng.permutation(flat.size)[: max(flat.size // 2, 1) if flat.size else 0]
    for i, place in enumerate(places):
        with np.errstate(over="ignore", invalid="ignore"):
            flat[place] = np.asarray(special[i % len(special)]).astype(x.dtype)
    return flat.reshape(x.shape)
