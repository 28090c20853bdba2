"""`sh.array`, and typed values as Python objects."""

from __future__ import annotations

import ast
import copy
import inspect
import pathlib
import pickle
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from shtypes.core.interop_errors import OF_ARRAYS
from tests.end_to_end import close, host, source

m: Any = sh  # for calls that a type checker refuses too

X = np.random.default_rng(7).normal(size=(4, 8)).astype(np.float32)

pytestmark = pytest.mark.mesh({"x": 2, "y": 2})


TAKEN: dict[str, tuple[Any, Any, str]] = {
    "double precision": (X.astype(np.float64), "[4@x,8]", "f32[4@x,8]"),
    "double precision to f32": (X.astype(np.float64), "f32[4@x,8]", "f32[4@x,8]"),
    "f32 to bf16": (X, "bf16[4@x,8]", "bf16[4@x,8]"),
    "f32 to f8": (X, "f8_e5m2[4,8@y]", "f8_e5m2[4,8@y]"),
    "a jax array to bf16": (X, "bf16[4@x,8]", "bf16[4@x,8]"),
    "integers to f32": ([1, 2], "f32[2@x]", "f32[2@x]"),
    "bools to integers": ([True, False], "i8[2@x]", "i8[2@x]"),
    "small integers": (np.array([1, 2, 3, 4]), "u8[4@(x,y)]", "u8[4@(x,y)]"),
    "integers": ([[1, 2], [3, 4]], "[2@x,2]", "i32[2@x,2]"),
    "a number": (3.5, None, "f32[]{R:(x,y)}"),
    "a pending number": (np.float32(3), "f32[]{U:(x,y)}", "f32[]{U:(x,y)}"),
    "the other byte order": (X.astype(">f4"), "[4@x,8]", "f32[4@x,8]"),
    "columns first": (np.asfortranarray(X), "[4@x,8@y]", "f32[4@x,8@y]"),
    "pending": (X, "f32[4,8@y]{U:x}", "f32[4,8@y]{U:x}"),
    "named": (X, "f32[rows@x, columns]", "f32[4@x,8]"),
    "a P": (X, jax.P("x", unreduced={"y"}), "f32[4@x,8]{U:y}"),
    "narrow": (X.astype(jnp.float8_e4m3fn), "[4@x,8]", "f8_e4m3fn[4@x,8]"),
}


@pytest.mark.core
@pytest.mark.parametrize("case", TAKEN.values(), ids=TAKEN)
def test_arrays_are_taken_in_the_type_that_is_asked_for(case: tuple[Any, Any, str]) -> None:
    given, type, wanted = case
    t = sh.ShType.parse(wanted)
    x = sh.array(given, type)
    assert sh.typeof(x) == t
    close(host(x), np.asarray(given).astype(t.dtype), wanted, 0)


@pytest.mark.parametrize(
    "fn",
    [
        lambda: sh.array([1.5, 2], "i32[2]"),
        lambda: sh.array([1, 0], "bool[2]"),
        lambda: sh.array([1j], "f32[1]"),
        lambda: sh.array(np.array([2**40])),
        lambda: sh.array(np.array([300]), "i8[1]"),
        lambda: sh.array(X, "f64[4,8]"),
        lambda: sh.array(jax.random.key(0), "f32[]"),
        lambda: sh.array(np.uint32(3), "key<fry>[]"),
        lambda: sh.array([[1, 2], [3]]),
        lambda: sh.array("text"),
        lambda: sh.array(None),
        lambda: sh.array(np.array(["2020-01-01"], dtype="M8[D]")),
        lambda: sh.array(sh.array(X)),
        lambda: sh.array(X, "[4,8]{V:x}"),
        lambda: sh.array(X, 3),
        lambda: sh.array(X, "f32[4@z,8]"),
        lambda: sh.array(X, "f32[4@x,9]"),
        lambda: sh.array(X[:3], "[3@x,8]"),
        lambda: sh.array(X, "[4@z,8]", mesh=sh.abstract_mesh({"z": 16})),
        lambda: sh.array(X, "[4@x,8]", mesh=3),
        lambda: sh.Array(X),
        lambda: sh.typeof(X),
        lambda: np.asarray(sh.array(X, "[4,8]{U:x}")),
        lambda: float(sh.sum(sh.array(X, "[4@x,8]"))),
        lambda: bool(sh.array(1.0, "[]{U:x}")),
        lambda: np.asarray(sh.abstract_array("f32[4]")),
        lambda: sh.to_jax(sh.abstract_array("f32[4]")),
        lambda: jnp.sin(m.array(X)),
        lambda: jax.jit(lambda x: 1 if x else 2)(sh.array(1.0)),
        lambda: jax.jit(float)(sh.array(1.0)),
        lambda: jax.jit(jnp.sin)(sh.array(1.0)),
    ],
    ids=source,
)
def test_what_cannot_be_is_refused(fn: Callable[[], Any]) -> None:
    with pytest.raises(sh.ShardingTypeError):
        fn()


def test_keys_are_values() -> None:
    keys = sh.array(jax.random.split(jax.random.key(0), 4), "key<fry>[4@x]")
    assert keys.type == sh.ShType.parse("key<fry>[4@x]")
    assert repr(keys) == "Array(key<fry>[4@x])"
    words = jax.random.key_data(jax.random.split(jax.random.key(0), 4))
    np.testing.assert_array_equal(jax.random.key_data(pickle.loads(pickle.dumps(keys)).to_jax()), words)


def test_scalars_are_numbers_where_python_asks() -> None:
    n, z = sh.array(2), sh.array(1.5, "[]{I:x}")
    assert (int(n), float(z), complex(z), bool(n), z.item(), [7, 8, 9][n]) == (2, 1.5, 1.5 + 0j, True, 1.5, 9)
    assert f"{z:.2f}" == "1.50"
    assert round(sh.array(2.567), 1).item() == pytest.approx(2.6)
    assert sh.array([[1, 2]]).tolist() == [[1, 2]]


def test_values_have_the_attributes_of_arrays() -> None:
    x = sh.array(X, "[4@x,8]")
    assert (x.shape, x.dtype, x.ndim, x.size, len(x)) == ((4, 8), np.float32, 2, 32, 4)
    assert np.asarray(x, dtype=np.float64).dtype == np.float64
    assert isinstance(x, sh.Array)
    assert not any(isinstance(v, sh.Array) for v in (X, 1, jnp.ones(2)))


def test_tracers_are_arrays_too() -> None:
    def look(x: Any) -> Any:
        assert type(x) is not sh.Array
        assert [isinstance(v, sh.Array) for v in (x, x.T)] == [True, True]
        assert (x.shape, x.ndim, x.size, len(x), x.dtype) == ((4, 8), 2, 32, 4, np.float32)
        assert x.type == sh.ShType.parse("f32[4@x,8]")
        return x.T.sum(0, keepdims=True).reshard(x="I")

    assert jax.jit(look)(sh.array(X, "[4@x,8]")).type == sh.ShType.parse("f32[1,4]{I:x}")


def test_a_repr_shows_the_type_and_data_that_have_a_meaning() -> None:
    assert repr(sh.array([1, 2], "[2@x]")) == "Array(i32[2@x], [1 2])"
    assert repr(sh.array(1.0, "[]{U:x}")) == "Array(f32[]{U:x})"
    assert repr(sh.abstract_array("f32[4]")) == "Array(f32[4])"
    x = sh.array(X)
    x.delete()
    assert repr(x) == "Array(f32[4,8])"


@pytest.mark.parametrize("type", ["[4@x,8]", "[4,8]{U:x}", "bf16[4,8]{I:(x,y)}"])
def test_values_survive_pickle_and_copy(type: str) -> None:
    x = sh.array(X, type)
    for y in (pickle.loads(pickle.dumps(x)), copy.copy(x), copy.deepcopy(x)):
        assert y.type == x.type
        close(host(y), host(x), type, 0)


def test_no_mesh_is_said_to_be_missing() -> None:
    with (
        pytest.raises(sh.ShardingTypeError, match="no mesh is set"),
        jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())),
    ):
        sh.array(X, "[4@x,8]")


def test_a_value_is_not_hashable_as_a_jax_array_is_not() -> None:
    for value in (sh.array(np.ones(4, np.float32)), jnp.ones(4)):
        with pytest.raises(TypeError, match="unhashable"):
            hash(value)


def test_type_checkers_see_what_values_have() -> None:
    """The stub lists the installed operators, methods and properties, with their parameters."""
    tree = ast.parse((pathlib.Path(sh.__file__).parent / "core" / "array_methods.pyi").read_text())
    stub = {
        f.name: f
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        for f in node.body
        if isinstance(f, ast.FunctionDef)
    }
    jax_internal = {"aval", "val", "__jax_array__", "__array_ufunc__", "__setitem__", *OF_ARRAYS}  # they refuse
    source = ast.parse(inspect.getsource(sys.modules["shtypes.core.array"]))
    (written,) = (n for n in source.body if isinstance(n, ast.ClassDef) and n.name == "Array")
    known = {n.name for n in written.body if isinstance(n, ast.FunctionDef)}
    known |= {ast.unparse(n.target) for n in written.body if isinstance(n, ast.AnnAssign)}
    installed = {
        name: value
        for name, value in vars(sh.Array).items()
        if name not in known | jax_internal and (callable(value) or isinstance(value, property))
    }
    assert set(stub) == set(installed)
    for name, value in installed.items():
        if isinstance(value, property):
            assert stub[name].decorator_list, name
        elif not name.startswith("_"):
            mine, theirs = stub[name].args, inspect.signature(value).parameters.values()
            if not any(p.kind is p.VAR_POSITIONAL for p in theirs):
                wanted = [p.name for p in theirs if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)][1:]
                given = [a.arg for a in (*mine.posonlyargs, *mine.args, *mine.kwonlyargs)][1:]
                assert given == wanted, name


@pytest.mark.parametrize("text", ["f32[4@x]", "f32[4]"])
def test_numpy_gets_a_copy_of_its_own_where_it_asks_for_one(text: str) -> None:
    with sh.use_mesh(sh.make_mesh({"x": 2})):
        x, plain = sh.array(np.arange(4, dtype=np.float32), text), jax.numpy.arange(4.0)
    reads: list[Any] = [
        *(np.array, np.asarray, np.copy, np.ascontiguousarray),
        *(lambda v: np.asarray(v, copy=True), lambda v: np.asarray(v, copy=False), lambda v: np.array(v, "f8")),
    ]
    for read in reads:
        found, wanted = read(x), read(plain)
        assert (found.flags.writeable, found.dtype) == (wanted.flags.writeable, wanted.dtype)
    mine = np.array(x)
    mine[0] = 7
    np.testing.assert_array_equal(x, np.arange(4))
    with pytest.raises(ValueError, match="Unable to avoid copy"):
        np.array(x, dtype="f8", copy=False)
