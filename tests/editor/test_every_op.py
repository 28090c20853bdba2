"""What mypy says of a call of a public function of arrays is what the call gives: its type, or why it is refused."""

from __future__ import annotations

import re
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import shtypes as sh
from shtypes.ops.table import OPS
from tests.editor.running import configured, run_mypy
from tests.end_to_end import some

MESH: Final = {"dp": 2, "tp": 2}
VALUES: Final = {
    "x": "f32[8@dp,6]", "y": "f32[6,4@tp]", "v": "f32[6]", "a": "f32[4,4]", "i": "i32[8@dp]", "b": "bool[6]",
    "c": "c64[4,4]", "u": "f32[8,6]{U:tp}", "z": "f32[6]{V:dp}", "k": "key<fry>[]",
}  # fmt: skip
#: Arguments of functions.
ARGUMENTS: Final = (
    *("x", "a", "v", "x, x", "x, y", "a, a", "i", "i, i", "b", "c", "u", "z", "x, 0", "x, 1", '"f32[8@dp, 3]"'),
    *("k, (3,)", "(8, 4)", "x, (6, 8)", 'x, "[_, _@dp]"', 'u, "tp"', 'z, "dp"', "4", '"ij,jk->ik", x, y', "[x, x]"),
    *("i, 5", "b, v, v", "u, 1", "u, u"),
)
#: Methods, operators and indices; each is compared.
EXPRESSIONS: Final = (
    *("x + x", "x + v", "v + x", "u + 1", "3.0 - x", "u + x", "x * u", "u / 3", "1 / u", "x @ y", "x @ v", "v @ y"),
    *(
        *("x @ x", "a @ u", "x**2", "2**x", "u**2", "i // 3", "i % i", "i << 2", "i / i", "i & 3", "~i", "~b", "-u"),
        "abs(x)",
    ),
    *("x < v", "0 >= x", "u > 0", "x == x", "b & b", "x.T", "x.sum(0)", "x.mean(1, keepdims=True)", "x.cumsum(0)"),
    *("x.max(0)", "x.max(1)", 'x.max(0, out="[_]")', "x.argmax(axis=1)", "x.astype('bf16')", "u.astype('bf16')"),
    *("x.reshape(8, 2, 3)", "y.reshape(24)", "x.ravel()", "x.clip(0, 1)", "u.clip(0, 1)", "x.at[:, 0].set(0.0)"),
    *("u.at[0].add(1.0)", "x[:, 1:]", "x[1:]", "x[0]", "v[i]", "x[i]", "x.swapaxes(0, 1)", "c.real", "x.dot(y)"),
    *("sh.softmax(x, axis=0)", 'sh.softmax(x, 0, out="[8@dp, 6]")', "sh.where(b, x, 0.0)", "sh.where(b, u, x)"),
    *("sh.einsum('ab,bc->ca', x, y)", "sh.pad(x, ((0, 0), (1, 2)))", "sh.pad(x, 1)", "sh.roll(x, 1, axis=1)"),
    *("sh.concatenate([x, x], axis=1)", "sh.concatenate([x, x])", "sh.take(y, i, axis=1)", "sh.one_hot(i, 10)"),
    *("sh.nn.cross_entropy(x, i)", "sh.linalg.norm(x)", "sh.stop_gradient(u)", "sh.array([1.0, 2.0], 'f32[2@dp]')"),
)
#: How many calls of one op are compared that give a type, and how many that are refused.
MOST: Final = {True: 3, False: 1}
_SAID: Final = re.compile(
    r":(\d+):\d+: (?:note: Revealed type is \"shtypes\.core\.array\.Array\[Literal\['(.*)'\]\]\""
    r"|error: (.*)  \[sharding\])$"
)


class Call(NamedTuple):
    """A call, and what it gives at run time: a type, or what is wrong with it."""

    text: str
    said: str
    typed: bool


def outcomes(texts: Iterator[str]) -> Iterator[Call]:
    """What calls give at run time; those that are no calls of arrays are left out."""
    mesh = sh.abstract_mesh(MESH)
    values: dict[str, Any] = {name: sh.abstract_array(text, mesh) for name, text in VALUES.items()}
    with sh.use_mesh(mesh), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for text in texts:
            try:
                result = eval(text, {"sh": sh, **values})
            except sh.ShardingTypeError as error:
                if " on mesh axis `" in error.what:  # one of sharding, not of arguments, which are mypy's
                    yield Call(text, error.what, False)
            except TypeError:
                pass
            else:
                if isinstance(result, sh.Array):
                    yield Call(text, str(result.type), True)


def chosen() -> Iterator[Call]:
    """Every expression, and the first calls of functions; by default of some of the functions only."""
    yield from outcomes(iter(EXPRESSIONS))
    for op in OPS:
        if zlib.crc32(op.encode()) % some(60, 1):
            continue
        left = dict(MOST)
        for call in outcomes(f"sh.{op}({arguments})" for arguments in ARGUMENTS):
            if left[call.typed]:
                left[call.typed] -= 1
                yield call
            if not any(left.values()):
                break


def test_mypy_says_what_the_call_gives(tmp_path: Path, mypy_cache: Path) -> None:
    calls = list(chosen())
    parameters = ", ".join(f'{name}: A[sh.Array, "{text}"]' for name, text in VALUES.items())
    head = f"from typing import Annotated as A\n\nimport shtypes as sh\n\n\ndef f({parameters}) -> None:\n"
    code = head + "".join(f"    reveal_type({call.text})\n" for call in calls)
    (tmp_path / "calls.py").write_text(code, encoding="utf-8")
    config = configured(tmp_path, "mesh = { dp = 2, tp = 2 }")
    printed = run_mypy(["calls.py"], config, mypy_cache, cwd=tmp_path)
    found = {int(m[1]): m[2] or m[3] for m in map(_SAID.search, printed.splitlines()) if m}
    said = [(call, found.get(head.count("\n") + i)) for i, call in enumerate(calls, 1)]
    assert [(call, text) for call, text in said if text is not None and text != call.said] == []
    unknown = [call.text for call, text in said if text is None]
    assert len(unknown) <= len(calls) // 20, unknown
    assert len(calls) >= some(90, 900)
