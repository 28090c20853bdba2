"""Sharding types: dtype, dims, the state of each mesh axis; meshes, policies, and the notation."""

from shtypes.types.parts import COTANGENT as COTANGENT
from shtypes.types.parts import REPLICATED as REPLICATED
from shtypes.types.parts import Dim as Dim
from shtypes.types.parts import State as State
from shtypes.types.shtype import ShType as ShType
