"""Runs a user's modules again from other code, beside those that are imported."""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from shtypes.context.frames import Owner, owner_of_file


def imported_anew(
    namespace: Mapping[str, Any], path: Path, codes: Mapping[Path, Any], names: Mapping[str, Any]
) -> dict[str, Any]:
    """The namespace of a file that is run from other code, as are the modules of other files that it imports.

    Args:
        namespace: That of the file as it was imported.
        path: The file.
        codes: The code of files, by their resolved paths; ``path`` is one.
        names: What all of them find in their namespaces.
    """
    dunders = ("__name__", "__file__", "__package__", "__spec__", "__loader__")
    module = ModuleType(str(namespace["__name__"]))
    space = vars(module)
    space.update({name: namespace[name] for name in dunders if name in namespace} | dict(names))
    with _replaced(finder := _Finder(codes, names)):
        if module.__name__ in finder.modules:
            sys.modules[module.__name__] = module
        sys.path.insert(0, str(path.parent))  # as for a script, for imports of its siblings
        exec(compile(codes[path], str(namespace.get("__file__", path)), "exec", dont_inherit=True), space)
    return space


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads a module from code."""

    def __init__(self, name: str, path: str, code: Any, names: Mapping[str, Any]) -> None:
        super().__init__(name, path)
        self._code, self._names = code, names

    def get_code(self, fullname: str) -> Any:
        return compile(self._code, self.path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(self._names)
        super().exec_module(module)


class _Finder:
    """Finds the modules of files with other code, and the user's modules that use them."""

    def __init__(self, codes: Mapping[Path, Any], names: Mapping[str, Any]) -> None:
        self._codes, self._names = codes, names
        users = {
            name: module
            for name, module in list(sys.modules.items())
            if name != "__main__"
            and isinstance(file := getattr(module, "__file__", None), str)
            and owner_of_file(file) is Owner.USERS
        }
        self.modules = {name: m for name, m in users.items() if _file(m) in codes}
        before = -1
        while before != len(self.modules):
            before = len(self.modules)
            uses = {name: m for name, m in users.items() if any(_home(x) in self.modules for x in vars(m).values())}
            self.modules.update(uses)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """The spec of such a module."""
        if name not in self.modules:
            return None
        module, file = self.modules[name], str(self.modules[name].__file__)
        code = self._codes.get(_file(module))
        loader = None if code is None else _Loader(name, file, code, self._names)
        folders = list(module.__path__) if hasattr(module, "__path__") else None
        return importlib.util.spec_from_file_location(name, file, loader=loader, submodule_search_locations=folders)


def _file(module: ModuleType) -> Path:
    return Path(str(module.__file__)).resolve()


def _home(x: Any) -> str | None:
    """The name of the module that something in a namespace is, or comes from."""
    home = x.__name__ if isinstance(x, ModuleType) else getattr(x, "__module__", None)
    return home if isinstance(home, str) else None


@contextlib.contextmanager
def _replaced(finder: _Finder) -> Iterator[None]:
    """A scope in which the finder's modules are imported anew; after it the old ones are there again."""
    before, path = finder.modules, list(sys.path)
    for name in before:
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        sys.path[:] = path
        for name, module in before.items():
            sys.modules[name] = module
            parent, _, child = name.rpartition(".")
            if parent in sys.modules:
                setattr(sys.modules[parent], child, module)
