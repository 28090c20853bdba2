"""Types of a language model's weights and data in the layouts that people write."""

from __future__ import annotations

from typing import Any, Final

import jax

from tests.solver import models

#: For each kind of weight the axes of its dims.
Layout = dict[str, tuple[str, ...]]
_NORMS: Final[Layout] = dict.fromkeys(("ln", "ln1", "ln2"), ("",))
LAYOUTS: Final[dict[str, Layout]] = {
    "Megatron": {
        **dict.fromkeys("qkv", ("", "tp", "")),
        "o": ("tp", "", ""),
        "up": ("", "tp"),
        "down": ("tp", ""),
        "embed": ("tp", ""),
        "head": ("", "tp"),
        **_NORMS,
    },
    "FSDP": {
        **dict.fromkeys("qkv", ("dp", "", "")),
        "o": ("", "", "dp"),
        "up": ("dp", ""),
        "down": ("", "dp"),
        "embed": ("", "dp"),
        "head": ("dp", ""),
        **_NORMS,
    },
    "FSDP and TP": {
        **dict.fromkeys("qkv", ("dp", "tp", "")),
        "o": ("tp", "", "dp"),
        "up": ("dp", "tp"),
        "down": ("tp", "dp"),
        "embed": ("tp", "dp"),
        "head": ("dp", "tp"),
        **_NORMS,
    },
}


def gpt_types(
    d: int,
    layout: Layout,
    *,
    layers: int = 4,
    batch: int = 0,
    seq: int = 512,
    heads: int = 0,
    k: int = 64,
    f: int = 0,
    vocab: int = 32768,
    scanned: bool = False,
) -> Any:
    """The types of parameters, tokens and targets: as many tokens times ``d`` in all widths; data by dp."""
    sizes = batch or 65536 // d, seq, d, heads or d // k, k, f or 4 * d, vocab
    params, *data = models.gpt(layers, *sizes, scanned=scanned)

    def text(path: Any, x: Any) -> str:
        axes = layout[path[-1].key]
        return _text("f32", x.shape, ("",) * (x.ndim - len(axes)) + axes)

    return jax.tree_util.tree_map_with_path(text, params), *(_text("i32", x.shape, ("dp", "")) for x in data)


def _text(dtype: str, shape: tuple[int, ...], axes: tuple[str, ...]) -> str:
    return f"{dtype}[{','.join(f'{n}@{a}' if a else str(n) for n, a in zip(shape, axes, strict=True))}]"
