"""What a typed value means, put together from what each device holds; nothing of the library is asked."""

from __future__ import annotations

from typing import Any

import numpy as np

import shtypes as sh


def denoted(x: Any) -> np.ndarray[Any, Any]:
    """The value that the shards of a typed value mean.

    Shards along a replicated axis must be equal to the last bit.
    """
    t, mesh = x.type, x.type.mesh
    names, sizes = mesh.axis_names, [mesh.shape[a] for a in mesh.axis_names]
    total: Any = np.zeros(t.shape, x.data.dtype)
    held: dict[tuple[int, ...], Any] = {}
    places = {device: np.unravel_index(i, sizes) for i, device in enumerate(x.data.sharding.mesh.devices.flat)}
    hidden = t.axes(sh.State.UNREDUCED)
    split = {a for d in t.dims for a in d.axes}
    for shard in x.data.addressable_shards:
        at = dict(zip(names, map(int, places[shard.device]), strict=True))
        data = np.asarray(shard.data)
        data = data.reshape(data.shape[: len(t.shape)])
        key = tuple(at[a] for a in names if a in split or a in hidden)
        if key in held:
            same = np.array_equal(held[key], data, equal_nan=data.dtype.kind not in "bi")
            assert same, f"{t}: the devices of a replicated axis hold {held[key]} and {data}"
            continue
        held[key] = data
        where: list[slice] = []
        for dim, size in zip(t.dims, map(int, data.shape), strict=True):
            start = 0
            for axis in dim.axes:
                start = start * mesh.shape[axis] + at[axis]
            where.append(slice(start * size, (start + 1) * size))
        assert total[tuple(where)].shape == data.shape, f"{t}: shards of {data.shape}"
        if hidden:
            with np.errstate(invalid="ignore", over="ignore"):  # infinities of both signs, and sums that are
                total[tuple(where)] += data
        else:
            total[tuple(where)] = data
    return total  # type: ignore[no-any-return]
