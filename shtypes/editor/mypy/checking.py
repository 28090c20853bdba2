"""What the hooks share: what texts mean, the scopes around a line, and what communicates in them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from mypy.nodes import Context, SymbolTableNode, TypeInfo
from mypy.plugin import AttributeContext, CheckerPluginInterface, FunctionContext, MethodContext
from mypy.types import Instance, Type

from shtypes.context import settings
from shtypes.context.settings import current_settings
from shtypes.editor.config import Config
from shtypes.editor.mypy.leniency import Leniency
from shtypes.editor.mypy.parts import Parts
from shtypes.editor.mypy.regions import NOTHING, Around, Regions
from shtypes.editor.mypy.report import Asked, fail, renamed
from shtypes.editor.space import Space, Unknown

_SENDS: Final = re.compile(r"; each device would send \d+ B|^each device would send \d+ B$")
AnyContext = FunctionContext | MethodContext | AttributeContext


class Checking:
    """What one run of mypy has in common."""

    def __init__(self, config: Config, lookup: Callable[[str], SymbolTableNode | None]) -> None:
        self.space, self.lookup = Space(config), lookup
        self.regions = Regions()
        self.parts = Parts()
        self.leniency = Leniency(self.space)
        self._string: Instance | None = None

    def around(self, api: CheckerPluginInterface, where: Context) -> Around:
        """What the scopes around a call say."""
        self.leniency.watch(api.msg.errors)
        tree = getattr(api, "tree", None)
        return self.regions.around(tree, where.line)

    @contextlib.contextmanager
    def scope(self, around: Around = NOTHING) -> Iterator[None]:
        """Has the policy of a line in force, and no scope that is open where mypy runs."""
        policy = around.policy or self.space.config.policy
        now = current_settings()
        wanted = settings.Settings(policy)
        if now == wanted:
            yield
            return
        with settings.scope(wanted):
            yield

    def instance(self, fullname: str, args: Sequence[Type]) -> Instance | None:
        """The type of a class of shtypes, which the file at hand need not import."""
        found = self.lookup(fullname)
        return Instance(found.node, args) if found is not None and isinstance(found.node, TypeInfo) else None

    def string(self, api: CheckerPluginInterface) -> Instance:
        """The class of texts."""
        if self._string is None:
            self._string = api.named_generic_type("builtins.str", [])
        return self._string

    def forget(self, path: str) -> None:
        """A file has been read anew."""
        self.regions.forget(path)
        self.parts.forget(path)
        self._string = None

    def knows_policy(self, around: Around) -> bool:
        """Whether it is known what the policy of a line says of every axis, if it is not that of the project."""
        config = self.space.config
        return around.policy in (None, config.policy) or bool(config.mesh)

    def judge(self, context: AnyContext, asked: Asked, around: Around) -> None:
        """Reports what communicates in a call though a scope around it forbids it."""
        with contextlib.suppress(Unknown):
            error = asked.again(self.space, scopes=around.rules)
            if error is not None:
                notes = [why] if (why := _SENDS.sub("", error.why)) else []
                notes += [f"the scope is that of line {around.lines[-1]}"]
                notes += [f"try: {renamed(h, asked)}" for h in error.hints[:1]]
                fail(context.api, context.context, error.what, notes)
