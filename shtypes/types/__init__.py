"""What a type is: dtype, dims, the state of each mesh axis; meshes, policies, and types as text. Pure."""

from shtypes.types.dim import Dim as Dim
from shtypes.types.shtype import ShType as ShType
from shtypes.types.state import COTANGENT as COTANGENT
from shtypes.types.state import REPLICATED as REPLICATED
from shtypes.types.state import State as State
