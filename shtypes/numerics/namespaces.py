"""Namespaces of the table of ops: `sh.linalg`, `sh.nn`, and others; and errors for names they lack."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any, Final

from shtypes.ops.table import OPS, where_it_is


class Namespace(ModuleType):
    """The module ``sh.<space>``: the functions whose rows name it, and ``others``."""

    def __init__(self, space: str, doc: str, **others: ModuleType) -> None:
        super().__init__(f"shtypes.{space}", doc)
        rows = [op for op in OPS.values() if op.space == space]
        functions = {op.name.rpartition(".")[2]: getattr(importlib.import_module(op.module), op.attr) for op in rows}
        self.__dict__.update(functions | others)
        self.__all__ = sorted(functions | others)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}{where_it_is(name)}")

    def __dir__(self) -> list[str]:
        return self.__all__


init = Namespace(
    "init",
    """Initial values of weights, as in `jax.nn.initializers`, from the global shape.

    Each function gives an initializer ``init(key, type, dtype=None)``. The type says how the weights lie; what they are
    depends on the key and the global shape alone, and each device computes its shard.
    """,
)
#: The namespaces by their name in ``sh``.
NAMESPACES: Final = {
    "fft": Namespace("fft", "Fourier transforms along dims that every device holds whole; names of `jax.numpy.fft`."),
    "init": init,
    "linalg": Namespace(
        "linalg", "Linear algebra; names of `jax.numpy.linalg`, `jax.scipy.linalg` and `jax.lax.linalg`."
    ),
    "nn": Namespace(
        "nn",
        """The functions of `jax.nn` and the layers of models, on typed values.

        Nothing here communicates unless ``out=`` or an `implicit_comm` scope asks for it; each docstring says what is
        sent then.
        """,
        init=init,
        initializers=init,
    ),
    "random": Namespace(
        "random",
        """The functions of `jax.random` for typed arrays.

        A key and a type stand for one global array, the one that `jax.random` makes with that key: its numbers do not
        depend on the mesh, and each device computes its shard of them and nothing more. Where the type is sharded that
        part is a slice, where it is unreduced the samples are on index 0, and where it is varying the device's index is
        folded into the key.

        The bits are equal, and so are integers, bools and numbers of the unit interval. Their logarithms and error
        functions may differ in the last bits, as two calls of `jax.random` do that XLA compiles with other code around.

        Some distributions are sampled by rejection, or all at once (`gamma`, `poisson`, `orthogonal`, ...). Their
        numbers do not depend on the mesh either, but each device computes all of them and keeps its slice; their
        docstrings say so.
        """,
    ),
    "tree": Namespace(
        "tree", "Trees of typed values, and types for whole models. A typed value is a leaf of every JAX tree."
    ),
}
