"""Values that are made on each device: by their index, and of keys. Pure."""

from __future__ import annotations

from typing import Any

from shtypes.editor.call import Call, Number
from shtypes.editor.ops.elementwise import dtype_of, nonlinear
from shtypes.editor.ops.registry import op
from shtypes.editor.ops.shapes import ints
from shtypes.editor.sizes import stands_for_a_name
from shtypes.editor.space import Unknown
from shtypes.rules import WholeResult, whole
from shtypes.rules.random import sample
from shtypes.types import ShType, State
from shtypes.types.policy import replicated


def _placed(call: Call, shape: tuple[int, ...], dtype: str) -> ShType:
    """The type of a value of this shape that is asked for, replicated by policy if none is."""
    if call.has("mesh") and call.static("mesh") is not None:
        raise Unknown
    text = call.static("type", None)
    asked = call.static("dtype", None) if call.name not in ("iota", "broadcasted_iota") else None
    if text is not None and not isinstance(text, str):
        raise Unknown
    found = dtype if asked is None else dtype_of(asked)
    return ShType.parse(text or "[...]", call.mesh, shape=shape, dtype=found)


def _count(n: Any) -> int:
    if type(n) is not int or n < 0:
        raise Unknown
    return n


@op("linspace", "geomspace", "logspace")
def _spaced(call: Call) -> ShType:
    if call.static("retstep", False) is not False:
        raise Unknown
    ends = [call.static("start"), call.static("stop")]
    if not all(type(n) in (int, float) for n in ends):
        raise Unknown
    return _placed(call, (_count(call.static("num", 50)),), "f32")


@op("eye", "tri")
def _matrix(call: Call) -> ShType:
    rows, columns = _count(call.static("N")), call.static("M", None)
    return _placed(call, (rows, rows if columns is None else _count(columns)), "f32")


@op("identity")
def _identity(call: Call) -> ShType:
    n = _count(call.static("n"))
    return _placed(call, (n, n), "f32")


@op("broadcasted_iota")
def _iota(call: Call) -> ShType:
    return _placed(call, ints(call.static("shape")), dtype_of(call.static("dtype")))


@op("iota")
def _iota_of(call: Call) -> ShType:
    return _placed(call, (_count(call.static("size")),), dtype_of(call.static("dtype")))


@op("arange")
def _arange(call: Call) -> ShType:
    start, stop, step = call.static("start"), call.static("stop", None), call.static("step", None)
    if not all(n is None or type(n) is int for n in (start, stop, step)) or step == 0:
        raise Unknown
    first, last = (0, start) if stop is None else (start, stop)
    if stands_for_a_name(max(map(abs, (first, last)))):
        if step not in (None, 1):
            raise Unknown
        return _placed(call, (max(0, last - first),), "i32")
    return _placed(call, (len(range(first, last, step or 1)),), "i32")


# of keys


@op("random.key")
def _key(call: Call) -> ShType:
    if (
        call.given_as_value("dtype")
        or call.static("impl", None) is not None
        or (call.has("mesh") and call.static("mesh") is not None)
    ):
        raise Unknown
    seed = call.operand("seed")
    if not isinstance(seed, Number) or seed.kind != "int":
        raise Unknown
    return ShType(call.mesh, "key<fry>", [], dict.fromkeys(call.mesh.axis_names, replicated()))


@op("random.split")
def _split(call: Call) -> ShType:
    key, count = call.array("key"), _count(call.static("num", 2))
    result = (WholeResult(key.dtype_name, ((count, None),)),)
    if key.ndim or key.dtype_name != "key<fry>" or stands_for_a_name(count):
        raise Unknown
    return call.typed("split", lambda ts: whole("split", ts[0], (), result, False), key)


@op("random.fold_in")
def _fold_in(call: Call) -> ShType:
    key = call.array("key")
    return nonlinear(call, "fold_in", [key, call.operand("data")], key.dtype_name)


@op("nn.dropout")
def _dropout(call: Call) -> ShType:
    x = call.array("x")
    call.only("x", "rate", "key", "broadcast_dims")
    if not x.differentiable or call.array("key").ndim:
        raise Unknown
    return x


def _key_or_none(call: Call) -> ShType | None:
    try:
        return call.array("key")
    except Unknown:
        return None


_SAMPLES = ("uniform", "normal", "gumbel", "exponential", "laplace", "logistic", "truncated_normal")
_WHOLE_NUMBERS = ("rademacher", "randint")


@op(*(f"random.{name}" for name in (*_SAMPLES, *_WHOLE_NUMBERS, "bernoulli")))
def _sample(call: Call) -> ShType:
    key, text = _key_or_none(call), call.static("shape" if call.given_as_value("shape") else "type", ())
    own, kinds = ("i32", "iu") if call.name.removeprefix("random.") in _WHOLE_NUMBERS else ("f32", "fb")
    if call.name == "random.bernoulli":
        if call.has("p") and not isinstance(call.operand("p"), Number):
            raise Unknown
        own, kinds, text = "bool", "b", () if text is None else text
    asked = call.static("dtype", None)
    if (key is not None and key.dtype_name != "key<fry>") or (call.has("mesh") and call.static("mesh") is not None):
        raise Unknown
    dtype = own if asked is None else dtype_of(asked)
    if isinstance(text, str):
        wanted = call.closed(dtype + text.strip() if text.strip().startswith("[") else text)
        if wanted.dtype_name[0] not in kinds or (own == "bool") != (wanted.dtype_name == "bool"):
            raise Unknown
        if asked is not None and wanted.dtype_name != dtype:
            raise Unknown
    else:  # of a shape: a sample varies where its key does
        if key is None:
            raise Unknown
        varying = dict.fromkeys(key.axes(State.VARYING), State.VARYING)
        states = dict.fromkeys(call.mesh.axis_names, replicated()) | varying
        wanted = ShType(call.mesh, dtype, list(ints(text)), states)
    if key is None:  # whatever it is, the sample lies as its type says
        return wanted
    found = call.typed(call.name, lambda ts: sample(call.name, ts[0], wanted), key)
    return found.with_axes(wanted.axes(State.UNREDUCED), State.UNREDUCED)
