"""Owners of source files: shtypes, the machinery (Python, JAX, numpy), installed libraries and the user."""

from __future__ import annotations

import enum
import functools
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterator
from types import FrameType
from typing import Final


class Owner(enum.Enum):
    """The owner of a file."""

    OURS = "shtypes"
    MACHINERY = "Python, JAX or numpy"  # between any caller and callee
    INSTALLED = "an installed library"
    USERS = "the user"


_PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
#: The folder of the demo, which counts as the user's.
_DEMO: Final = os.path.join(_PACKAGE, "tools", "demo", "")
#: Path prefixes of this package, without the demo.
OURS: Final = tuple(
    os.path.join(folder, name)
    for folder, without in ((_PACKAGE, "tools"), (os.path.join(_PACKAGE, "tools"), "demo"))
    for name in sorted(os.listdir(folder))
    if name != without
)
#: Path prefixes of code that runs on traced programs, and not on the user's arguments.
PROGRAMS: Final = tuple(
    os.path.join(_PACKAGE, *room.split("/"), "") for room in ("evaluation", "lifting/rows", "lifting/ways", "solver")
)
#: The directories of installed libraries, and of Python and its scripts.
_INSTALLED: Final = tuple({os.path.join(sysconfig.get_path(name), "") for name in ("purelib", "platlib")})
_PYTHON: Final = tuple({os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib", "scripts")})
_SITES: Final = frozenset({"site-packages", "dist-packages"})
#: Packages between shtypes and its callers.
_MACHINERY_PACKAGES: Final = ("jax", "jaxlib", "numpy", "ml_dtypes", "opt_einsum", "click")


@functools.cache
def _machinery_folders() -> tuple[str, ...]:
    """The folders of these packages; a user's folder may have the same name."""
    specs = [importlib.util.find_spec(name) for name in _MACHINERY_PACKAGES]
    return tuple(os.path.join(folder, "") for spec in specs if spec for folder in spec.submodule_search_locations or ())


@functools.lru_cache(maxsize=4096)
def owner_of_file(file: str) -> Owner:
    """The owner of a file, by its name in a code object."""
    if file.startswith(_PACKAGE):
        return Owner.USERS if file.startswith(_DEMO) else Owner.OURS
    if file.startswith(("<frozen", "<__array_function__", *_machinery_folders())):
        return Owner.MACHINERY
    if not _SITES.isdisjoint(file.replace("\\", "/").split("/")) or file.startswith(_INSTALLED):
        return Owner.INSTALLED
    return Owner.MACHINERY if file.startswith(_PYTHON) else Owner.USERS


def frames(start: int = 0) -> Iterator[FrameType]:
    """Python's frames, innermost first, from the caller or ``start`` frames further out."""

    def outwards(frame: FrameType | None) -> Iterator[FrameType]:
        while frame is not None:
            yield frame
            frame = frame.f_back

    return outwards(sys._getframe(start + 1))


def owner_of_frame(frame: FrameType) -> Owner:
    """The owner of the code in a frame. Generated methods, such as a dataclass's, are machinery."""
    code = frame.f_code
    if code.co_qualname.startswith("__create_fn__.") or code.co_filename.startswith("<attrs generated"):
        return Owner.MACHINERY
    return owner_of_file(code.co_filename)


def called_in(frame: FrameType) -> str:
    """The installed library's function in a frame, as users call it: ``optax.apply_updates``."""
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    function = frame.f_code.co_qualname.partition(".<locals>")[0]
    return f"{package}.{function}" if package else function
