"""``where:`` names the user's line, also where an installed library made the call."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from shtypes.context.frames import Owner, owner_of_file
from shtypes.context.user_line import line_of

LIBRARY = """
import jax
import jax.numpy as jnp


def apply(x):
    return inner(x)


def inner(x):
    return (lambda v: jnp.sin(v))(x)


class Optimizer:
    def update(self, x):
        return jax.tree.map(lambda v: v.astype("i32").nothing_like_it, x)

    def softmax(self, x):
        return jax.tree.map(self.wrong, x)

    def wrong(self, x):
        return x + x.reshape(3)


def calls(f, x):
    return f(x)
"""


@pytest.fixture
def library(tmp_path: Path) -> Iterator[Any]:
    """A library in a directory such as those that pip installs into."""
    site = tmp_path / "site-packages"
    (site / "optimizers").mkdir(parents=True)
    (site / "optimizers" / "__init__.py").write_text(
        "from optimizers._src import *\nfrom optimizers._src import calls\n"
    )
    (site / "optimizers" / "_src.py").write_text(LIBRARY)
    sys.path.insert(0, str(site))
    try:
        yield importlib.import_module("optimizers")
    finally:
        sys.path.remove(str(site))
        for name in [name for name in sys.modules if name.startswith("optimizers")]:
            del sys.modules[name]


@pytest.fixture(autouse=True)
def x() -> Iterator[Any]:
    with sh.use_mesh(sh.make_mesh({"x": 2})):
        yield sh.array(np.ones(4, np.float32), "f32[4@x]")


def where(call: Any) -> str:
    with pytest.raises(sh.ShardingTypeError) as caught:
        call()
    place, _, rest = caught.value.where.partition(":")
    return f"{place}:N {rest.partition(' ')[2]}"


def test_the_users_line_is_named_and_the_function_of_the_library(library: Any, x: Any) -> None:
    def step() -> Any:
        return library.apply(x)

    assert where(step) == "test_user_line.py:N in step (in optimizers.apply): jax.numpy.sin(f32[4@x])"
    assert where(lambda: library.Optimizer().softmax({"a": x})).startswith(
        "test_user_line.py:N in <lambda> (in optimizers.Optimizer.softmax): reshape"
    )


@pytest.mark.parametrize("mode", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_code_that_a_library_calls_is_the_users(library: Any, x: Any, mode: Any) -> None:
    def loss(x: Any) -> Any:
        return sh.sum(x + sh.reshape(x, 3))

    assert where(lambda: mode(lambda x: library.calls(loss, x))(x)).startswith("test_user_line.py:N in loss: reshape")


def test_the_line_of_an_error_is_found_likewise(library: Any, x: Any) -> None:
    def step() -> Any:
        return library.Optimizer().update(x)

    with pytest.raises(AttributeError) as caught:
        step()
    assert line_of(caught.value.__traceback__).endswith("in step (in optimizers.Optimizer.update)")


def test_without_a_line_of_the_users_the_librarys_own_is_named(library: Any) -> None:
    with pytest.raises(TypeError) as caught:
        library.calls(None, 1)
    inside = caught.value.__traceback__
    while inside is not None and "site-packages" not in inside.tb_frame.f_code.co_filename:
        inside = inside.tb_next
    assert line_of(inside).startswith("_src.py:")


def test_optax_is_a_library(x: Any) -> None:
    optax = pytest.importorskip("optax")
    assert where(lambda: optax.apply_updates(x, x)) == (
        "test_user_line.py:N in <lambda> (in optax.apply_updates): jax.numpy.asarray(f32[4@x])"
    )
    assert where(lambda: optax.adam(1e-3).init({"w": x})).startswith("test_user_line.py:N in <lambda> (in optax.")


def test_an_op_inside_the_one_that_was_called_is_named_beside_it(x: Any) -> None:
    pending = sh.reshard(x, x="U")
    assert where(lambda: sh.kron(pending, pending)).endswith(
        "in <lambda>: kron(f32[4]{U:x}, f32[4]{U:x}), by mul(f32[4,1]{U:x}, f32[1,4]{U:x})"
    )
    assert where(lambda: sh.nansum(pending)).endswith(
        "in <lambda>: nansum(f32[4]{U:x}), by ne(f32[4]{U:x}, f32[4]{U:x})"
    )
    assert where(lambda: pending * pending).endswith("in <lambda>: mul(f32[4]{U:x}, f32[4]{U:x})")


def test_a_method_that_a_dataclass_writes_is_nobodys_line(x: Any) -> None:
    whole = sh.ones("f32[4,4]")
    precision: Any = [1]  # has no hash, which the local function finds out where a dataclass asks for it
    assert where(lambda: sh.matmul(whole, whole, precision=precision)).startswith("test_user_line.py:N in <lambda>")


def test_files_are_told_apart() -> None:
    assert owner_of_file(sh.__file__) is Owner.OURS
    assert owner_of_file(str(Path(sh.__file__).parent / "tools" / "demo" / "show.py")) is Owner.USERS
    assert {owner_of_file(m.__file__ or "") for m in (jax, jnp, np, click, importlib)} == {Owner.MACHINERY}
    assert owner_of_file(pytest.__file__) is Owner.INSTALLED
    assert owner_of_file(str(Path(sys.prefix) / "bin" / "shtypes")) is Owner.MACHINERY
    assert {owner_of_file(name) for name in (__file__, "<stdin>", "/tmp/ipykernel_7/12.py")} == {Owner.USERS}
    assert {owner_of_file(f"/home/me/{name}/train.py") for name in ("jax", "numpy", "click")} == {Owner.USERS}
