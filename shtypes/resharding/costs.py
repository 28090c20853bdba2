"""The α-β cost model: the time of collectives from the latency and bandwidth of each mesh axis.

A collective on n devices takes ``launch + steps * latency + bytes / bandwidth``. A ring needs n-1 steps to gather or
scatter and twice as many to all-reduce; direct sends go to n-1 devices in turn.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from shtypes.context.scope import Scope, changed
from shtypes.context.settings import current_settings
from shtypes.context.user_line import public
from shtypes.errors import ShardingTypeError
from shtypes.types import ShType
from shtypes.types.mesh import part_of


class Collective(Protocol):
    """The interface of a cost model's argument: a step of a plan, or an entry of a ledger."""

    @property
    def kind(self) -> Any:
        """The kind of collective."""

    @property
    def axes(self) -> Sequence[str]:
        """Its mesh axes."""

    @property
    def src(self) -> ShType:
        """The type before."""

    @property
    def group(self) -> int:
        """The number of devices that exchange data."""

    @property
    def bytes(self) -> int:
        """Bytes that each device sends."""

    @property
    def launches(self) -> int:
        """The number of launches."""


@dataclass(frozen=True)
class Link:
    """The interconnect of the devices along a mesh axis.

    Attributes:
        bandwidth: Bytes that a device sends per second.
        latency: Seconds for an empty message.
        source: The source of the figures.
        launch: Seconds that a collective takes to start, on any number of devices.
    """

    bandwidth: float
    latency: float = 0.0
    source: str = ""
    launch: float = 0.0

    def __post_init__(self) -> None:
        figures: tuple[Any, ...] = (self.bandwidth, self.latency, self.launch)
        finite = all(isinstance(n, int | float) and math.isfinite(n) for n in figures)
        if not finite or not self.bandwidth > 0 or not min(self.latency, self.launch) >= 0:
            also = f", and {self.launch} s to begin" if self.launch else ""
            raise ShardingTypeError(
                f"a link has a positive bandwidth and a latency, not {self.bandwidth} B/s and {self.latency} s{also}"
            )


@dataclass(frozen=True)
class CostModel:
    """A link for each mesh axis.

    Attributes:
        default: The link of axes that are not in ``axes``.
        axes: The links of other axes.
    """

    default: Link
    axes: Mapping[str, Link] = field(default_factory=dict)

    def __post_init__(self) -> None:
        links: tuple[Any, ...] = (self.default, *self.axes.values())
        for link in links:
            if not isinstance(link, Link):
                raise ShardingTypeError(
                    f"a cost model has a link for each mesh axis, not {link!r:.60}",
                    hints=[
                        'sh.cost_model("h100-nvlink", dp="infiniband-ndr")',
                        "sh.Link(bandwidth=50e9, latency=5e-6)",
                    ],
                )

    def __hash__(self) -> int:
        return hash((self.default, tuple(sorted(self.axes.items(), key=lambda item: item[0]))))

    def link(self, axis: str) -> Link:
        """The link of an axis, or of a part of one."""
        return self.axes.get(part_of(axis)[0], self.default)

    def seconds(self, entry: Collective) -> float:
        """The time of one run of a collective; over several axes, with the slowest of their links."""
        if not entry.launches:
            return 0.0
        mesh = entry.src.mesh
        links = [self.link(axis) for axis in entry.axes if mesh.size_of(axis) > 1]
        latency, bandwidth = max(link.latency for link in links), min(link.bandwidth for link in links)
        kind = entry.kind if isinstance(entry.kind, str) else entry.kind.value
        steps = {"all-reduce": 2 * (entry.group - 1), "permute": entry.launches}.get(kind, entry.group - 1)
        launch = max(link.launch for link in links)
        return entry.launches * launch + steps * latency + entry.bytes / bandwidth


_NVLINK: Final = "NVIDIA, NVLink bandwidth in the product's data sheet: half of the total of both directions"
_INFINIBAND: Final = "NVIDIA, ConnectX data sheet: port speed"
_ICI: Final = (
    "How to Scale Your Model (jax-ml.github.io/scaling-book), How to Think About TPUs, table of interconnects: what a "
    "chip sends along one axis of the torus, by the links of both directions. A ring; half of it without wraparound"
)
_DCN: Final = (
    "Google Cloud, TPU system architecture: data center network of a chip, or of a host's cards shared by its chips"
)
_ETHERNET: Final = "IEEE 802.3: line rate of one port for each device"

#: Published bandwidths. Latencies are not published: with 0, a time is a lower bound, so measure yours.
LINKS: Final[Mapping[str, Link]] = {
    "a100-nvlink": Link(300e9, source=_NVLINK),  # 600 GB/s
    "h100-nvlink": Link(450e9, source=_NVLINK),  # 900 GB/s
    "h200-nvlink": Link(450e9, source=_NVLINK),  # 900 GB/s
    "b200-nvlink": Link(900e9, source=_NVLINK),  # 1.8 TB/s
    "infiniband-hdr": Link(25e9, source=_INFINIBAND),  # 200 Gb/s
    "infiniband-ndr": Link(50e9, source=_INFINIBAND),  # 400 Gb/s
    "infiniband-xdr": Link(100e9, source=_INFINIBAND),  # 800 Gb/s
    "tpu-v4-ici": Link(90e9, source=_ICI),
    "tpu-v5e-ici": Link(100e9, source=_ICI),
    "tpu-v5p-ici": Link(200e9, source=_ICI),
    "tpu-v6e-ici": Link(200e9, source=_ICI),
    "tpu-v5e-dcn": Link(3.125e9, source=_DCN),  # 2 cards of 100 Gb/s for 8 chips
    "tpu-v5p-dcn": Link(6.25e9, source=_DCN),  # 50 Gb/s
    "tpu-v6e-dcn": Link(12.5e9, source=_DCN),  # 4 cards of 200 Gb/s for 8 chips
    "ethernet-10g": Link(1.25e9, source=_ETHERNET),
    "ethernet-25g": Link(3.125e9, source=_ETHERNET),
    "ethernet-100g": Link(12.5e9, source=_ETHERNET),
    "ethernet-400g": Link(50e9, source=_ETHERNET),
}


def cost_model(default: str | Link, **axes: str | Link) -> CostModel:
    """A cost model from links or their names.

    default: The link of the other mesh axes.
    **axes: The link of an axis: a name in `LINKS`, or your measurements.

    Examples:
        >>> model = cost_model("h100-nvlink", dp="infiniband-ndr")
        >>> model.axes["dp"].bandwidth
        50000000000.0
    """
    return CostModel(_link(default), {axis: _link(link) for axis, link in axes.items()})


@public
def use_cost_model(model: CostModel | Link | str) -> Scope:
    """A scope in which reshards take the plan of least time by a model, instead of the fewest bytes.

    A collective over several axes has the bandwidth of its slowest link, and each message a latency. So slow axes carry
    data that the fast ones have already cut, and small values take fewer rounds. A context manager or a decorator;
    nests, and applies to this thread and to the gradients of calls in it.

    Args:
        model: A cost model, or a link or the name of one for all axes.

    Raises:
        ShardingTypeError: it is not a cost model.

    Examples:
        >>> with use_cost_model(cost_model("h100-nvlink", dp="infiniband-ndr")):
        ...     pass
    """
    parsed = as_cost_model(model, "`use_cost_model` takes")
    return changed(lambda s: s._replace(model=parsed))


def model_in_force() -> CostModel | None:
    """The cost model of the innermost `use_cost_model`, or None."""
    model = current_settings().model
    return model if isinstance(model, CostModel) else None


def as_cost_model(model: Any, what: str) -> CostModel:
    """A cost model from one, a link, links by axis, or a file; ``what`` begins the error message.

    Links by axis are a mapping, whose ``"default"`` (or first) applies to other axes. A file, as
    `benchmarks/calibrate.py` writes it, is TOML with a table of a link's attributes for each axis::

        [links.default]
        bandwidth = 50e9
        latency = 5e-6
    """
    if isinstance(model, str) and model.endswith(".toml"):
        model = read_machine(model).get("links")
    parsed = cost_model(model) if isinstance(model, str | Link) else model
    if isinstance(model, Mapping) and model:
        links = {axis: _link(link) for axis, link in model.items()}
        parsed = CostModel(links.pop("default", next(iter(links.values()))), links)
    if not isinstance(parsed, CostModel):
        raise ShardingTypeError(
            f"{what} a cost model, a link or the name of one, links by axis, or a file of them, not {model!r:.60}",
            hints=['"h100-nvlink"', 'sh.cost_model("h100-nvlink", dp="infiniband-ndr")', '"machine.toml"'],
        )
    return parsed


def read_machine(path: str) -> dict[str, Any]:
    """Reads a machine's TOML file: attributes of `Device`, and in ``links`` those of links."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ShardingTypeError(f"the file {path!r} describes no machine", why=str(error)) from None


def _link(link: Any) -> Link:
    if isinstance(link, Link):
        return link
    if isinstance(link, Mapping):
        try:
            return Link(**link)
        except TypeError as error:
            raise ShardingTypeError(f"{dict(link)!r:.60} are no attributes of a link", why=str(error)) from None
    if link not in LINKS:
        raise ShardingTypeError(
            f"there is no link {link!r}; known are {', '.join(LINKS)}",
            hints=["sh.Link(bandwidth=50e9, latency=5e-6)"],
        )
    return LINKS[link]
