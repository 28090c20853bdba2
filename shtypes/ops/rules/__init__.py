"""How each op is typed, from its operands' types alone. Pure."""

from shtypes.ops.rules.einsum import canonical_equation as canonical_equation
from shtypes.ops.rules.einsum import einsum as einsum
from shtypes.ops.rules.elementwise import additive as additive
from shtypes.ops.rules.elementwise import cast as cast
from shtypes.ops.rules.elementwise import divide as divide
from shtypes.ops.rules.elementwise import linear_unary as linear_unary
from shtypes.ops.rules.elementwise import multilinear as multilinear
from shtypes.ops.rules.elementwise import nonlinear as nonlinear
from shtypes.ops.rules.elementwise import select as select
from shtypes.ops.rules.reduce import reduce_nonlinear as reduce_nonlinear
from shtypes.ops.rules.reduce import reduce_sum as reduce_sum
from shtypes.ops.rules.shape import broadcast as broadcast
from shtypes.ops.rules.shape import expand as expand
from shtypes.ops.rules.shape import reshape as reshape
from shtypes.ops.rules.shape import squeeze as squeeze
from shtypes.ops.rules.shape import transpose as transpose
from shtypes.ops.rules.typing import Typing as Typing
