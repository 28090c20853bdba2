"""Plans written into source files: what is written, that it types to what the plan says, and what is refused."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

import shtypes as sh
from shtypes.tools.patch import patched
from shtypes.tools.patch_plan import type_text
from tests.end_to_end import host
from tests.golden import golden
from tests.solver.models import arrays
from tests.tools.cli.running import Run, runner

MESH = {"dp": 2, "tp": 4}
SETTINGS: dict[str, Any] = {"mesh": MESH, "links": sh.Link(50e9), "compute": sh.Device({"f32": 400e12}, 2.4e12)}
HEAD = '''"""A model."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def norm(x):
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6)


'''
#: Bodies of `loss`, and its arguments.
MODELS: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "megatron": (
        """def loss(w, x):
    def layer(x, w):
        return x + jnp.tanh(norm(x) @ w["up"]) @ w["down"], None  # a comment

    x, _ = jax.lax.scan(jax.checkpoint(layer), x, w["layers"])
    return jnp.mean(jnp.square(x @ w["head"]))
""",
        (
            {"layers": {"up": "f32[4, 64, 256]", "down": "f32[4, 256, 64]"}, "head": "f32[64, 128]"},
            "f32[32, 64]",
        ),
        {
            "fixed": {
                "w/layers/up": "[_, _, _@tp]",
                "w/layers/down": "[_, _@tp, _]",
                "x": "[_@dp, _]",
                "model.py:17 <- w/layers/up": "[_, _, _@tp]",
                "model.py:17 <- w/layers/down": "[_, _@tp, _]",
            }
        },
    ),
    "fsdp": (
        """def loss(w, x):
    for up, down in zip(w["up"], w["down"]):
        h = jax.nn.gelu(
            x @ up,
        )
        x = x + h @ down
    return jnp.mean(jnp.square(x))
""",
        ({"up": ["f32[256, 1024]"] * 2, "down": ["f32[1024, 256]"] * 2}, "f32[1024, 256]"),
        {"fixed": {"up/*": "[_@(dp,tp), _]", "down/*": "[_, _@(dp,tp)]", "x": "[_@(dp,tp), _]"}},
    ),
    "vocabulary": (
        """def loss(w, tokens, targets):
    x = w["embed"][tokens]
    logits = norm(x) @ w["head"]
    picked = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - picked)
""",
        ({"embed": "f32[4096, 64]", "head": "f32[64, 4096]"}, "i32[16, 32]", "i32[16, 32]"),
        {"fixed": {"w/embed": "[_@tp, _]", "w/head": "[_, _@dp]", "tokens": "[_, _@tp]", "targets": "[_, _@tp]"}},
    ),
    "leaf": (
        """def loss(w, x):
    x, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w["all"])
    return jnp.sum(x)
""",
        ({"all": "f32[4, 64, 64]"}, "f32[32, 64]"),
        {"fixed": {"w/all": "[_@tp, _, _]", "x": "[_@dp, _]"}},
    ),
    "shifted": (
        """def loss(w, x):
    y = jnp.tanh(x @ w["up"])
    change = jnp.concatenate([y[:, 1:], jnp.zeros((1024, 1))], 1) - y
    return jnp.mean(jnp.square(change @ w["down"]))
""",
        ({"up": "f32[64, 256]", "down": "f32[256, 64]"}, "f32[1024, 64]"),
        {"fixed": {"w/up": "[_@(dp,tp), _]", "w/down": "[_, _@(dp,tp)]", "x": "[_@(dp,tp), _]"}},
    ),
    "differing": (
        """def dense(p, x):
    return x @ p["w"] * 2


def loss(w, x):
    for p in w["hidden"]:
        x = jnp.tanh(dense(p, x))
    return jnp.mean(jnp.square(dense(w["last"], x)))
""",
        (
            {
                "hidden": [{"w": f"f32[{m}, {n}]"} for m, n in ((64, 256), (256, 128))],
                "last": {"w": "f32[128, 256]"},
            },
            "f32[64, 64]",
        ),
        {"fixed": {"hidden/0/w": "[_, _@tp]", "hidden/1/w": "[_@tp, _]", "w/last/w": "[_, _@tp]", "x": "[_@dp, _]"}},
    ),
    "names": (
        """class Model:
    @staticmethod
    def loss(w, x, *, scale=2.0):
        y = (x @ w["up"]) * scale
        return jnp.sum(y := jnp.tanh(y) @ w["down"])


x = 1
""",
        ({"up": "f32[128, 1024]", "down": "f32[1024, 128]"}, "f32[64, 128]"),
        {"inputs": {"x": "[_, _]"}},
    ),
}


def loaded(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)  # where dataclasses look their types up
    spec.loader.exec_module(module)
    return module


def function(path: Path, name: str) -> Any:
    module = loaded(path)
    return module.Model.loss if name == "names" else module.loss


def planned(path: Path, name: str) -> tuple[Any, Any]:
    """The function of a model in a file, and the plan that is found for it."""
    body, shapes, options = MODELS[name]
    if not path.exists():
        path.write_text(HEAD + body)
    f = function(path, name)
    return f, sh.suggest(f, *shapes, **SETTINGS, **options)[0]


def written(path: Path, name: str) -> tuple[Any, Any]:
    """What a patch wrote beside the function: the types of its arguments, and the step."""
    module, prefix = loaded(path), "Model_loss" if name == "names" else "loss"
    return getattr(module, f"{prefix}_types"), getattr(module, f"{prefix}_step")


def sent(path: Path, mesh: Any) -> Any:
    """What the step of a patched file sends."""
    module = loaded(path)
    return sh.check(module.loss_step, *module.loss_types(), mesh=mesh).ledger.total


def patched_text(path: Path, body: str, *shapes: Any, **options: Any) -> str:
    """A file with a function after its quickest plan is written, and sends what that says."""
    path.write_text(HEAD + body)
    plan = sh.suggest(loaded(path).loss, *shapes, **{**SETTINGS, **options})[0]
    patched(loaded(path).loss, plan).write()
    assert sent(path, plan.problem.mesh) == plan.ledger.total
    return path.read_text()


def values_of(name: str) -> Any:
    """Arrays for the arguments of a model."""
    like = (sh.ShType.parse(t, sh.abstract_mesh(MESH)) for t in jax.tree.leaves(MODELS[name][1]))
    structs = [jax.ShapeDtypeStruct(t.shape, t.dtype) for t in like]
    return arrays(jax.tree.unflatten(jax.tree.structure(MODELS[name][1]), structs))


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", MODELS)
def test_the_patched_file_types_to_what_the_plan_says(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    f, plan = planned(path, name)
    patch = patched(f, plan)
    assert path.read_text() == HEAD + MODELS[name][0]  # nothing is written yet
    golden(f"patch/{name}.diff", patch.diff)
    patch.write()
    types, step = written(path, name)
    assert sh.check(step, *types(), mesh=sh.abstract_mesh(MESH)).ledger.total == plan.ledger.total


@pytest.mark.nightly
@pytest.mark.parametrize("name", MODELS)
def test_the_patched_file_computes_what_the_function_did(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    f, plan = planned(path, name)
    patched(f, plan).write()
    types, step = written(path, name)
    again, values = function(path, name), values_of(name)
    expected = jax.jit(jax.value_and_grad(f))(*values)
    for a, b in zip(
        jax.tree.leaves(jax.jit(jax.value_and_grad(again))(*values)), jax.tree.leaves(expected), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-6)  # without a mesh it is the plain function
    with sh.use_mesh(sh.make_mesh(MESH)):
        placed = jax.tree.map(sh.array, values, types())
        found = jax.block_until_ready(jax.tree.map(host, sh.jit(step)(*placed)))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * float(np.abs(b).max()))


STEPS = """

def loss(y, w):
    def step(y, _):
        slope = lambda y: jnp.tanh(y @ w) - y
        k1 = slope(y)
        k2 = slope(y + 0.05 * k1)
        k3 = slope(y + 0.05 * k2)
        k4 = slope(y + 0.1 * k3)
        return y + 0.1 / 6 * (k1 + 2 * k2 + 2 * k3 + k4), None

    return jnp.sum(jnp.sin(jax.lax.scan(jax.checkpoint(step), y, None, length=3)[0]) * 1.3)
"""


@pytest.mark.nightly
def test_an_expression_is_resharded_where_some_of_its_values_are_in_that_type_already(tmp_path: Path) -> None:
    usual: dict[str, Any] = {"mesh": {"x": 4, "y": 2}, "links": "h100-nvlink", "compute": "h100-sxm"}
    patched_text(tmp_path / "model.py", STEPS, "f32[8, 16]", "f32[16, 16]", **usual)


BIASED = """

def loss(w, x):
    return jnp.mean(jnp.square(jnp.tanh(x @ w["up"] + w["bias"])))
"""


def test_a_reshard_of_what_is_broadcast_is_written_at_what_it_is_of(tmp_path: Path) -> None:
    types = {"w/up": "[_, _@tp]", "x": "[_@dp, _]", "bias": "[_@(dp,tp)]"}
    shapes = {"up": "f32[64, 256]", "bias": "f32[256]"}, "f32[1024, 64]"
    text = patched_text(tmp_path / "model.py", BIASED, *shapes, fixed=types)
    assert 'w["up"] + sh.reshard(w["bias"], "[_@tp]")' in text
    assert "implicit_comm" not in text


ROTARY = """

def rotary(x):
    a, b = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return jnp.concatenate([2 * a - b, a + 2 * b], -1)


def loss(w, x):
    return jnp.mean(jnp.square(rotary(rotary(x @ w["up"]) @ w["down"])))
"""


@pytest.mark.nightly
def test_a_value_that_one_call_takes_by_several_expressions_is_resharded_at_one_of_all(tmp_path: Path) -> None:
    types = {"w/up": "[_, _@tp]", "x": "[_@dp, _]", "model.py:21 <- w/up": "[_, _@tp]"}
    shapes = {"up": "f32[64, 256]", "down": "f32[256, 64]"}, "f32[1024, 64]"
    text = patched_text(tmp_path / "model.py", ROTARY, *shapes, fixed=types)
    assert 'rotary(sh.reshard(x @ w["up"], "[_@(dp,tp), _]"))' in text


@pytest.mark.nightly
def test_a_second_patch_replaces_the_first(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    patched(*planned(path, "shifted")).write()
    once = path.read_text()
    f, plan = planned(path, "shifted")
    assert patched(f, plan).diff == ""
    other = sh.suggest(f, *MODELS["shifted"][1], **SETTINGS, fixed={"x": "[_@dp, _]", "w/up": "[_, _@tp]"})[0]
    patched(f, other).write()
    text = path.read_text()
    assert text.count("def loss_types") == text.count("loss_step =") == text.count("import shtypes as sh") == 1
    assert text != once
    patched(*planned(path, "shifted")).write()
    assert ast.dump(ast.parse(path.read_text())) == ast.dump(ast.parse(once))  # parentheses may be left


SUMS = """import jax.numpy as jnp


def loss(w):
\tsh = w.shape
\tx = jnp.cumsum(
\t\tw, axis=0
\t)  # rows
\treturn jnp.mean(jnp.square(x) / len(sh))
"""


@pytest.mark.nightly
def test_a_second_patch_takes_statements_out_of_scopes_that_they_need_no_more(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(SUMS)

    def patch(layout: str) -> str:
        line = next(i for i, text in enumerate(path.read_text().split("\n"), 1) if "x = " in text)
        fixed = {"w": layout, f"model.py:{line} <- w": layout}
        f = loaded(path).loss
        patched(f, sh.suggest(f, "f32[4096, 4]", **SETTINGS, fixed=fixed)[0]).write()
        return path.read_text()

    once = patch("[_@tp, _]")
    assert "import shtypes\n" in once
    assert "\twith shtypes.implicit_comm():\n\t\tx = jnp.cumsum(\n\t\t\tw, axis=0\n\t\t)  # rows\n" in once
    assert patch("[_@tp, _]") == once
    assert "\tx = jnp.cumsum(\n\t\tw, axis=0\n\t)  # rows\n" in patch("[_, _]")
    assert patch("[_@tp, _]") == once


def test_reshards_of_other_functions_of_the_file_stay(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    body, shapes, options = MODELS["fsdp"]
    other = """import shtypes as sh


def typed(x):
    return sh.reshard(x + 1, "[_@dp, _]") * sh.reshard(x, "[_, _]")


"""
    path.write_text(HEAD + other + body)
    plan = sh.suggest(loaded(path).loss, *shapes, **SETTINGS, **options)[0]
    patched(loaded(path).loss, plan).write()
    assert other in path.read_text()
    assert path.read_text().count("sh.reshard(") > 2


CLASSES = """import dataclasses
import typing


class Norm(typing.NamedTuple):
    scale: jax.Array


@jax.tree_util.register_pytree_node_class
class Linear:
    def __init__(self, w):
        self.w = w

    def tree_flatten(self):
        return (self.w,), "linear"

    @classmethod
    def tree_unflatten(cls, name, children):
        return cls(*children)

    def __call__(self, x):
        return x @ self.w


class Models:
    @jax.tree_util.register_dataclass
    @dataclasses.dataclass(frozen=True)
    class Mlp:
        norm: Norm
        layers: list[Linear]
        act: typing.Any = dataclasses.field(default=None, metadata={"static": True})


def loss(model, x):
    up, down = model.layers
    return jnp.sum(down(model.act(up(x * model.norm.scale))))


def shapes():
    layers = [Linear("f32[64, 256]"), Linear("f32[256, 64]")]
    return Models.Mlp(Norm("f32[64]"), layers, jax.nn.gelu), "f32[32, 64]"
"""


def test_arguments_in_trees_of_classes_are_written_as_calls_of_them(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(HEAD + CLASSES)
    module = loaded(path)
    wanted = {"x": "[_@(dp,tp), _]", "model/layers/*": "[_@(dp,tp), _]", "model.py:34 <- model/layers/*": "[_, _]"}
    plan = sh.suggest(module.loss, *module.shapes(), **SETTINGS, fixed=wanted)[0]
    patched(module.loss, plan).write()
    text = path.read_text()
    assert "Models.Mlp(norm=Norm(scale='f32[64]')," in text
    assert "Linear.tree_unflatten(name='linear', children=('f32[64@(dp,tp),256]',))" in text
    assert "act=jax.nn.gelu)" in text
    assert sent(path, plan.problem.mesh) == plan.ledger.total


REFUSED: dict[str, tuple[str, Any, dict[str, Any], str]] = {
    "a loop in one line over equal layers that the plan tells apart": (
        """def loss(w, x):
    for p in w: x = jnp.tanh(x @ p)
    return jnp.sum(x)
""",
        (["f32[64, 64]", "f32[64, 64]"], "f32[32, 64]"),
        {"fixed": {"w/*": "[_@tp, _]", "model.py:14 <- w/0": "[_, _]", "model.py:14 <- w/1": "[_, _@tp]"}},
        r"model.py:14 <- w/0 in dot_general: `p` stands for several values, which the plan has in several types",
    ),
    "a tree of a class without a name in the file": (
        """def shapes():
    @jax.tree_util.register_dataclass
    @__import__("dataclasses").dataclass
    class Layer:
        w: jax.Array

    return Layer("f32[64, 64]"), "f32[32, 64]"


def loss(p, x):
    return jnp.sum(x @ p.w)
""",
        None,
        {},
        "the arguments have a `Layer` in them, which no expression of `model.py` makes",
    ),
    "a tree of a class that its fields do not make": (
        """@__import__("dataclasses").dataclass
class Layer:
    w: jax.Array

    def __init__(self, size=0):
        self.w = f"f32[{size}, {size}]"


def layer(_, leaves):
    made = Layer()
    (made.w,) = leaves
    return made


jax.tree_util.register_pytree_node(Layer, lambda p: ((p.w,), None), layer)


def shapes():
    return Layer(64), "f32[32, 64]"


def loss(p, x):
    return jnp.sum(x @ p.w)
""",
        None,
        {},
        r"`\(Layer\(w='f32\[.*\)` does not make its arguments: .*unexpected keyword argument 'w'",
    ),
    "names that are there already": (
        """def loss(w, x):
    return jnp.sum(x @ w)


loss_types = 3
""",
        ("f32[64, 64]", "f32[32, 64]"),
        {},
        "`loss_types` is there already",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_written_is_refused_in_words_and_the_file_is_left(name: str, tmp_path: Path) -> None:
    body, shapes, options, message = REFUSED[name]
    path = tmp_path / "model.py"
    path.write_text(HEAD + body)
    module = loaded(path)
    plan = sh.suggest(module.loss, *(shapes or module.shapes()), **SETTINGS, **options)[0]
    with pytest.raises(sh.ShardingTypeError, match="cannot be written into") as refused:
        patched(module.loss, plan)
    assert re.search(message, str(refused.value))
    assert path.read_text() == HEAD + body


def test_a_function_without_a_name_in_a_file_is_refused() -> None:
    f = lambda w, x: x @ w  # noqa: E731
    plan = sh.suggest(f, "f32[8, 8]", "f32[8, 8]", mesh={"dp": 2}, grad=False)[0]
    with pytest.raises(sh.ShardingTypeError, match="no function that a file defines by its name"):
        patched(f, plan)


def test_a_type_is_written_without_sizes_and_evenly_spaced() -> None:
    t = sh.ShType.parse("f32[8@(dp,tp),16]{U:a,I:b}", sh.abstract_mesh({"dp": 2, "tp": 2, "a": 2, "b": 2}))
    assert type_text(t, sizes=False) == "[_@(dp,tp), _]{U:a, I:b}"


def test_line_ends_encoding_permissions_and_links_stay(tmp_path: Path) -> None:
    path, link = tmp_path / "real.py", tmp_path / "model.py"
    text = (
        "# coding: latin-1\n# d\u00e9j\u00e0 vu\n" + HEAD + MODELS["names"][0].replace("* scale", "* scale  # \u00e9")
    )
    path.write_bytes(text.replace("\n", "\r\n").encode("latin-1"))
    path.chmod(0o640)
    link.symlink_to(path)
    patched(*planned(link, "names")).write()
    after = path.read_bytes().decode("latin-1")
    assert after.count("\n") == after.count("\r\n")
    assert "# d\u00e9j\u00e0 vu\r\n" in after
    assert "* scale  # \u00e9\r\n" in after
    assert link.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o640
    assert [p.name for p in sorted(tmp_path.glob("*.py"))] == ["model.py", "real.py"]


def test_a_patch_of_as_many_bytes_in_other_collectives_is_refused_with_both_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    f, plan = planned(tmp_path / "model.py", "names")
    total = plan.ledger.total
    more = SimpleNamespace(total=total._replace(launches=total.launches + 1), time=lambda model: 1.0)
    other = SimpleNamespace(ledger=more, compute=plan.signature.compute)
    monkeypatch.setattr("shtypes.tools.patch.check", lambda *_: other)
    words = (
        f"in {total.launches + 1} collectives, and the plan sends {total.bytes:,} B on each device in {total.launches} "
    )
    with pytest.raises(sh.ShardingTypeError, match=words):
        patched(f, plan)


KEPT = """

def normed(x):
    return x / jnp.sum(jnp.square(x), -1, keepdims=True)


def loss(w, x):
    scores = normed(x @ w)
    best = jnp.sort(scores, -1)[:, -3:]
    return jnp.mean(best) + jnp.mean(scores[:, 1:] ** 2)
"""


@pytest.mark.one_in(2)
@pytest.mark.parametrize("w", ["[_, _@tp]", "[_@tp, _]"])
def test_plans_are_written_where_sums_keep_dims_and_where_several_expressions_are_one_op(
    tmp_path: Path, w: str
) -> None:
    fixed = {"w": w, "model.py:20 <- w": w, "x": "[_@dp, _]"}
    patched_text(tmp_path / "model.py", KEPT, "f32[64, 64]", "f32[64, 64]", fixed=fixed)


LAMBDAS = """import shtypes as sh


def loss(w, x, y):
    normed = lambda z: z / jnp.linalg.norm(z, axis=-1, keepdims=True)
    scores = normed(x @ w) @ normed(y @ w).T
    return jnp.mean(jnp.square(scores))
"""


@pytest.mark.nightly
def test_a_lambda_gets_a_scope_where_its_line_needs_one(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(HEAD + LAMBDAS)

    def patch(layout: str) -> str:
        f = loaded(path).loss
        fixed = {"w": layout, "x": "[_@dp, _]", "y": "[_@dp, _]", "model.py:18 <- w": layout}
        plan = sh.suggest(f, "f32[64, 64]", "f32[64, 64]", "f32[64, 64]", **SETTINGS, fixed=fixed)[0]
        patched(f, plan).write()
        assert sent(path, plan.problem.mesh).bytes <= plan.ledger.total.bytes
        return path.read_text()

    scope = "normed = sh.implicit_comm(lambda z: z / "
    assert scope in patch("[_, _@tp]")
    assert scope not in patch("[_, _]")
    assert scope in patch("[_, _@tp]")


LOOKUP = """

def loss(w, tokens):
    return jnp.mean(jnp.square(w[tokens]))
"""


def test_indices_are_resharded_by_name(tmp_path: Path) -> None:
    fixed = {"w": "[_, _@tp]", "model.py:16 <- w": "[_, _@tp]", "tokens": "[_@(dp,tp), _]"}
    text = patched_text(tmp_path / "model.py", LOOKUP, "f32[512, 64]", "i32[64, 64]", fixed=fixed)
    assert 'w[sh.reshard(tokens, "[_@dp, _]")]' in text


OVER_CLASSES = """

def loss(w, x):
    return -jnp.mean(jax.nn.log_softmax(x @ w)[:, 0])
"""


@pytest.mark.nightly
def test_what_costs_less_than_the_plan_is_written_and_said(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(HEAD + OVER_CLASSES)
    gathered = {"model.py:16 <- dot_general in sub": "[_@dp, _]"}  # what a statement cannot say
    fixed = {"w": "[_, _@tp]", "x": "[_@dp, _]", **gathered}
    plan = sh.suggest(loaded(path).loss, "f32[64, 4096]", "f32[64, 64]", **SETTINGS, fixed=fixed)[0]
    patch = patched(loaded(path).loss, plan)
    patch.write()
    written = sent(path, plan.problem.mesh).bytes
    assert f"sends {written:,} B" in patch.note
    assert f"the plan sends {plan.ledger.total.bytes:,} B" in patch.note
    assert patch.note.endswith("less time")
    assert written < plan.ledger.total.bytes


def test_nothing_is_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.py"
    patch = patched(*planned(path, "names"))
    before = path.read_bytes()

    def fails(*args: Any) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patching:
        patching.setattr(os, "replace", fails)
        with pytest.raises(OSError, match="no space left"):
            patch.write()
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["model.py"]
    assert path.read_bytes() == before
    path.write_bytes(before + b"\n# edited\n")
    with pytest.raises(sh.ShardingTypeError, match="changed while its plan was looked for"):
        patch.write()


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(capsys)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    body, shapes, _ = MODELS["megatron"]
    (tmp_path / "model.py").write_text(f"{HEAD}def shapes():\n    return {shapes!r}\n\n\n{body}")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("model", None)


@pytest.mark.nightly
def test_the_command_prints_the_diff_and_writes_unless_it_is_a_dry_run(run: Run, folder: Path) -> None:
    call = ("suggest", "model.py:loss", "--arguments", "shapes", "--mesh", "dp=2,tp=4", "--patch")
    before = (folder / "model.py").read_text()
    dry = run(*call, "--dry-run")
    assert dry.code == 0
    assert dry.out.startswith("--- a/model.py\n+++ b/model.py\n@@")
    assert (folder / "model.py").read_text() == before
    wrote = run(*call, "--output", "loss.json")
    assert wrote.out == dry.out
    assert "wrote" in wrote.err
    assert (folder / "loss.json").exists()
    checked = run("check", "model.py:loss_step", "--arguments", "loss_types", "--mesh", "dp=2,tp=4", "--format", "json")
    assert checked.code == 0
    plan = sh.suggest(loaded(folder / "model.py").loss, *MODELS["megatron"][1], mesh=MESH)[0]
    assert (
        f"total: {plan.ledger.total.bytes} B/device"
        in run("check", "model.py:loss_step", "--arguments", "loss_types", "--mesh", "dp=2,tp=4").out
    )
    assert run("suggest", "model.py:loss", "--mesh", "dp=2", "--dry-run").code == 2
