"""`visualize`: the slice, copy or term on each device, as text and as a picture."""

from __future__ import annotations

import html
from typing import Any, Final

from shtypes.analysis.device_slices import distinct, grid, sentences, visible
from shtypes.analysis.svg import draw
from shtypes.context.user_line import public
from shtypes.core.meshes import AnyMesh, to_mesh
from shtypes.errors import ShardingTypeError, how_many
from shtypes.types import ShType
from shtypes.types.tables import aligned, page

#: The maximum number of rows and columns of devices in the text.
ROWS: Final = 16
COLUMNS: Final = 8


class Picture:
    """The contents of devices by a type: prints as text, and shows as a picture in a notebook.

    Attributes:
        type: The type.
    """

    def __init__(self, type: ShType) -> None:
        self.type = type

    @property
    def title(self) -> str:
        """The heading."""
        t = self.type
        count, parts = t.mesh.size, distinct(t)
        copies = f"{count // parts} copies of each of {parts} parts" if parts < count else "no two hold the same"
        if count == 1:
            copies = "it holds the whole"
        on = f"{t} on {t.mesh if t.mesh.axis_names else 'no mesh axis'}"
        return f"{on}: {how_many(count, 'device')}, {t.local_bytes} B each; {copies}"

    def __str__(self) -> str:
        t = self.type
        last = (t.mesh.axis_names or ("",))[-1]
        across = visible(t.mesh.shape.get(last, 1), COLUMNS)
        headings = ["", *("…" if j is None else f"{last}={j}" if last else "" for j in across)]
        rows = []
        for place, cells in grid(t, ROWS, COLUMNS):
            label = "⋮" if place is None else ", ".join(f"{axis}={i}" for axis, i in place.items())
            rows.append([label, *("⋮" if place is None else "…" if c is None else c.text(t) for c in cells)])
        return "\n".join([self.title, *(f"  {s}" for s in sentences(t)), "", *aligned(headings, rows)])

    def __repr__(self) -> str:
        return str(self)

    def to_svg(self) -> str:
        """The picture as one SVG element: copies share a colour, terms of a sum are hatched, varying values dotted."""
        return draw(self.type, self.title, sentences(self.type))

    _repr_html_ = to_svg

    def to_html(self) -> str:
        """A self-contained page."""
        return page(str(self.type), [self.to_svg(), f"<pre>{html.escape(str(self))}</pre>"])


@public
def visualize(type: Any, *, mesh: AnyMesh | None = None) -> Picture:
    """Shows the slice, copy, term of a sum or varying value on each device.

    Args:
        type: A type, the text of one, or a typed value.
        mesh: The mesh of a text; by default the one in context.

    Returns:
        A `Picture`, which prints as text and shows as a picture in a notebook; ``to_svg`` and ``to_html`` return the
        picture. It has a cell for each device, with rows along the last mesh axis; of large meshes it shows the first
        and last devices, and of more than three dims the sharded ones.

    Raises:
        ShardingTypeError: ``type`` is not a type.

    Communicates: nothing, and needs no devices.

    Examples:
        >>> from shtypes.types.mesh import Mesh
        >>> visualize("f32[8@dp, 4]{U:tp}", mesh=Mesh({"dp": 2, "tp": 2}))
        f32[8@dp,4]{U:tp} on dp=2, tp=2: 4 devices, 64 B each; no two hold the same
          dp: shards dim 0 of size 8 in slices of 4
          tp: each device holds one term of a pending sum
        <BLANKLINE>
              tp=0             tp=1
        dp=0  [0:4, :] term 0  [0:4, :] term 1
        dp=1  [4:8, :] term 0  [4:8, :] term 1
    """
    if isinstance(type, str):
        type = ShType.parse(type, None if mesh is None else to_mesh(mesh))
    t = type if isinstance(type, ShType) else getattr(type, "type", None)
    if not isinstance(t, ShType):
        raise ShardingTypeError(
            f"`visualize` shows a sharding type, not {type!r:.60}",
            hints=['sh.visualize("f32[8@dp, 4]")', "sh.visualize(x) of a typed value"],
        )
    return Picture(t)
