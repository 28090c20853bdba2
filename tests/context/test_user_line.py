"""``where:`` names the user's line, also where an installed library made the call."""

from __future__ import annotations

import importlib
import operator
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
from shtypes.errors import ShardingTypeError
from shtypes.evaluation.table import ROWS

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


@pytest.mark.parametrize(
    "call",
    [
        lambda f: sh.suggest(f, jax.ShapeDtypeStruct((24, 5), "float32"), mesh={"x": 2}),
        lambda f: sh.check(sh.lift(f), sh.abstract_array("f32[24@x,5]")),
        lambda f: sh.ledger(sh.lift(f), sh.abstract_array("f32[24@x,5]")),
        lambda f: sh.grad(sh.lift(f))(sh.zeros("f32[24@x,5]")),
    ],
    ids=["suggest", "check", "ledger", "grad"],
)
def test_an_error_inside_of_a_row_is_no_error_of_the_calls_arguments(call: Any, monkeypatch: Any) -> None:
    monkeypatch.setitem(ROWS, "lgamma", operator.getitem)
    with sh.use_mesh(sh.make_mesh({"x": 2})), pytest.raises(ShardingTypeError) as info:
        call(lambda x: jnp.sum(jax.lax.lgamma(x)))
    assert "failed in a part of shtypes" in info.value.what
    assert "TypeError: 'JaxprEqn' object is not subscriptable" in info.value.what
    assert isinstance(info.value.__cause__, TypeError)


def test_an_argument_that_is_looked_at_late_is_still_at_fault() -> None:
    with pytest.raises(ShardingTypeError, match=r"`suggest` does not take(.|\n)*'str' object cannot be interpreted"):
        sh.suggest(jnp.sum, jax.ShapeDtypeStruct((24, 5), "float32"), mesh={"x": 2}, seed="first")  # type: ignore[arg-type]
