"""How the arguments of each op are read, one file per family; what types them is in `shtypes.rules`. Pure."""

from shtypes.editor.ops import (
    collectives,
    composed,
    convolutions,
    diagonals,
    elementwise,
    fourier,
    indexing,
    making,
    moves,
    products,
    reductions,
    shapes,
    slicing,
)
from shtypes.editor.ops.registry import PARAMETERS as PARAMETERS
from shtypes.editor.ops.registry import TYPINGS as TYPINGS
from shtypes.editor.ops.registry import Result as Result

_FILLED = (
    collectives,
    composed,
    convolutions,
    diagonals,
    elementwise,
    fourier,
    indexing,
    making,
    moves,
    products,
    reductions,
    shapes,
    slicing,
)
