"""The speed and memory of devices."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from shtypes.errors import ShardingTypeError
from shtypes.resharding.costs import read_machine
from shtypes.types import dtypes


@dataclass(frozen=True)
class Device:
    """The rates and memory of one device.

    Attributes:
        flops: FLOP/s of matrix products, by the short name of the operands' dtype. A missing dtype has the lowest rate.
        bandwidth: Bytes read or written in its memory per second.
        memory: Bytes of its memory, or None.
        efficiency: The fraction of ``flops`` that products reach.
        source: The source of the figures.
    """

    flops: Mapping[str, float]
    bandwidth: float
    memory: float | None = None
    efficiency: float = 1.0
    source: str = ""

    def __post_init__(self) -> None:
        rates = {name: rate for name, rate in self.flops.items() if not _positive(rate)}
        if not self.flops or rates or not _positive(self.bandwidth) or not 0 < self.efficiency <= 1:
            raise ShardingTypeError(
                "a device has a positive rate of FLOP/s for each dtype, a positive bandwidth of its memory, and an "
                f"efficiency above 0 and at most 1, not {dict(self.flops)!r:.50}, {self.bandwidth}, {self.efficiency}",
                hints=['sh.Device(flops={"bf16": 989e12, "f32": 67e12}, bandwidth=3.35e12, memory=80e9)', '"h100-sxm"'],
            )
        for name in self.flops:
            dtypes.from_any(name)

    def __hash__(self) -> int:
        return hash((tuple(sorted(self.flops.items())), self.bandwidth, self.memory, self.efficiency))

    def rate(self, dtype: str) -> float:
        """FLOP/s of products of operands of a dtype, by its short name."""
        return self.efficiency * self.flops.get(dtype, min(self.flops.values()))

    def seconds(self, flops: float, dtype: str, nbytes: float) -> float:
        """The time of a kernel: the maximum of computing and memory traffic."""
        return max(flops / self.rate(dtype), nbytes / self.bandwidth)


def _positive(number: object) -> bool:
    return isinstance(number, int | float) and math.isfinite(number) and number > 0


_NVIDIA: Final = (
    "NVIDIA, data sheet of the product (SXM): dense rates, without sparsity; f32 products in TF32 as XLA has them"
)
_TPU: Final = (
    "How to Scale Your Model (jax-ml.github.io/scaling-book), How to Think About TPUs, table of chips; f32 products at "
    "JAX's default precision, which multiplies in bf16"
)


def _tpu(bf16: float, bandwidth: float, memory: float, int8: float | None = None) -> Device:
    rates = {"bf16": bf16, "f32": bf16, **({"i8": int8} if int8 else {})}
    return Device(rates, bandwidth, memory, source=_TPU)


def _nvidia(
    half: float, tf32: float, f64: float, bandwidth: float, memory: float, eight: float | None = None
) -> Device:
    rates = {"bf16": half, "f16": half, "f32": tf32, "f64": f64, "i8": 2 * half}
    narrow = {"f8_e4m3fn": eight, "f8_e5m2": eight} if eight else {}
    return Device(rates | narrow, bandwidth, memory, source=_NVIDIA)


#: Published peak rates: with an efficiency of 1, a time is a lower bound. `benchmarks/calibrate.py` measures the rates
#: of your machine.
DEVICES: Final[Mapping[str, Device]] = {
    "a100-sxm": _nvidia(312e12, 156e12, 19.5e12, 2.039e12, 80e9),
    "h100-sxm": _nvidia(989e12, 494e12, 67e12, 3.35e12, 80e9, 1979e12),
    "h200-sxm": _nvidia(989e12, 494e12, 67e12, 4.8e12, 141e9, 1979e12),
    "b200-sxm": _nvidia(2250e12, 1125e12, 37e12, 7.7e12, 180e9, 4500e12),
    "tpu-v4": _tpu(275e12, 1.2e12, 32e9),
    "tpu-v5e": _tpu(197e12, 0.81e12, 16e9, 394e12),
    "tpu-v5p": _tpu(459e12, 2.8e12, 96e9, 918e12),
    "tpu-v6e": _tpu(920e12, 1.6e12, 32e9, 1840e12),
}


def as_device(device: Any, what: str) -> Device:
    """A device from one, its name, or a file; ``what`` begins the error message.

    A file is TOML with the attributes of `Device`, and optionally links as for `as_cost_model`::

        bandwidth = 3.35e12
        [flops]
        bf16 = 700e12
    """
    if isinstance(device, Device):
        return device
    hints = [f'"{name}"' for name in ("h100-sxm", "tpu-v5p")] + ["sh.Device(flops={...}, bandwidth=...)"]
    if not isinstance(device, str):
        raise ShardingTypeError(f"{what} a device or the name of one, not {device!r:.60}", hints=hints)
    if device in DEVICES:
        return DEVICES[device]
    if not device.endswith(".toml"):
        names = ", ".join(DEVICES)
        raise ShardingTypeError(f"there is no device {device!r}; known are {names}; or a .toml file", hints=hints)
    attributes = {key: value for key, value in read_machine(device).items() if key != "links"}
    try:
        return Device(**attributes)
    except TypeError as error:
        raise ShardingTypeError(f"the file {device!r} describes no device", why=str(error), hints=hints) from None
