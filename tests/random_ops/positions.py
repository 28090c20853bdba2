"""Looking up, slicing and updating at positions; joins by their other names; what creates and samples values."""

from __future__ import annotations

from tests.random_choices import Choices, Expression, op


@op(3)
def sliced(d: Choices) -> Expression:
    v = d.value("f", lambda x: x.ndim >= 1 and all(n >= 4 for n in x.shape))
    k = d.dim(v)
    start = d.one(["1", "2", "jnp.asarray(1)", "COUNTS[3]"])
    sizes = tuple(d.one([n, n, 2]) for n in v.shape)
    starts = tuple(0 if s == n else d.one([0, 1]) for s, n in zip(sizes, v.shape, strict=True))
    forms = [
        *(f"m.dynamic_slice({v.name}, {starts}, {sizes})", f"m.dynamic_slice_in_dim({v.name}, {start}, 2, axis={k})"),
        f"m.dynamic_index_in_dim({v.name}, {start}, axis={k}, keepdims={d.flip()})",
        *(f"m.index_in_dim({v.name}, {d.one([0, -1, 2])}, axis={k})", f"m.slice_in_dim({v.name}, 1, 3, axis={k})"),
        f"m.slice({v.name}, {starts}, {tuple(a + s for a, s in zip(starts, sizes, strict=True))})",
        f"m.dynamic_update_slice_in_dim({v.name}, {v.name} * 0.5, 0, axis={k})",
        f"m.dynamic_update_slice({v.name}, 0.5 * m.slice_in_dim({v.name}, 0, 2, axis={k}), {(0,) * v.ndim})",
    ]
    return d.one(forms), v.bound * 2


@op(3)
def looked_up(d: Choices) -> Expression:
    v = d.value("f", lambda x: x.ndim >= 1)
    ids = d.value("i", lambda w: w.ndim <= 2)
    n = max(v.shape[0], 1)
    safe = f"{ids.name} % {n}"
    forms = [
        f"m.take({v.name}, {safe}, axis=0, mode={d.one(['clip', 'wrap'])!r})",
        f"m.one_hot({ids.name}, {d.one([4, 8])})",
        f"{v.name}[{safe}]",
    ]
    if v.ndim == 2:
        forms += [f"m.embedding({v.name}, {safe})", f"{v.name}[{safe}, 0]", f"{v.name}[:, {ids.name} % {v.shape[1]}]"]
    if v.ndim == ids.ndim:
        forms += [f"m.take_along_axis({v.name}, {safe}, axis=0)"] * 2
    if ids.ndim == 1 and v.shape[0] == ids.shape[0]:
        forms += [f"m.segment_sum({v.name}, {ids.name} % 4, 4)"] * 3
    return d.one(forms), v.bound * 4 + 1


@op(2.5)
def updated(d: Choices) -> Expression:
    v = d.value("f", lambda x: x.ndim >= 1 and x.shape[0] >= 4)
    w = d.value("f", lambda x: x.shape == v.shape[1:])
    ids = d.one([None, *[x for x in d.pool if x.kind == "i" and x.ndim == 1]])
    way = d.one(["add", "set", "multiply", "subtract", "max", "min", "divide"])
    place = d.one(
        ["1", "-1", "0:2", "::2", "...", "jnp.asarray([0, 2])", f"{ids.name} % 4" if ids and way == "add" else "2"]
    )
    what = w.name if way in ("add", "set", "subtract", "max", "min") and d.flip(0.6) else d.one(["1.5", "2", "0.5"])
    return f"{v.name}.at[{place}].{way}({what})", (v.bound + w.bound + 1) * 4


@op(2)
def joined(d: Choices) -> Expression:
    v = d.value("f", lambda x: 1 <= x.ndim <= 2)
    w = d.value("f", lambda x: x.shape == v.shape)
    name = d.one(["hstack", "vstack", "dstack", "column_stack", "concat"])
    if d.flip(0.3) and v.shape[0] and v.shape[0] % 4 == 0:
        parts = d.one(["m.unstack({})[1]", "m.array_split({}, 2)[0]", "m.split({}, 2)[1]"])
        if v.ndim == 2:
            parts = d.one([parts, "m.vsplit({}, 2)[0]", "m.unstack({}, axis=1)[0]"])
        return parts.format(v.name), v.bound
    return f"m.{name}([{v.name}, {w.name}])", v.bound + w.bound


@op(2)
def turned(d: Choices) -> Expression:
    v = d.value("f", lambda x: x.ndim >= 2)
    forms = [
        *(f"m.moveaxis({v.name}, 0, -1)", f"m.swapaxes({v.name}, 0, 1)", f"m.matrix_transpose({v.name})"),
        *(f"m.rot90({v.name}, {d.one([1, 2, 3])})", f"m.flipud({v.name})", f"m.fliplr({v.name})"),
        f"m.permute_dims({v.name}, {tuple(range(v.ndim))[::-1]})",
        *(f"m.broadcast_in_dim({v.name}, {(2, *v.shape)}, {tuple(range(1, v.ndim + 1))})", f"{v.name}.mT"),
    ]
    return d.one(forms), v.bound


@op(1.5)
def along(d: Choices) -> Expression:
    v = d.value("f", lambda x: x.ndim >= 1)
    k = d.dim(v)
    forms = [
        *(f"m.cummin({v.name}, axis={k})", f"m.cumlogsumexp({v.name}, axis={k})"),
        *(f"m.cumprod(0.5 + 0.3 * m.tanh({v.name}), axis={k})", f"m.cumsum({v.name}) * 0.25"),
        *(f"m.diff({v.name}, axis={k}, prepend=0.5)", f"m.top_k({v.name}, 1)[0]"),
        f"m.sort({v.name} + 0.3, axis={k}, descending=True)",
        f"m.pad({v.name}, 1, mode={d.one(['edge', 'wrap'])!r})",
        f"m.select([{v.name} > 0.1931, {v.name} > -0.2207], [{v.name}, 0.5], -1)" if v.name[0] == "x" else f"-{v.name}",
    ]
    return d.one(forms), v.bound * 3 + 1


@op(2)
def created(d: Choices) -> Expression:
    shape = d.one([v.shape for v in d.pool if v.kind == "f"])
    text = "f32" + d.type(shape)
    key = d.one(["m.random.key(7)", "m.random.fold_in(m.random.key(1), 5)", "m.random.split(m.random.key(2))[1]"])
    forms = [
        *(f"m.zeros({text!r})", f"m.ones({text!r})", f"m.full({text!r}, 0.75)", f"m.random.normal({key}, {text!r})"),
        *(f"m.random.uniform({key}, {text!r})", f"m.random.bernoulli({key}, 0.5, {d.type(shape)!r})"),
        *(f"m.random.randint({key}, {'i32' + d.type(shape)!r}, 0, 4)", f"m.arange(8, type={'f32' + d.type((8,))!r})"),
        f"m.arange(4, type={'i32' + d.type((4,))!r})",
    ]
    return d.one(forms), 4.0


@op(0.7)
def shuffled(d: Choices) -> Expression:
    v = d.value("fi", lambda x: x.ndim >= 1)
    return f"m.random.permutation(m.random.key(3), {v.name}, {d.dim(v)})", v.bound


@op(1)
def there_and_back(d: Choices) -> Expression:
    v = d.value()
    return f"m.from_jax(m.to_jax({v.name}))", v.bound
