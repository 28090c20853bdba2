"""Rows read, changed, counted and sorted by numbers that may be out of range: every mode of every form."""

from __future__ import annotations

from typing import Any

import shtypes as sh
from tests.random_choices import Choices, Expression, Value, op

MODES = ("clip", "fill", "drop", "promise_in_bounds")


def _ids(d: Choices, size: int, ndim: tuple[int, ...] = (0, 1, 2), safe: bool = False) -> tuple[Value, str]:
    """Integers and how positions are made of them: some out of range, unless ``safe``."""
    v = d.value("i", lambda w: w.ndim in ndim and not w.type.axes(sh.State.UNREDUCED))
    n = max(size, 1)
    wild = [v.name, f"{v.name} - 3", f"{v.name} + {n - 3}", f"{v.name} * 2", f"m.astype({v.name}, 'i32') % {n} - {n}"]
    return v, f"{v.name} % {n}" if safe else d.one([f"{v.name} % {n}", *wild])


def _finite(d: Choices, text: str, mode: Any) -> str:
    """A read with a number in place of what is missing, which would be NaN."""
    if mode not in ("fill", "drop"):
        return text.format("")
    return text.format(f", fill_value={d.one(['0', '-0.5', '2'])}") if d.flip() else f"m.nan_to_num({text.format('')})"


@op(2)
def taken(d: Choices) -> Expression:
    v = d.summed(d.value("f", lambda x: x.ndim >= 1), 0.4)
    k = d.one([None, *range(v.ndim)])
    size = v.type.size if k is None else v.shape[k]
    mode = d.one([None, "fill", "clip", "wrap"])
    _, at = _ids(d, size, safe=mode is None and d.flip())
    return _finite(d, f"m.take({v.name}, {at}, axis={k}, mode={mode!r}{{}})", mode or "fill"), v.bound + 2


@op(2)
def read(d: Choices) -> Expression:
    v = d.summed(d.value("f", lambda x: 1 <= x.ndim <= 3), 0.4)
    mode = d.one(MODES)
    return _finite(d, f"{v.name}.at[{_key(d, v, mode)[0]}].get(mode={mode!r}{{}})", mode), v.bound + 2


def _key(d: Choices, v: Value, mode: Any) -> tuple[str, bool]:
    """An index with positions in one dim or two; and whether it names all rows of these alone, in their order."""
    safe, k = mode == "promise_in_bounds", d.dim(v)
    _, at = _ids(d, v.shape[k], safe=safe)
    keys, rest = [":"] * v.ndim, [i for i in range(v.ndim) if i != k]
    keys[k] = at
    if rest and d.flip(0.3):
        other = d.one(rest)
        again = _ids(d, v.shape[other], (0, 1), safe)[1]
        keys[other] = d.one(["0", "-1", "::2", "1:", "::-1", again, again])
        return ", ".join(keys), False
    return ", ".join([*keys[: k + 1], *d.one([["..."], keys[k + 1 :]])]), True


@op(3)
def changed(d: Choices) -> Expression:
    v = d.summed(d.value("f", lambda x: 1 <= x.ndim <= 3), 0.4)
    w = d.summed(d.value("f", lambda x: x.shape == v.shape), 0.4)
    mode = d.one([None, "clip", "drop", "fill", "promise_in_bounds"])
    key, plain = _key(d, v, mode)
    way = d.one(["add", "add", "set", "subtract", "multiply", "mul", "divide", "max", "min", "power"])
    what = d.one(["1.5", "2", "0.5"])
    if d.flip(0.6):
        what = f"{w.name}.at[{key}].get(mode='clip')" if plain or d.flip() else f"m.sum({w.name}) * 0.1"
    base = v.name
    if way in ("multiply", "mul", "divide", "max", "min", "power"):  # JAX has no derivative by rows named twice
        base, what = f"m.constant({base})", f"m.constant({what})" if what[0] in "xvml" else what
    if way in ("power", "divide"):
        base, what = f"(1.5 + m.abs({base}))", d.one(["2", "0.5"])
    return f"{base}.at[{key}].{way}({what}, mode={mode!r})", (v.bound + w.bound + 1) * 3


@op(1)
def applied(d: Choices) -> Expression:
    """JAX has no derivative of it."""
    v = d.summed(d.value("f", lambda x: 1 <= x.ndim <= 3), 0.6)
    k = d.dim(v)
    key = ", ".join([":"] * k + [d.one(["0", "-1", "::2", "1:", "jnp.asarray(2)"])])
    return (
        f"m.constant({v.name}).at[{key}].apply({d.one(['m.sin', 'lambda r: r * 0.5', 'lambda r: 0.25 - r', 'm.abs'])})",
        v.bound + 1,
    )


@op(2)
def along_axis(d: Choices) -> Expression:
    v = d.summed(d.value("f", lambda x: 1 <= x.ndim <= 2), 0.4)
    k = d.one([None, *range(v.ndim)])
    size = v.type.size if k is None else v.shape[k]
    ids = d.value("i", lambda w: w.ndim <= 2 and not w.type.axes(sh.State.UNREDUCED))
    at = {1: f"m.ravel({ids.name})", 2: f"m.reshape({ids.name}, (1, -1))"}[v.ndim]
    if k is None:
        at = f"m.ravel({ids.name})"
    elif ids.ndim == v.ndim:
        at = ids.name
    elif v.ndim == 2 and ids.ndim == 1:
        at = d.one([f"m.expand_dims({ids.name}, {i})" for i in (0, 1)])
    if d.flip(0.4):
        at = f"{at} % {max(size, 1)}"
    if d.flip(0.3):
        mode = d.one([None, "clip", "drop", "fill"])
        what = d.one(["0.75", f"m.take_along_axis({v.name}, {at}, axis={k}, mode='clip') * 2"])
        if k is not None and v.ndim == 2 and not (ids.ndim == 2 and ids.shape[1 - k] == v.shape[1 - k]):
            what = "0.75"  # JAX spreads no values over more than the indices are
        return f"m.put_along_axis({v.name}, {at}, {what}, axis={k}, inplace=False, mode={mode!r})", v.bound * 2 + 1
    mode = d.one(["fill", "clip"])
    return _finite(d, f"m.take_along_axis({v.name}, {at}, axis={k}, mode={mode!r}{{}})", mode), v.bound + 2


@op(1.5)
def segments(d: Choices) -> Expression:
    ids = d.value("i", lambda w: w.ndim == 1 and not w.type.axes(sh.State.UNREDUCED))
    v = d.summed(d.value("f", lambda x: x.ndim >= 1 and x.shape[0] == ids.shape[0]), 0.4)
    name = d.one(["segment_sum", "segment_sum", "segment_sum", "segment_max", "segment_min", "segment_prod"])
    at = d.one([ids.name, f"{ids.name} + 1", f"{ids.name} % 4"])
    mode = f", mode={d.one(['clip', 'drop'])!r}" if d.flip(0.3) else ""
    if name == "segment_sum":
        return f"m.{name}({v.name}, {at}, {d.one([4, 8])}{mode})", v.bound * 4
    return f"m.clip(m.{name}(m.constant({v.name}), {at}, {d.one([4, 8])}), -4, 4)", 4.0


@op(1.5)
def classes(d: Choices) -> Expression:
    v, at = _ids(d, 4)
    n = d.one([4, 8])
    options = f"axis={d.one(range(-v.ndim - 1, v.ndim + 1))}"
    if d.flip(0.4):
        options += f", over={d.one([*d.mesh.axis_names, tuple(d.mesh.axis_names)])!r}"
    return f"m.one_hot({at}, {n}, {options})", 1.0


@op(2)
def found(d: Choices) -> Expression:
    """Places and counts in vectors that are whole."""
    v = d.value("f", lambda x: x.ndim == 1 and x.name[0] == "x")
    w = d.value("f", lambda x: x.name[0] == "x")
    ids = d.value("i")
    side = d.one(["left", "right"])
    forms = [
        f"m.searchsorted(m.sort({v.name}), {w.name} + 0.0107, side={side!r}) * 0.25",
        f"m.digitize({w.name} + 0.0107, m.sort({v.name}), right={d.flip()}) * 0.25",
        f"m.interp({w.name}, LONG[:4] + COUNTS[3] * 0 + np.arange(4), {v.name}[:4])",
        f"m.interp({w.name}, np.arange(4, dtype=np.float32) - 1.5, ROW)",
        f"m.isin({ids.name}, {d.one(['COUNTS', ids.name])}, invert={d.flip()})",
        f"m.bincount(m.ravel(m.abs({ids.name})), length={d.one([2, 8])})",
        f"m.bincount(m.ravel(m.abs({ids.name})), m.ravel({ids.name} * 0.5), length=4)",
        *(f"m.nonzero({ids.name}, size=4)[0]", f"m.flatnonzero({ids.name} > 1, size=5, fill_value=-1)"),
        *(f"m.argwhere({ids.name}, size=3)", f"m.unique({ids.name}, size=4, fill_value=0)"),
        f"m.unique({ids.name}, return_counts=True, size=6)[1]",
        f"m.{d.one(['union1d', 'setdiff1d'])}({ids.name}, COUNTS, size=6, fill_value=9)",
        f"m.histogram({v.name}, bins=4, range=(-1.1, 1.1))[0]",
        f"m.choose(m.abs({ids.name}) % 2, [ZERO_D, SCALAR], mode={d.one(['clip', 'wrap'])!r})",
        f"m.compress(MASK, {v.name}, size=2)" if v.shape[0] == 4 else f"m.flatnonzero({v.name} > 0.2107, size=3)",
    ]
    return d.one(forms), 8.0


@op(1.5)
def edited(d: Choices) -> Expression:
    v = d.value("f", lambda x: x.ndim >= 1 and all(n >= 4 for n in x.shape))
    w = d.value("f", lambda x: x.shape == v.shape)
    k = d.dim(v)
    row = f"0.5 * m.index_in_dim({w.name}, 1, axis={k})"
    forms = [
        f"m.delete({v.name}, {d.one(['0', 'np.asarray([0, 2])', '-1'])}, axis={k})",
        f"m.insert({v.name}, {d.one(['0', 'np.asarray([1, 3])', '-1'])}, {d.one(['0.5', '0', 'ZERO_D'])}, axis={k})",
        f"m.append({v.name}, {w.name}, axis={d.one([k, None])})",
        *(f"m.resize({v.name}, {d.one([(3, 4), (8,), (2, 2, 2)])})", f"m.atleast_2d({v.name})"),
        *(f"m.broadcast({v.name}, (2,))", f"m.collapse({v.name}, 0)", f"m.rollaxis({v.name}, {k})"),
        *(f"m.rev({v.name}, ({k},))", f"m.ediff1d({v.name})", f"m.broadcast_arrays({v.name}, {w.name}[:1])[1]"),
        f"m.dynamic_update_index_in_dim({v.name}, {row}, {d.one([0, 'COUNTS[3]', -1])}, {k})",
        f"m.diagflat({v.name}{', 1' if d.flip() else ''})",
    ]
    if v.ndim == 2:
        forms += [f"m.fill_diagonal({v.name}, {d.one(['0.5', '0', 'ZERO_D'])}, inplace=False)"] * 2
        forms += [f"m.hsplit({v.name}, 2)[1]", f"m.append({v.name}, {w.name}, axis={k})"]
    return d.one(forms), v.bound + w.bound


@op(1.5)
def ordered(d: Choices) -> Expression:
    v = d.summed(d.value("f", lambda x: x.ndim >= 1 and x.name[0] == "x"))
    k = d.dim(v)
    n = v.shape[k]
    forms = [
        f"m.argsort({v.name}, axis={k}, descending={d.flip()}, stable=True)",
        f"m.lexsort(({v.name}, m.floor({v.name} * 2)), axis={k})",
        f"m.sort_key_val(m.floor({v.name} * 2.03), {v.name}, dimension={k})[1]",
        f"m.top_k({v.name}, {max(1, n // 2) if k == v.ndim - 1 else 1})[{d.one([0, 0, 1])}]",
        f"m.top_k({v.name}, {max(1, n // 2)}, axis={k})[0]" if k == v.ndim - 1 else f"m.sort({v.name}, axis=None)",
        f"m.associative_scan({d.one(['m.add', 'm.maximum', 'm.multiply'])}, {v.name}, axis={k}, reverse={d.flip()})",
        f"m.cumulative_sum({v.name}, axis={k}, include_initial={d.flip()})",
    ]
    return d.one(forms), v.bound * 4
