"""Merges the reshards of a traced program where their types prove that it does no harm."""

from shtypes.traced.merging.program import Merged as Merged
from shtypes.traced.merging.program import merge as merge
from shtypes.traced.merging.program import merge_reshards as merge_reshards
from shtypes.traced.merging.program import merged as merged
