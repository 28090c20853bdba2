"""How each op is typed, from its operands' types alone. Pure."""

from shtypes.ops.rules.typing import Typing as Typing
