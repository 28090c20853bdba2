"""Types as text: reading, printing, and the only place where the policy and dim names act."""

from shtypes.notation.printing import canonical as canonical
from shtypes.notation.printing import show as show
from shtypes.notation.reading import names_type as names_type
from shtypes.notation.reading import parse as parse
from shtypes.notation.scope import current_dims as current_dims
from shtypes.notation.scope import dims as dims
from shtypes.notation.target import Spec as Spec
from shtypes.notation.target import Target as Target
from shtypes.notation.target import as_type as as_type
from shtypes.notation.target import from_spec as from_spec
