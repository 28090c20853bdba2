"""The typing rule of each op, from its operands' types."""

from shtypes.rules.along_dims import ResultDims as ResultDims
from shtypes.rules.along_dims import reduce_nonlinear as reduce_nonlinear
from shtypes.rules.along_dims import reduce_sum as reduce_sum
from shtypes.rules.along_dims import unary_along as unary_along
from shtypes.rules.einsum_like import canonical_equation as canonical_equation
from shtypes.rules.einsum_like import einsum as einsum
from shtypes.rules.elementwise import additive as additive
from shtypes.rules.elementwise import cast as cast
from shtypes.rules.elementwise import divide as divide
from shtypes.rules.elementwise import linear_unary as linear_unary
from shtypes.rules.elementwise import multilinear as multilinear
from shtypes.rules.elementwise import nonlinear as nonlinear
from shtypes.rules.elementwise import select_n as select_n
from shtypes.rules.shape import broadcast as broadcast
from shtypes.rules.shape import concatenate as concatenate
from shtypes.rules.shape import pad as pad
from shtypes.rules.shape import reshape as reshape
from shtypes.rules.shape import squeeze as squeeze
from shtypes.rules.shape import stack as stack
from shtypes.rules.shape import transpose as transpose
from shtypes.rules.typing import Typing as Typing
