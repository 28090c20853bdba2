"""The plugin: mypy's entry points, and whether they apply.

The types are imported only when a checked file uses shtypes; otherwise the plugin costs next to nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import mypy
from mypy import plugin
from mypy.nodes import MypyFile
from mypy.options import Options
from mypy.types import FunctionLike, Type

from shtypes.context.frames import OURS
from shtypes.editor.config import hash_of_runtime, read_config
from shtypes.editor.guards import guarding
from shtypes.editor.mypy.aliases import ANNOTATED, constants_of, keep_texts, names_of_annotated
from shtypes.editor.mypy.texts import ARRAY, give_parameter
from shtypes.errors import ShardingTypeError

if TYPE_CHECKING:
    from shtypes.editor.mypy.hooks import Hooks

#: Packages that this one imports, and what they import: they cannot use it.
_BENEATH: Final = ("attr", "attrs", "jax", "markdown_it", "mdurl", "ml_dtypes", "numpy", "rich", "scipy")
#: Prefixes of modules in which nothing is typed: mypy's, those, and this package's except its demo.
_UNTYPED: Final = (
    os.path.join(os.path.dirname(mypy.__file__), ""),
    *(
        os.path.join(folder, "")
        for spec in map(find_spec, _BENEATH)
        for folder in (spec and spec.submodule_search_locations) or ()
    ),
    *OURS,
)


class ShtypesPlugin(plugin.Plugin):
    """Sharding types in mypy."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        try:
            self.config = read_config(options.config_file)
        except ShardingTypeError as error:  # mypy prints a traceback for others
            raise SystemExit(str(error)) from None
        self._hooks: Hooks | None = None
        self._constants: dict[str, dict[str, str]] = {}

    @property
    def hooks(self) -> Hooks:
        """The hooks; imports the types."""
        if self._hooks is None:
            self._hooks = import_module("shtypes.editor.mypy.hooks").Hooks(self.config, self.lookup_fully_qualified)
            self._hooks.annotations.constants = self._constants
        return self._hooks

    @property
    def active(self) -> Hooks | None:
        """The hooks, once a checked module has imported shtypes."""
        if self._hooks is None and self.lookup_fully_qualified(ARRAY) is None:
            return None
        return self.hooks

    def report_config_data(self, ctx: plugin.ReportConfigContext) -> Any:
        """The inputs of results besides files: the runtime, and the configuration."""
        if ctx.path.startswith(_UNTYPED):
            return None
        config = self.config
        return [hash_of_runtime(), config.policy, list(config.mesh.items()), sorted(config.dims.items())]

    def get_additional_deps(self, file: MypyFile) -> list[tuple[int, str, int]]:
        """No dependencies; called when mypy has read a file, to reset its scopes and aliases."""
        if self._hooks is not None:
            self._hooks.checking.forget(file.path)
        with guarding():
            if names_of_annotated(file):
                constants = constants_of(file)
                keep_texts(file, constants)
                self._constants[file.fullname] = {n: text for n, text in constants.items() if isinstance(text, str)}
        return []

    def get_type_analyze_hook(self, fullname: str) -> Callable[[plugin.AnalyzeTypeContext], Type] | None:
        """Annotations."""
        if fullname not in ANNOTATED:
            return None
        hooks = self.active
        if hooks is None:
            return None
        if hooks.annotations.aside:
            hooks.annotations.aside = False
            return None
        return hooks.annotation

    def get_customize_class_mro_hook(self, fullname: str) -> Callable[[plugin.ClassDefContext], None] | None:
        """Adds a type parameter to the class of arrays."""
        return give_parameter if fullname == ARRAY else None

    def get_function_hook(self, fullname: str) -> Callable[[plugin.FunctionContext], Type] | None:
        """Results of calls."""
        hooks = self.active
        return None if hooks is None else hooks.function(fullname)

    def get_function_signature_hook(self, fullname: str) -> Callable[[plugin.FunctionSigContext], FunctionLike] | None:
        """Signatures of functions."""
        hooks = self.active
        return None if hooks is None else hooks.function_signature(fullname)

    def get_method_hook(self, fullname: str) -> Callable[[plugin.MethodContext], Type] | None:
        """Results of operators and methods."""
        hooks = self.active
        return None if hooks is None else hooks.method(fullname)

    def get_method_signature_hook(self, fullname: str) -> Callable[[plugin.MethodSigContext], FunctionLike] | None:
        """Signatures of methods."""
        hooks = self.active
        return None if hooks is None else hooks.method_signature(fullname)

    def get_attribute_hook(self, fullname: str) -> Callable[[plugin.AttributeContext], Type] | None:
        """Properties of arrays, and attributes of users' classes."""
        hooks = self.active
        return None if hooks is None else hooks.attribute(fullname)
