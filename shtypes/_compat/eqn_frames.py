"""The Python frames of a plain program's equation, and their names in messages."""

from __future__ import annotations

import ast
import dis
import functools
import importlib
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from shtypes._compat import private
from shtypes._compat.jaxprs import jaxpr_of
from shtypes.caches import CACHE_SIZE, Bounded
from shtypes.context.eqn_source import EqnSource
from shtypes.context.frames import Owner, owner_of_file
from shtypes.context.source_tree import Written, written_at

T = TypeVar("T")
#: The public modules of JAX's functions, by source folder.
_MODULES: Final = (
    ("numpy/linalg", "jax.numpy.linalg"),
    ("numpy/fft", "jax.numpy.fft"),
    ("numpy/", "jax.numpy"),
    ("ops/special", "jax.scipy.special"),
    ("nn/initializers", "jax.nn.initializers"),
    ("nn/", "jax.nn"),
    ("random", "jax.random"),
    ("image/", "jax.image"),
    ("lax/", "jax.lax"),
)


#: Functions of libraries that only call others: `Module.apply`, wrappers, private functions.
_FORWARDING: Final = re.compile(r"(^|\.)_(?!_)|wrap|intercept|(^|\.)(apply|init)(_fn)?($|\.)")


class Frame(NamedTuple):
    """One frame of an equation's stack."""

    code: Any  # its code object
    last: int  # the instruction's offset

    @property
    def file(self) -> str:
        """The path of its file, with slashes."""
        return str(self.code.co_filename).replace("\\", "/")

    @property
    def line(self) -> int:
        """The current line."""
        return _positions(self.code, self.last)[0]

    @property
    def function(self) -> str:
        """The qualified name of the function, without enclosing functions."""
        return str(self.code.co_qualname).replace(".<locals>", "")

    @property
    def place(self) -> str:
        """The file and line: ``train.py:9``."""
        return f"{self.file.rpartition('/')[2]}:{self.line}"

    @property
    def kind(self) -> Owner:
        """The owner of the code."""
        return owner_of_file(self.code.co_filename)

    @property
    def is_call(self) -> bool:
        """Whether the current instruction is a call."""
        return "CALL" in dis.opname[self.code.co_code[self.last]]

    def __str__(self) -> str:
        return self.place if self.code.co_name == "<module>" else f"{self.place} in {self.code.co_name}"

    def module(self) -> str:
        """The file as a module: ``flax.nnx.nn.linear``."""
        path = self.file.removesuffix(".py").removesuffix("/__init__")
        for site in ("/site-packages/", "/dist-packages/"):
            path = path.rpartition(site)[2]
        return path.strip("/").replace("/", ".")

    def written(self) -> Written | None:
        """The current expression in the source; None if unavailable."""
        start, end, column, stop = _positions(self.code, self.last)
        return None if column is None or stop is None else written_at(self.code.co_filename, (start, end, column, stop))

    def expression(self) -> str:
        """The source of the current expression, on one line; empty if unavailable."""
        written = self.written()
        return "" if written is None or isinstance(written.node, ast.Tuple) else written.text()  # else a target

    def operands(self) -> list[str]:
        """The source of the current expression's operands, without constants; empty if ambiguous."""
        written = self.written()
        parts = [] if written is None else written.operands()
        if written is not None and isinstance(node := written.node, ast.Call):
            method = isinstance(node.func, ast.Attribute) and not self._is_of_module(node.func)
            values = [part for part in parts[isinstance(node.func, ast.Attribute) :] if not self._is_setting(part)]
            parts = values if not method else parts[:1] if not values else []
            parts = parts if len(parts) == 1 else []
        return [ast.unparse(part) for part in parts if not _is_constant(part)]

    def _is_of_module(self, node: ast.expr) -> bool:
        """Whether an expression is a global's attribute, as ``jnp.float32``, not one of a value."""
        local = {*self.code.co_varnames, *self.code.co_freevars, *self.code.co_cellvars}
        return isinstance(node, ast.Attribute) and _root(node) not in ("", *local)

    def _is_setting(self, node: ast.expr) -> bool:
        return _is_constant(node) or self._is_of_module(node)

    def reads(self, text: str) -> bool:
        """Whether an expression is a part of the current one."""
        written = self.written()
        return written is not None and written.reads(text)

    def binds(self, name: str, reader: Frame) -> bool:
        """Whether a variable that its statement binds has that value where a frame reads it."""
        stores = self._stores(name)
        if reader.code is not self.code:
            return len(stores) == 1 and name in reader.code.co_freevars
        return len(stores) == 1 or sum(self.last < offset < reader.last for offset in stores) == 1

    def is_bound(self, name: str) -> bool:
        """Whether an instruction binds a variable."""
        return bool(self._stores(name))

    def is_bound_before(self, name: str) -> bool:
        """Whether an earlier instruction binds a variable."""
        return any(offset < self.last for offset in self._stores(name))

    def is_bound_once(self, name: str) -> bool:
        """Whether a single instruction binds a variable."""
        return len(self._stores(name)) == 1

    def _stores(self, name: str) -> list[int]:
        """The offsets of the instructions that bind a variable."""
        names = ((i.offset, i.argval) for i in dis.get_instructions(self.code) if "STORE_" in i.opname)
        return [offset for offset, bound in names if name in (bound if isinstance(bound, tuple) else (bound,))]


def _is_constant(node: ast.expr) -> bool:
    """Whether an expression is written with constants: ``-1``, ``(0, 1)``."""
    try:
        ast.literal_eval(node)
    except ValueError:
        return False
    return True


def _root(node: ast.expr) -> str:
    """The variable that a chain of attributes begins with; empty if it begins with another expression."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def is_vmap(frame: Frame) -> bool:
    """Whether a frame is that of a call of a function which `jax.vmap` returned."""
    return bool(frame.code.co_qualname == "vmap.<locals>.vmap_f")


@functools.lru_cache(maxsize=4096)
def _positions(code: Any, last: int) -> tuple[int, int, int | None, int | None]:
    positions = list(code.co_positions())
    position = positions[last // 2] if 0 <= last // 2 < len(positions) else (None, None, None, None)
    start = position[0] or code.co_firstlineno
    return start, position[1] or start, position[2], position[3]


def frames_of(eqn: Any) -> list[Frame]:
    """The frames in which an equation was traced, innermost first; for one in a sub-jaxpr, those inside its caller."""
    return _frames_of_stack(eqn.source_info.traceback)


def _frames_of_stack(traceback: Any) -> list[Frame]:
    return [] if traceback is None else [Frame(*f) for f in zip(*traceback.raw_frames(), strict=True)]


def of_frames(f: Callable[[list[Frame]], T]) -> Callable[[Any], T]:
    """The function of an equation that is a function of its frames. Equal stacks, as of unrolled layers, are one."""
    of_stack = functools.lru_cache(maxsize=CACHE_SIZE)(lambda traceback: f(_frames_of_stack(traceback)))

    @functools.wraps(f)
    def of_eqn(eqn: Any) -> T:
        return of_stack(eqn.source_info.traceback)

    return of_eqn


@functools.lru_cache(maxsize=4096)
def has_users_line(traceback: Any) -> bool:
    """Whether a JAX stack has a line of the user's code."""
    return traceback is not None and any(
        owner_of_file(code.co_filename) is Owner.USERS for code in traceback.raw_frames()[0]
    )


def users_frame(frames: Sequence[Frame]) -> tuple[Frame, str] | None:
    """The user's frame of a stack and the library function that it called, or None."""
    frame = next((f for f in frames if f.kind is Owner.USERS), None)
    return None if frame is None else (frame, eqn_source_of(frames).library)


def eqn_source_of(frames: Sequence[Frame]) -> EqnSource:
    """The user's line of a stack, the library function called there, and the JAX function called."""
    library = forwarding = called = ""
    in_library = False
    for frame in frames:
        kind = frame.kind
        if kind is Owner.USERS:
            return EqnSource(str(frame), library or forwarding, called)
        in_library = in_library or kind is Owner.INSTALLED
        if kind is Owner.INSTALLED:
            if _FORWARDING.search(frame.code.co_qualname):
                forwarding = _in_library(frame) or forwarding
            else:
                library = _in_library(frame) or library
        elif not in_library:
            called = _of_jax(frame) or called
    return EqnSource("", library or forwarding, called)


def _in_library(frame: Frame) -> str:
    function = frame.code.co_qualname.partition(".<locals>")[0]
    return "" if function.startswith("<") else f"{frame.module().partition('.')[0]}.{function}"


def _of_jax(frame: Frame) -> str:
    """The public name of a JAX function, such as ``jnp.median``, or empty."""
    _, in_jax, path = frame.file.rpartition("/jax/")
    return _public(path, frame.code.co_qualname.partition(".<locals>")[0]) if in_jax else ""


@functools.lru_cache(maxsize=1024)
def _public(path: str, function: str) -> str:
    """The public name of a function in a file of JAX, or empty."""
    path = path.removeprefix("_src/").removesuffix(".py")
    module = next((name for part, name in _MODULES if path.startswith(part)), "")
    if path.startswith("scipy/"):
        module = "jax." + path.replace("/", ".")
    if not module or function.startswith(("_", "<")):
        return ""
    try:
        public_function = getattr(importlib.import_module(module), function, None)
    except ImportError:
        return ""
    return f"{module.replace('jax.numpy', 'jnp')}.{function}" if callable(public_function) else ""


# the user's expressions


class UserFrame(NamedTuple):
    """An expression of the user's code in a stack; one object for each place in a program."""

    file: str
    function: str  # the qualified name of its function
    line: int  # the first line of the expression
    column: int  # its first column, in bytes
    end_line: int
    end_column: int  # the column after its end
    parameters: tuple[str, ...]  # the names of the function's positional parameters


_is_user_filename: Final[Callable[[str], bool]] = private("jax._src.source_info_util", "is_user_filename")
_raw_frame_to_frame: Final[Callable[..., Any]] = private("jax._src.source_info_util", "raw_frame_to_frame")
#: By the id of a code object, to which the entry refers so that the id is not reused.
_frames: Bounded[tuple[Any, UserFrame | None]] = Bounded(1 << 14)


@of_frames
def user_frames(frames: Sequence[Frame]) -> tuple[UserFrame, ...]:
    """The user's frames of an equation, innermost first."""
    users = []
    for code, last in frames:
        entry = _frames.get((id(code), last))
        if entry is None:
            entry = _frames.put((id(code), last), (code, _user_frame(code, last)))
        if entry[1] is not None:
            users.append(entry[1])
    return tuple(users)


def _user_frame(code: Any, last: int) -> UserFrame | None:
    # numpy is machinery here, since it calls methods of its array arguments
    if not _is_user_filename(code.co_filename) or owner_of_file(code.co_filename) is Owner.MACHINERY:
        return None
    frame = _raw_frame_to_frame(code, last)
    place = (frame.start_line, frame.start_column, frame.end_line, frame.end_column)
    return UserFrame(frame.file_name, frame.function_name, *place, code.co_varnames[: code.co_argcount])


def is_of_a_library(body: Any) -> bool:
    """Whether a jitted function is not the user's code.

    Its trace is cached for all calls, so that the frames of its equations are those of the first call.
    """
    return _owner(body) not in (None, Owner.USERS)


def is_of_jax(body: Any) -> bool:
    """Whether a jitted function is one of JAX, and not another of the same name."""
    return _owner(body) is Owner.MACHINERY


def _owner(body: Any) -> Owner | None:
    info = getattr(jaxpr_of(body), "debug_info", None)
    file, _, line = str(getattr(info, "func_src_info", "")).partition(" at ")[2].rpartition(":")
    return owner_of_file(file) if line.isdigit() else None
