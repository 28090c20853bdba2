"""How the arguments of each op are read, one file per family; what types them is in `shtypes.rules`. Pure."""

from shtypes.editor.ops import collectives as collectives
from shtypes.editor.ops import composed as composed
from shtypes.editor.ops import convolutions as convolutions
from shtypes.editor.ops import diagonals as diagonals
from shtypes.editor.ops import elementwise as elementwise
from shtypes.editor.ops import fourier as fourier
from shtypes.editor.ops import indexing as indexing
from shtypes.editor.ops import making as making
from shtypes.editor.ops import moves as moves
from shtypes.editor.ops import products as products
from shtypes.editor.ops import reductions as reductions
from shtypes.editor.ops import searches as searches
from shtypes.editor.ops import shapes as shapes
from shtypes.editor.ops import slicing as slicing
from shtypes.editor.ops import statistics as statistics
from shtypes.editor.ops.registry import PARAMETERS as PARAMETERS
from shtypes.editor.ops.registry import TYPINGS as TYPINGS
from shtypes.editor.ops.registry import Result as Result
