"""Whatever a function of arrays is given: a result of JAX's shape and dtype, or a refusal with the user's line."""

from __future__ import annotations

import functools
import importlib
import itertools
import warnings
import zlib
from collections.abc import Iterator
from typing import Any, Final

import jax
import numpy as np
import pytest

import shtypes as sh
from shtypes.ops.rows import Op
from shtypes.ops.table import OPS
from tests.end_to_end import some

#: Operands: scalars, vectors, matrices, more dims, without elements, of other dtypes.
ARRAYS: Final = {
    "s": "f32[]", "v": "f32[4]", "m": "f32[4,8]", "t": "f32[2,4,4]", "e": "f32[0]", "f": "f32[0,4]", "i": "i32[4]",
    "j": "i32[]", "n": "i32[4,8]", "b": "bool[4]", "c": "c64[4,4]", "o": "f32[1,1]", "q": "f32[4,4]",
}  # fmt: skip
ODD: Final = (
    *("None", "'x'", "''", "-1", "0", "99", "-99", "2.5", "True", "()", "(0, 0)", "[]", "{}", "object()", "1j"),
    *("(1, -2)", "float('nan')", "slice(None)", "np.int32(1)", "[[1, 2], [3]]", "'f32[4]'", *ARRAYS),
)
KEYWORDS: Final = (
    *("axis=99", "axis=-99", "axis='x'", "axis=(0, 0)", "axis=None", "axis=1.5", "axis=[0]", "axis=v", "dtype='nope'"),
    *("dtype=None", "dtype=3", "out='[...]'", "out=3", "out='nope['", "keepdims='x'", "keepdims=v", "where='x'"),
    *("where=None", "where=v", "initial='x'", "mode='nope'", "mode=3", "size=-1", "size='x'", "shape=(-3,)"),
    *("shape='x'", "num=-1", "k=99", "precision='nope'", "precision=5", "preferred_element_type='nope'"),
    *("type='nope['", "type=3", "mesh=3", "mesh='x'", "order='F'", "ord='nope'", "ord=99", "n=-1", "n='x'"),
    *("fill_value='x'", "weights='x'", "ddof='x'", "ddof=99", "q=2.0", "q=v", "length=-1", "num_segments=-1"),
)
#: What makes trees or functions, or is for local mode.
CHOSEN: Final = [op for op in OPS.values() if op.space not in ("lax", "tree", "init") and op.name != "random.key_impl"]


def calls() -> Iterator[str]:
    yield from ("", *ODD)
    yield from (f"{x}, {odd}" for x in ARRAYS for odd in ODD)
    yield from (f"{x}, {keyword}" for x in "msq" for keyword in KEYWORDS)
    yield from (f"{x}, {x}, {keyword}" for x in "mv" for keyword in KEYWORDS)
    yield from (f"{x}, {y}, {odd}" for x, y in itertools.product("mvsie", ("v", "s", "0", "99", "None")) for odd in ODD)


ALL: Final = list(calls())


def called(f: Any, code: Any, kind: Any) -> Any:
    """The shapes and dtypes of what a call gives."""
    names = tuple(ARRAYS)

    def run(*xs: Any) -> Any:
        return eval(code, {"function": f, "np": np, **dict(zip(names, xs, strict=True))})

    return jax.eval_shape(run, *(kind(ARRAYS[name]) for name in names))


def plain(text: str) -> Any:
    t = sh.abstract_array(text).type
    return jax.ShapeDtypeStruct(t.shape, t.dtype)


def shapes(tree: Any) -> list[Any]:
    return [(tuple(x.shape), str(x.dtype)) for x in jax.tree.leaves(tree)]


#: What is of global values where JAX's is of one device's.
DIFFERENT: Final = ("all_gather", "all_to_all", "reshard")


def trouble(op: Op, call: str, f: Any, native: Any) -> str:
    """What is wrong with what a call gives; empty if nothing is."""
    code = compile(f"function({call})", "test_odd_arguments.py", "eval")
    try:
        found = shapes(called(f, code, sh.abstract_array))
    except sh.ShardingTypeError as error:
        return "" if error.placed else f"names no line: {error}"
    except Exception as error:
        taken = "returned a value of type" in str(error)  # JAX's of what is no array: it was taken
        return "" if taken else f"raises {error!r}"
    if native is None or op.name in DIFFERENT or "'f32[4]'" in call:
        return ""
    try:
        wanted = shapes(called(native, code, plain))
    except Exception:  # JAX refuses in many ways, and some of what we take
        return ""
    return "" if found == wanted else f"gives {found}, and JAX {wanted}"


@pytest.mark.one_in(511)
@pytest.mark.parametrize("op", CHOSEN, ids=lambda op: op.name)
def test_odd_arguments_are_taken_as_by_jax_or_refused(op: Op) -> None:
    f: Any = functools.reduce(getattr, op.name.split("."), sh)
    module, _, name = op.jax.rpartition(".")
    native = getattr(importlib.import_module(module), name, None) if op.jax else None
    if op.jax and native is None:
        pytest.skip(f"this release of JAX has no {op.jax}")
    step = some(24, 4)
    chosen = ALL[zlib.crc32(op.name.encode()) % step :: step]
    with sh.use_mesh(sh.abstract_mesh({"x": 2})), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {call: trouble(op, call, f, native) for call in chosen}
    wrong = {f"{op.name}({call})": what for call, what in found.items() if what}
    assert not wrong
