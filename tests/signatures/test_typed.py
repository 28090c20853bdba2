"""`typed`: annotations checked at the call, through trees and transformations, at no cost in the compiled program."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated as A
from typing import Any, Generic, NamedTuple, NotRequired, TypedDict, TypeVar

import jax
import numpy as np
import pytest

import shtypes as sh

MESH = {"dp": 2, "tp": 4}
T = TypeVar("T")
HIDDEN = "f32[b@dp, h]"  # a text of an annotation may have a name


pytestmark = pytest.mark.mesh(MESH)


def refusal(call: Callable[[], Any]) -> sh.ShardingTypeError:
    with pytest.raises(sh.ShardingTypeError) as error:
        call()
    return error.value


@dataclasses.dataclass
class Layer:
    w_in: A[sh.Array, "f32[h, i@tp]"]
    w_out: A[sh.Array, "f32[i@tp, h]"]
    name: str = "layer"


jax.tree_util.register_dataclass(Layer, ["w_in", "w_out"], ["name"])


class Pair(NamedTuple):
    x: A[sh.Array, HIDDEN]
    number: int


class Batch(TypedDict):
    tokens: A[sh.Array, "i32[b@dp]"]
    mask: NotRequired[A[sh.Array, "bool[b@dp]"]]


@sh.typed
def mlp(
    x: A[sh.Array, "f32[*batch, h]"],
    layer: Layer,
) -> A[sh.Array, "f32[*batch, h]{U:tp}"]:
    found: sh.Array = sh.silu(x @ layer.w_in) @ layer.w_out
    return found


def plain_mlp(x: Any, layer: Layer) -> Any:
    return sh.silu(x @ layer.w_in) @ layer.w_out


def layer() -> Layer:
    return Layer(sh.ones("f32[16,32@tp]"), sh.ones("f32[32@tp,16]"))


@pytest.mark.core
def test_a_call_that_fits_runs_and_another_is_refused() -> None:
    assert str(sh.typeof(mlp(sh.ones("f32[8@dp,16]"), layer()))) == "f32[8@dp,16]{U:tp}"
    assert refusal(lambda: mlp(sh.ones("f32[8@dp,12]"), layer())).what == (
        "2 values that `mlp` takes do not fit its signature"
    )


def test_nothing_of_the_checks_is_in_the_program() -> None:
    args = sh.ones("f32[8@dp,16]"), layer()
    assert str(jax.make_jaxpr(mlp)(*args)) == str(jax.make_jaxpr(plain_mlp)(*args))

    def text(f: Any) -> str:
        return str(sh.jit(f).lower(*args).as_text()).replace("plain_mlp", "mlp")

    assert text(mlp) == text(plain_mlp)


def test_it_runs_where_python_runs_the_function_and_not_again() -> None:
    seen = []

    @sh.jit
    @sh.typed
    def f(x: A[sh.Array, HIDDEN]) -> A[sh.Array, HIDDEN]:
        seen.append(x)
        return x + x

    for _ in range(3):
        jax.block_until_ready(f(sh.ones("f32[8@dp,4]")))
    assert len(seen) == 1
    assert refusal(lambda: f(sh.ones("f32[8,4]"))).what == "argument `x` of `f` is f32[8,4], not f32[b@dp, h]"


@pytest.mark.parametrize("transform", [sh.jit, jax.jit, jax.make_jaxpr, sh.checkpoint], ids=lambda t: t.__name__)
def test_it_checks_under_transformations(transform: Any) -> None:
    transform(mlp)(sh.ones("f32[8@dp,16]"), layer())
    assert refusal(lambda: transform(mlp)(sh.ones("f32[8@dp,16]{U:tp}"), layer())).fixes


def test_it_checks_under_grad_and_in_a_scanned_body() -> None:
    def loss(layer: Layer, x: Any) -> Any:
        return sh.sum(mlp(x, layer))

    grads = sh.grad(loss)(layer(), sh.ones("f32[8@dp,16]"))
    assert str(grads.w_in.type) == "f32[16,32@tp]{U:dp}"

    @sh.typed
    def body(x: A[sh.Array, HIDDEN], _: None) -> tuple[A[sh.Array, HIDDEN], None]:
        return x + x, None

    out, _ = sh.scan(body, sh.ones("f32[8@dp,4]"), None, 3)
    assert float(np.asarray(out)[0, 0]) == 8
    assert "argument `x` of `body`" in refusal(lambda: sh.scan(body, sh.ones("f32[8,4]"), None, 3)).what


def test_under_vmap_the_texts_are_those_of_one_example() -> None:
    @sh.typed
    def f(x: A[sh.Array, "f32[h]"]) -> A[sh.Array, "f32[h]"]:
        return x + x

    assert sh.vmap(f)(sh.ones("f32[3,4]")).shape == (3, 4)


@pytest.mark.parametrize("policy", ["partial", "jax"])
def test_the_same_texts_hold_under_both_policies(policy: str) -> None:
    with sh.policy(policy):
        mlp(sh.ones("f32[8@dp,16]"), layer())
        other = "I" if policy == "partial" else "R"
        found = refusal(lambda: mlp(sh.ones(f"f32[8@dp,16]{{{other}:tp}}"), layer()))
    assert "because it does not mention it" in found.why


GOLDEN = """\
argument `layer.w_in` of `mlp` is f32[16,32], not f32[h, i@tp]
  where: test_typed.py in <lambda>: mlp(x: f32[8@dp,16], layer: Layer)
         test_typed.py: w_in: f32[h, i@tp]
  why:   dim 1 (`i`) is not sharded, and the signature has it sharded over `tp`
         so far: batch=[8@dp] by `x`, h=16 by `x`, i=32 by `layer.w_in`
  fix:   sh.reshard(layer.w_in, "[16,32@tp]")   [forward: none; backward: none]"""


def test_the_message_names_argument_types_bindings_and_both_lines() -> None:
    error = refusal(lambda: mlp(sh.ones("f32[8@dp,16]"), Layer(sh.ones("f32[16,32]"), sh.ones("f32[32@tp,16]"))))
    lines = Path(__file__).read_text().split("\n")
    call, field = str(error).split("\n")[1:3]
    at = [int(line.partition("test_typed.py:")[2].split()[0].rstrip(":")) for line in (call, field)]
    assert "refusal(lambda: mlp" in lines[at[0] - 1]
    assert "w_in: A" in lines[at[1] - 1]
    assert str(error).replace(f".py:{at[0]}", ".py").replace(f".py:{at[1]}", ".py") == GOLDEN


def test_the_fix_fits() -> None:
    error = refusal(lambda: mlp(sh.ones("f32[8@dp,16]"), Layer(sh.ones("f32[16,32]"), sh.ones("f32[32@tp,16]"))))
    whole = Layer(sh.ones("f32[16,32]"), sh.ones("f32[32@tp,16]"))
    whole.w_in = eval(error.fixes[0].code, {"sh": sh, "layer": whole})
    mlp(sh.ones("f32[8@dp,16]"), whole)


def test_no_reshard_is_a_fix_where_a_size_is_another() -> None:
    @sh.typed
    def f(x: A[sh.Array, HIDDEN], w: A[sh.Array, "f32[h, o@tp]"]) -> None: ...

    error = refusal(lambda: f(sh.ones("f32[8@dp,16]"), sh.ones("f32[32@tp,16]")))
    assert "dim 0 has size 32, and `h` is 16 by `x`" in error.why
    assert not error.fixes

    @sh.typed
    def g(x: A[sh.Array, "f32[2*n]"], y: A[sh.Array, "f32[n@tp]"], z: A[sh.Array, "f32[n]"]) -> None: ...

    error = refusal(lambda: g(sh.ones("f32[12@tp]"), sh.ones("f32[4]"), sh.ones("f32[4]")))
    assert [fix.code for fix in error.fixes] == ['sh.reshard(y, "[4@tp]")']


def test_every_value_that_does_not_fit_is_listed_with_its_fix() -> None:
    error = refusal(lambda: mlp(sh.ones("f32[8@dp,16]"), Layer(sh.ones("f32[16,32]"), sh.ones("f32[32,16]{U:tp}"))))
    assert error.what == "2 values that `mlp` takes do not fit its signature"
    assert [fix.bytes_forward for fix in error.fixes] == [0, 1024]  # the copies over dp share the work
    assert error.why.count("\n") == 2


def test_a_result_that_does_not_fit_is_refused() -> None:
    @sh.typed
    def f(
        x: A[sh.Array, HIDDEN],
    ) -> tuple[A[sh.Array, "f32[2*b@dp, h]"], A[sh.Array, "f32[b, h]"]]:
        return sh.concat([x, x], axis=1), x

    error = refusal(lambda: f(sh.ones("f32[8@dp,4]")))
    assert "`result[0]` is f32[8@dp,8]: dim 1 has size 8, and `h` is 4 by `x`" in error.why
    assert "`result[1]` is f32[8@dp,4]: dim 0 (`b`) is sharded over `dp`" in error.why
    assert not error.fixes

    @sh.typed
    def g(x: A[sh.Array, HIDDEN]) -> A[sh.Array, "f32[b, h]"]:
        return x

    assert refusal(lambda: g(sh.ones("f32[8@dp,4]"))).what == "the result of `g` is f32[8@dp,4], not f32[b, h]"


TREES: list[tuple[Any, str, str]] = [
    (list[A[sh.Array, HIDDEN]], "[x, x]", "[x, y]"),
    (tuple[A[sh.Array, HIDDEN], ...], "(x, x)", "(x, y)"),
    (Sequence[A[sh.Array, HIDDEN]], "[x]", "[y]"),
    (tuple[A[sh.Array, HIDDEN], A[sh.Array, "f32[8, 4]"], int], "(x, y, 1)", "(x, x, 1)"),
    (tuple[A[sh.Array, HIDDEN], int], "(x, 1)", "(x, 1, 2)"),
    (dict[str, A[sh.Array, HIDDEN]], "{'a': x}", "{'a': x, 'b': y}"),
    (Mapping[str, A[sh.Array, HIDDEN]], "{'a': x}", "{'a': y}"),
    (dict[str, list[A[sh.Array, HIDDEN]]], "{'a': [x]}", "{'a': [y]}"),
    (Pair, "Pair(x, 2)", "Pair(y, 2)"),
    (Pair, "Pair(x, 2)", "(x, 2)"),
    (Batch, "{'tokens': t}", "{'tokens': t, 'mask': t}"),
    (A[dict[str, sh.Array], HIDDEN], "{'a': x, 'b': x}", "{'a': x, 'b': y}"),
    (A[Layer, "f32[...]"], "Layer(x, y)", "Layer(x, t)"),
    (A[sh.Array, HIDDEN] | None, "None", "y"),
    (A[sh.Array, HIDDEN] | float, "1.0", "y"),
    (A[sh.Array, HIDDEN] | A[sh.Array, "i32[b@dp]"], "t", "y"),
    (A[sh.Array | None, HIDDEN], "x", "y"),
    (A[Any, HIDDEN], "x", "y"),
    (sh.Array, "y", "1.0"),
    (sh.Array[HIDDEN], "x", "y"),  # type: ignore[misc]  # short for Annotated, at run time
    (Layer | None, "None", "x"),
]


@pytest.mark.parametrize(("hint", "fits", "refused"), TREES)
def test_a_tree_is_looked_into(hint: Any, fits: str, refused: str) -> None:
    def f(tree: Any) -> None: ...

    f.__annotations__["tree"] = hint
    checked = sh.typed(f)
    x, y, t = sh.ones("f32[8@dp,4]"), sh.ones("f32[8,4]"), sh.ones("i32[8@dp]")
    known = {"x": x, "y": y, "t": t, "Pair": Pair, "Layer": Layer}
    checked(eval(fits, known))
    assert "`tree" in refusal(lambda: checked(eval(refused, known))).what


@pytest.mark.parametrize("hint", [int, A[int, "a count"], list[int], Callable[..., Any], dict[str, int], Any, "int"])
def test_other_annotations_ask_nothing(hint: Any) -> None:
    def f(x: Any) -> Any:
        return x

    f.__annotations__["x"] = hint
    assert sh.typed(f)("anything") == "anything"


def test_an_alternative_that_does_not_fit_binds_nothing() -> None:
    @sh.typed
    def f(
        x: A[sh.Array, "f32[b@dp, h]"] | A[sh.Array, "f32[h, b]"],
        y: A[sh.Array, "f32[h]"],
    ) -> None: ...

    f(sh.ones("f32[4,8]"), sh.ones("f32[4]"))
    assert "`h` is 4 by `x`" in refusal(lambda: f(sh.ones("f32[4,8]"), sh.ones("f32[8]"))).why


def test_defaults_and_open_ended_arguments() -> None:
    @sh.typed
    def f(
        *xs: A[sh.Array, HIDDEN],
        scale: A[sh.Array, "f32[]"] = 2.0,  # type: ignore[assignment]
        **more: A[sh.Array, HIDDEN],
    ) -> None: ...

    x, y = sh.ones("f32[8@dp,4]"), sh.ones("f32[8,4]")
    f()
    f(x, x, a=x, b=x)
    f(x, scale=2.0)  # type: ignore[arg-type]
    assert "argument `xs[1]`" in refusal(lambda: f(x, y)).what
    assert "argument `b`" in refusal(lambda: f(x, a=x, b=y)).what
    assert "argument `scale`" in refusal(lambda: f(x, scale=y)).what


def test_methods_of_every_kind() -> None:
    class Model:
        @sh.typed
        def method(self, x: A[sh.Array, HIDDEN]) -> A[sh.Array, HIDDEN]:
            return x

        @classmethod
        @sh.typed
        def of_class(cls, x: A[sh.Array, HIDDEN]) -> A[sh.Array, HIDDEN]:
            return x

        @sh.typed
        @staticmethod
        def static(x: A[sh.Array, HIDDEN]) -> A[sh.Array, HIDDEN]:
            return x

        @sh.typed
        def fluent(self, other: Model, x: A[sh.Array, HIDDEN]) -> Model:
            return other

    x, y, model = sh.ones("f32[8@dp,4]"), sh.ones("f32[8,4]"), Model()
    for method in (model.method, model.of_class, model.static, Model.of_class, Model.static):
        method(x)
        assert "argument `x`" in refusal(functools.partial(method, y)).what
    assert model.fluent(model, x) is model


def test_partials_callable_objects_and_jitted_functions_are_checked() -> None:
    def f(n: int, x: A[sh.Array, HIDDEN]) -> A[sh.Array, HIDDEN]:
        return x

    class Model:
        def __call__(self, x: A[sh.Array, HIDDEN]) -> A[sh.Array, HIDDEN]:
            return x

    x, y = sh.ones("f32[8@dp,4]"), sh.ones("f32[8,4]")
    jitted = functools.partial(sh.jit(f, static_argnums=0), 1)
    for g, name in ((functools.partial(f, 1), "f"), (Model(), "Model.__call__"), (jitted, "f")):
        checked: Any = sh.typed(g)
        assert checked(x).shape == (8, 4)
        assert refusal(functools.partial(checked, y)).what.startswith(f"argument `x` of `{name}` is")


def test_the_result_of_a_coroutine_is_checked_when_it_is_there() -> None:
    @sh.typed
    async def f(x: A[sh.Array, HIDDEN]) -> A[sh.Array, "f32[b, h]"]:
        return x

    assert (
        refusal(lambda: asyncio.run(f(sh.ones("f32[8@dp,4]")))).what
        == "the result of `f` is f32[8@dp,4], not f32[b, h]"
    )


@dataclasses.dataclass
class Boxed(Generic[T]):
    w: A[sh.Array, "f32[h, h]"]
    more: T | None = None


def test_a_class_is_refused_and_a_generic_one_is_looked_into() -> None:
    assert refusal(lambda: sh.typed(Layer)).what == "`typed` takes a function, not the class `Layer`"

    @sh.typed
    def f(p: Boxed[int]) -> None: ...

    f(Boxed(sh.ones("f32[4,4]")))
    assert "`p.w`" in refusal(lambda: f(Boxed(sh.ones("f32[4,8]")))).what


def test_the_sizes_of_a_dims_scope_hold() -> None:
    @sh.typed
    def f(x: A[sh.Array, HIDDEN]) -> None: ...

    with sh.dims(h=4):
        f(sh.ones("f32[8@dp,4]"))
        assert "dim 1 has size 6, and `h` is 4 by `sh.dims`" in refusal(lambda: f(sh.ones("f32[8@dp,6]"))).why
    f(sh.ones("f32[8@dp,6]"))


def test_typed_functions_that_call_one_another_bind_names_of_their_own() -> None:
    @sh.typed
    def inner(x: A[sh.Array, "f32[h, b@dp]"]) -> A[sh.Array, "f32[h, b@dp]"]:
        return x

    @sh.typed
    def outer(x: A[sh.Array, HIDDEN]) -> A[sh.Array, HIDDEN]:
        return inner(x.T).T

    assert outer(sh.ones("f32[8@dp,4]")).shape == (8, 4)


def test_an_annotation_may_name_what_comes_later_or_is_local() -> None:
    width = 4
    text = f"f32[b@dp, {width}]"

    @sh.typed
    def f(x: A[sh.Array, text], state: Later) -> A[sh.Array, text]:
        return x

    f(sh.ones("f32[8@dp,4]"), Later(sh.ones("f32[8]")))
    assert "not f32[b@dp, 4]" in refusal(lambda: f(sh.ones("f32[8@dp,6]"), Later(sh.ones("f32[8]")))).what


@dataclasses.dataclass
class Later:
    step: A[sh.Array, "f32[n]"]
    before: Later | None = None  # a class may hold itself


def test_a_class_that_holds_itself_is_followed() -> None:
    @sh.typed
    def f(x: Later) -> None: ...

    f(Later(sh.ones("f32[4]"), Later(sh.ones("f32[4]"))))
    assert (
        "`x.before.step` of `f` is f32[8], not f32[n]"
        in refusal(lambda: f(Later(sh.ones("f32[4]"), Later(sh.ones("f32[8]"))))).what
    )


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (np.ones((8, 4), np.float32), "a numpy array of shape (8, 4)"),
        (1.0, "of class `float`"),
        (None, "None"),
    ],
)
def test_what_has_no_type_is_refused(value: Any, said: str) -> None:
    @sh.typed
    def f(x: A[sh.Array, HIDDEN]) -> None: ...

    error = refusal(lambda: f(value))
    assert error.what == f"argument `x` of `f` is {said}, not f32[b@dp, h]"
    assert error.why.startswith("it has no sharding type")


def test_a_text_that_cannot_be_read_is_refused_where_it_is_written() -> None:
    def f(x: A[sh.Array, "f32[b@dp, h"]) -> None: ...

    error = refusal(lambda: sh.typed(f))
    assert error.what.startswith("the signature of argument `x` of `f` cannot be read: cannot read the type: expected")
    assert error.where.endswith("f32[b@dp, h\n           ^")
    assert error.where.startswith("test_typed.py:")


@pytest.mark.parametrize(
    ("annotation", "said"),
    [
        ("f32[b, h@tp]", "is a type, and not an annotation"),
        ("'f32[b]{U:tp}'", "is a type, and not an annotation"),
        ("sh.Array['f32[b]'", "is not a Python expression"),
        ("the batch", ""),
    ],
)
def test_a_string_annotation_that_is_a_type_alone_is_refused_and_words_ask_nothing(annotation: str, said: str) -> None:
    def f(x: Any) -> Any:
        return x

    f.__annotations__ = {"x": annotation}
    if said:
        assert said in refusal(lambda: sh.typed(f)).what
    else:
        assert sh.typed(f)(1) == 1


def test_a_name_that_is_nowhere_is_said_when_the_function_is_called() -> None:
    code = "from __future__ import annotations\nimport shtypes as sh\n@sh.typed\ndef f(x: sh.Array[NOWHERE]): ...\n"
    known: dict[str, Any] = {}
    exec(code, known)
    error = refusal(lambda: known["f"](1))
    assert error.what == "the annotations of `f` cannot be read: name 'NOWHERE' is not defined"


def test_a_class_that_only_type_checkers_import_asks_nothing() -> None:
    code = "from __future__ import annotations\nimport shtypes as sh\n@sh.typed\ndef f(x: Nowhere): return x\n"
    known: dict[str, Any] = {}
    exec(code, known)
    assert known["f"](1) == 1


def test_a_wrong_call_is_answered_by_python() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'layer'"):
        mlp(sh.ones("f32[8@dp,16]"))  # type: ignore[call-arg]


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(sh.ShardingTypeError, match="`typed` takes a function, not 3"):
        sh.typed(3)  # type: ignore[type-var]


class Block:
    @sh.typed
    def __call__(self, x: A[sh.Array, "f32[batch@dp, h]"]) -> sh.Array:
        return x

    @sh.typed
    def run(self, x: A[sh.Array, "f32[batch@dp, h]"], p: dict[str, A[sh.Array, "f32[h, h]"]]) -> sh.Array:
        return x @ p["w"]


@pytest.mark.parametrize(
    ("call", "expression"),
    [
        (lambda block, values: block(sh.all_gather(values["x"], "dp")), 'sh.all_gather(values["x"], "dp")'),
        (lambda block, values: block.run(values["x"], values["p"]), """values["p"]['w']"""),
        (lambda block, values: block.run(x=values["x"], p=values["p"]), """values["p"]['w']"""),
        (lambda block, values: block.run(values["x"], {"w": values["p"]["w"]}), 'values["p"]["w"]'),
        (lambda block, values: block.run(values["x"], dict(values["p"])), "p['w']"),
    ],
    ids=["of an object", "in a tree", "by name", "in what the line writes", "in a result"],
)
def test_fixes_of_arguments_are_of_the_callers_expressions(call: Any, expression: str) -> None:
    """They named the parameter, which the caller's line does not have."""
    values = {"p": {"w": sh.ones("f32[4,4@tp]")}, "x": sh.ones("f32[8@dp,4]")}
    error = refusal(lambda: call(Block(), values))
    assert f"sh.reshard({expression}, " in str(error), str(error)
