"""Owners of code: shtypes, the machinery (Python, JAX, numpy), installed libraries and the user. Pure."""

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
    """Who wrote a file."""

    OURS = "shtypes"
    MACHINERY = "Python, JAX or numpy"  # what every call goes through
    INSTALLED = "an installed library"
    USERS = "the user"


_PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
#: Where the demo is, which is written as a user writes.
_DEMO: Final = os.path.join(_PACKAGE, "tools", "demo", "")
#: Prefixes of our files: the files and folders of the package, except the demo.
OURS: Final = tuple(
    os.path.join(folder, name)
    for folder, without in ((_PACKAGE, "tools"), (os.path.join(_PACKAGE, "tools"), "demo"))
    for name in sorted(os.listdir(folder))
    if name != without
)
#: Prefixes of our files that see programs which were traced, and no arguments of the user's.
PROGRAMS: Final = tuple(
    os.path.join(_PACKAGE, *room.split("/"), "") for room in ("evaluation", "lifting/rows", "lifting/ways", "solver")
)
#: The directories that libraries are installed in, and those of Python itself and of its scripts.
_INSTALLED: Final = tuple({os.path.join(sysconfig.get_path(name), "") for name in ("purelib", "platlib")})
_PYTHON: Final = tuple({os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib", "scripts")})
_SITES: Final = frozenset({"site-packages", "dist-packages"})
#: Packages that call back and forth with us, JAX's parts, and what calls the command line.
_BETWEEN: Final = ("jax", "jaxlib", "numpy", "ml_dtypes", "opt_einsum", "click")


@functools.cache
def _between() -> tuple[str, ...]:
    """The folders of these packages. A user's folder may have such a name too."""
    specs = [importlib.util.find_spec(name) for name in _BETWEEN]
    return tuple(os.path.join(folder, "") for spec in specs if spec for folder in spec.submodule_search_locations or ())


@functools.lru_cache(maxsize=4096)
def owner_of_file(file: str) -> Owner:
    """The owner of a file, by its name in a code object."""
    if file.startswith(_PACKAGE):
        return Owner.USERS if file.startswith(_DEMO) else Owner.OURS
    if file.startswith(("<frozen", "<__array_function__", *_between())):
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
    """The owner of the code that runs in a frame. A method generated from text, such as a dataclass's, is machinery."""
    code = frame.f_code
    if code.co_qualname.startswith("__create_fn__.") or code.co_filename.startswith("<attrs generated"):
        return Owner.MACHINERY
    return owner_of_file(code.co_filename)


def called_in(frame: FrameType) -> str:
    """The function of an installed library that a frame runs, as users call it: ``optax.apply_updates``."""
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    function = frame.f_code.co_qualname.partition(".<locals>")[0]
    return f"{package}.{function}" if package else function
