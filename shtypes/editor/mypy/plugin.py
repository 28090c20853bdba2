"""The plugin: which hook answers for which name."""

from __future__ import annotations

import functools
import hashlib
import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from mypy.nodes import CallExpr, Decorator, FuncDef, MypyFile, OverloadedFuncDef, TypeInfo, Var
from mypy.options import Options
from mypy.plugin import (
    AnalyzeTypeContext,
    AttributeContext,
    ClassDefContext,
    FunctionContext,
    FunctionSigContext,
    MethodContext,
    MethodSigContext,
    Plugin,
    ReportConfigContext,
)
from mypy.types import CallableType, FunctionLike, Type, get_proper_type

from shtypes.editor.mypy.aliases import keep_texts
from shtypes.editor.mypy.annotations import ANNOTATED, Annotations
from shtypes.editor.mypy.calls import CallHooks, has_texts
from shtypes.editor.mypy.checking import Checking
from shtypes.editor.mypy.constants import constants_of
from shtypes.editor.mypy.ops import FUNCTIONS, OpHooks
from shtypes.editor.mypy.regions import SCOPES
from shtypes.editor.mypy.texts import ARRAY, give_parameter, mentions_array
from shtypes.editor.mypy.transformations import Transformations
from shtypes.editor.space import Config
from shtypes.errors import ShardingTypeError
from shtypes.types.mesh import Mesh

C = TypeVar("C")

#: The classes whose methods are those of arrays.
_OF_ARRAYS: Final = (f"{ARRAY}.", "shtypes.core.array_methods.Methods.")


class ShtypesPlugin(Plugin):
    """Sharding types in mypy."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.checking = Checking(read_config(options), self.lookup_fully_qualified)
        self.annotations = Annotations(self.checking.space)
        self.ops = OpHooks(self.checking)
        self.calls = CallHooks(self.checking)
        self.transformations = Transformations(self.checking)

    def report_config_data(self, ctx: ReportConfigContext) -> Any:
        """What the results depend on besides the files: the rules, and the configuration."""
        config = self.checking.space.config
        return [hash_of_rules(), config.policy, sorted(config.mesh.items()), sorted(config.dims.items())]

    def get_additional_deps(self, file: MypyFile) -> list[tuple[int, str, int]]:
        """None; but mypy asks for them when it has read a file, whose scopes and aliases are then others."""
        self.checking.regions.forget(file.path)
        with guarding():
            keep_texts(file)
            self.annotations.constants[file.fullname] = constants_of(file)
        return []

    def get_type_analyze_hook(self, fullname: str) -> Callable[[AnalyzeTypeContext], Type] | None:
        """Annotations."""
        if fullname not in ANNOTATED:
            return None
        if self.annotations.aside:
            self.annotations.aside = False
            return None
        return self._annotation

    def _annotation(self, context: AnalyzeTypeContext) -> Type:
        with guarding():
            return self.annotations.read(context)
        return context.api.analyze_type(context.type.args[0])

    def get_customize_class_mro_hook(self, fullname: str) -> Callable[[ClassDefContext], None] | None:
        """The class of arrays gets a parameter."""
        return give_parameter if fullname == ARRAY else None

    # ops and functions

    def get_function_hook(self, fullname: str) -> Callable[[FunctionContext], Type] | None:
        """Results of calls."""
        op = FUNCTIONS.get(fullname)
        if op is not None:
            return _result(functools.partial(self.ops.function, op=op))
        if self._is_users(fullname):
            return _result(self.calls.result)
        transformation = self.transformations.function(fullname)
        return None if transformation is None else _result(transformation)

    def get_function_signature_hook(self, fullname: str) -> Callable[[FunctionSigContext], FunctionLike] | None:
        """What mypy checks arguments by."""
        if fullname in SCOPES:
            return _signature(self._opened)
        return _signature(self.calls.signature) if self._is_users(fullname) else None

    def _opened(self, context: FunctionSigContext) -> FunctionLike:
        if isinstance(context.context, CallExpr):
            self.checking.regions.open(getattr(context.api, "tree", None), context.context)
        return context.default_signature

    def get_method_hook(self, fullname: str) -> Callable[[MethodContext], Type] | None:
        """Results of operators and methods."""
        if fullname.startswith(_OF_ARRAYS):
            return _result(functools.partial(self.ops.method, name=fullname.rpartition(".")[2]))
        transformation = self.transformations.method(fullname)
        if transformation is not None:
            return _result(transformation)
        return _result(self.calls.result) if self._has_users_method(fullname) else None

    def get_method_signature_hook(self, fullname: str) -> Callable[[MethodSigContext], FunctionLike] | None:
        """What mypy checks the arguments of methods by."""
        if fullname.startswith(_OF_ARRAYS) or not self._has_users_method(fullname):
            return None
        return _signature(self.calls.signature)

    def get_attribute_hook(self, fullname: str) -> Callable[[AttributeContext], Type] | None:
        """Properties of arrays."""
        if not fullname.startswith(_OF_ARRAYS):
            return None
        return _attribute(functools.partial(self.ops.attribute, name=fullname.rpartition(".")[2]))

    def _is_users(self, fullname: str) -> bool:
        """Whether a name is that of a function with texts, or a local one."""
        if fullname.startswith(("builtins.", "typing.", "jax.")):
            return False
        if "." not in fullname:
            return True
        found = self.lookup_fully_qualified(fullname)
        if fullname.startswith("shtypes."):
            return found is not None and isinstance(found.node, FuncDef) and _has_texts(found.node)
        return found is not None and _may_take_arrays(found.node)

    def _has_users_method(self, fullname: str) -> bool:
        if fullname.startswith(("builtins.", "typing.", "jax.")):
            return False
        if fullname.startswith("shtypes."):
            return fullname.endswith(".__call__")
        owner, _, name = fullname.rpartition(".")
        found = self.lookup_fully_qualified(owner)
        if found is None or not isinstance(found.node, TypeInfo):
            return True
        method = found.node.get(name)
        return method is None or _may_take_arrays(method.node)


def _may_take_arrays(node: object) -> bool:
    """Whether a function may take arrays, as far as its type says."""
    if isinstance(node, Decorator):
        node = node.var
    if isinstance(node, TypeInfo):
        init = node.get("__init__") or node.get("__new__")
        return init is not None and _may_take_arrays(init.node)
    if isinstance(node, OverloadedFuncDef):
        return False
    t = node.type if isinstance(node, (FuncDef, Var)) else None
    found = None if t is None else get_proper_type(t)
    return not isinstance(found, CallableType) or _mentions(found)


def _has_texts(node: FuncDef) -> bool:
    """Whether a function of shtypes is one of its examples."""
    return isinstance(node.type, CallableType) and has_texts(node.type)


def _mentions(t: CallableType) -> bool:
    return any(map(mentions_array, t.arg_types))


# guards: what goes wrong here must never end a run of mypy

#: Whether errors of the plugin itself leave it, for its own tests.
STRICT: Final = bool(os.environ.get("SHTYPES_STRICT_PLUGIN"))


class guarding:  # noqa: N801  # used as a function is
    """A block in which what goes wrong is as if it had not been asked."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: object, traceback: object) -> bool:
        return isinstance(error, Exception) and not STRICT


def _result(hook: Callable[[C], Type]) -> Callable[[C], Type]:
    def guarded(context: C) -> Type:
        with guarding():
            return hook(context)
        default: Type = context.default_return_type  # type: ignore[attr-defined]
        return default

    return guarded


def _attribute(hook: Callable[[AttributeContext], Type]) -> Callable[[AttributeContext], Type]:
    def guarded(context: AttributeContext) -> Type:
        with guarding():
            return hook(context)
        return context.default_attr_type

    return guarded


def _signature(hook: Callable[[C], FunctionLike]) -> Callable[[C], FunctionLike]:
    def guarded(context: C) -> FunctionLike:
        with guarding():
            return hook(context)
        default: FunctionLike = context.default_signature  # type: ignore[attr-defined]
        return default

    return guarded


# configuration


def read_config(options: Options) -> Config:
    """``[tool.shtypes]`` of the ``pyproject.toml`` beside the configuration of mypy, or else where mypy runs.

    Raises:
        ShardingTypeError: it says what is none.
    """
    places = [Path(options.config_file)] if options.config_file else []
    places = [p if p.name == "pyproject.toml" else p.parent / "pyproject.toml" for p in places]
    for place in (*places, Path("pyproject.toml")):
        if place.is_file():
            given = tomllib.loads(place.read_text(encoding="utf-8")).get("tool", {}).get("shtypes", {})
            return checked_config(given)
    return Config()


def checked_config(given: dict[str, Any]) -> Config:
    """The configuration, once it is seen to be one.

    Raises:
        ShardingTypeError: it is none.
    """
    unknown = sorted(set(given) - set(Config._fields))
    if unknown:
        hints = [f"`{name}`" for name in Config._fields]
        raise ShardingTypeError(f"`[tool.shtypes]` has no entry `{unknown[0]}`", hints=hints)
    config = Config(**given)
    Mesh(config.mesh)
    if config.policy not in ("partial", "jax"):
        raise ShardingTypeError(f"`[tool.shtypes]` has a policy `{config.policy}`", hints=['"partial"', '"jax"'])
    if not all(type(n) is int and n >= 0 for n in config.dims.values()):
        raise ShardingTypeError("the `dims` of `[tool.shtypes]` are names and their sizes")
    return config


#: What results depend on, in the package.
_PURE: Final = (
    *("types", "rules", "signatures", "plans", "scopes", "editor"),
    *("ops/table.py", "ops/rows.py", "ops/of_arrays.py"),
)


@functools.cache
def hash_of_rules() -> str:
    """What tells apart versions of the rules: mypy forgets what it found by others."""
    package = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for room in _PURE:
        place = package / room
        for file in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            digest.update(file.read_bytes())
    return digest.hexdigest()
