"""``Annotated[Array, "f32[8@dp]"]``: the string becomes part of mypy's type."""

from __future__ import annotations

from mypy.nodes import Context
from mypy.plugin import AnalyzeTypeContext
from mypy.types import Instance, RawExpressionType, Type, UnboundType

from shtypes.caches import Bounded
from shtypes.editor.mypy.aliases import MARK
from shtypes.editor.mypy.checking import Checking
from shtypes.editor.mypy.report import CODE
from shtypes.editor.mypy.texts import map_arrays, texts_in, with_open_text, with_text
from shtypes.editor.text_evaluator import NameNumbers, NumberedTemplate, Undetermined, is_open
from shtypes.errors import ShardingTypeError
from shtypes.signatures.matching import pattern


class Annotations:
    """Reads annotations.

    Attributes:
        aside: Whether mypy handles the next one itself.
        constants: For each module, the strings that have names in it.
    """

    def __init__(self, checking: Checking) -> None:
        self.evaluator, self.leniency, self.regions = checking.evaluator, checking.leniency, checking.regions
        self.aside = False
        self.constants: dict[str, dict[str, str]] = {}
        self._cache: Bounded[tuple[NumberedTemplate, bool]] = Bounded()  # by templates and policies

    def read(self, context: AnalyzeTypeContext) -> Type:
        """The type of an annotation: that of an array, or of a pytree of arrays, with its string."""
        self.leniency.watch(getattr(getattr(context.api, "api", None), "errors", None))
        text = _first_text(context.type.args[1:])
        if text is None:
            text = self._named(context)
        if text is None:
            return self._by_mypy(context)
        base = context.api.analyze_type(context.type.args[0])
        parsed = self._parsed(text, context)
        if parsed is None:
            return base
        printed, opens = parsed
        string = context.api.named_type("builtins.str", [])

        def change(array: Instance) -> Type:
            if next(texts_in(array), None) is not None:
                return array
            if not opens:
                return with_text(array, printed, string)
            return array if context.api.options.disallow_any_unimported else with_open_text(array, printed)

        return map_arrays(base, change)

    def _named(self, context: AnalyzeTypeContext) -> str | None:
        """The string assigned to a name of the module."""
        module = getattr(getattr(context.api, "api", None), "cur_mod_id", None)
        names = self.constants.get(module, {}) if isinstance(module, str) else {}
        words = (t.name for t in context.type.args[1:] if isinstance(t, UnboundType) and not t.args)
        return next((names[name] for name in words if name in names), None)

    def _by_mypy(self, context: AnalyzeTypeContext) -> Type:
        self.aside = True
        try:
            return context.api.analyze_type(context.type)
        finally:
            self.aside = False

    def _parsed(self, text: str, context: AnalyzeTypeContext) -> tuple[str, bool] | None:
        """A text as types print, and whether it leaves something open; None where it is none.

        It is read only where it is the first of those that differ in the names of dims.
        """
        names, policy = NameNumbers(self.evaluator.templates), self._policy(context)
        like = names.of(text)
        if like is not None and (like, policy) in self._cache:
            numbered, opens = self._cache[like, policy]
            return names.text(numbered), opens
        parsed = self._read(text, context, policy)
        if like is not None and parsed is not None:
            printed = names.of(parsed[0], new=False)
            if printed is not None:
                self._cache.put((like, policy), (printed, parsed[1]))
        return parsed

    def _policy(self, context: AnalyzeTypeContext) -> str:
        """The policy of a scope around an annotation; empty for the project's, or without a mesh in the settings."""
        tree = getattr(getattr(context.api, "api", None), "cur_mod_node", None)
        policy = self.regions.policy_at(tree, context.context.line) if self.evaluator.config.mesh else None
        return policy or ""

    def _read(self, text: str, context: AnalyzeTypeContext, policy: str) -> tuple[str, bool] | None:
        try:
            read = pattern(text)
            mesh = self.evaluator.mesh(read.axes)
            for axis in read.axes:
                mesh.index(axis)
            opens = is_open(read)
            return text if opens else self.evaluator.text(self.evaluator.type_of(text, mesh, policy)), opens
        except ShardingTypeError as error:
            where: Context = context.context
            context.api.fail("; ".join(self.evaluator.words(error)), where, code=CODE)
            return None
        except Undetermined:  # arithmetic that is not a name, such as n//2
            return None


def _first_text(args: tuple[Type, ...]) -> str | None:
    for t in args:
        if isinstance(t, UnboundType) and t.original_str_expr is not None:
            return t.original_str_expr
        if isinstance(t, RawExpressionType) and isinstance(t.literal_value, str):
            return t.literal_value.removeprefix(MARK)
    return None
