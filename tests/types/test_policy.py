"""The policy: the environment, the global setting, scopes and threads."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from shtypes.errors import ShardingTypeError
from shtypes.types import State
from shtypes.types.mesh import Mesh
from shtypes.types.policy import current_policy, policy, replicated, set_policy
from shtypes.types.target import parse

ROOT = Path(__file__).parents[2]


def in_a_new_process(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs Python code where nothing has set a policy yet."""
    inherited = {k: v for k, v in os.environ.items() if k != "SHTYPES_POLICY"}
    command = [sys.executable, "-c", code]
    env = inherited | environment
    return subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, env=env)


SHOW = "from shtypes.types.policy import current_policy; print(current_policy())"


def test_a_process_starts_with_partial() -> None:
    assert in_a_new_process(SHOW).stdout == "partial\n"


@pytest.mark.parametrize("name", ["partial", "jax"])
def test_the_environment_chooses_the_policy_a_process_starts_with(name: str) -> None:
    assert in_a_new_process(SHOW, SHTYPES_POLICY=name).stdout == f"{name}\n"


def test_a_wrong_environment_variable_is_named() -> None:
    ran = in_a_new_process(SHOW, SHTYPES_POLICY="both")
    assert ran.returncode
    message = """there is no policy 'both' (from the environment, SHTYPES_POLICY); it is "partial" or "jax\""""
    assert ran.stderr.splitlines()[-1].endswith(message)


def test_what_is_set_goes_before_the_environment() -> None:
    code = "from shtypes.types.policy import set_policy; set_policy('jax');" + SHOW
    assert in_a_new_process(code, SHTYPES_POLICY="partial").stdout == "jax\n"


@pytest.mark.parametrize(("name", "state"), [("partial", State.REDUCED), ("jax", State.INVARIANT)])
def test_the_policy_says_what_replicated_means(name: str, state: State) -> None:
    mesh = Mesh({"x": 2})
    with policy(name):
        assert replicated() is state
        assert parse("f32[8]", mesh).states == (state,)
    set_policy(name)
    assert parse("f32[8]", mesh).states == (state,)


def test_scopes_nest_and_end_even_when_their_block_fails() -> None:
    with policy("jax"):
        with policy("partial"):
            assert current_policy() == "partial"
        assert current_policy() == "jax"
        with pytest.raises(KeyError), policy("partial"):
            raise KeyError
        assert current_policy() == "jax"
    assert current_policy() == "partial"


def test_setting_the_policy_in_a_scope_shows_when_the_scope_ends() -> None:
    with policy("partial"):
        set_policy("jax")
        assert current_policy() == "partial"
    assert current_policy() == "jax"


def test_a_scope_holds_for_its_thread_and_a_setting_for_all() -> None:
    def elsewhere() -> str:
        seen: list[str] = []
        thread = threading.Thread(target=lambda: seen.append(current_policy()))
        thread.start()
        thread.join()
        return seen[0]

    with policy("jax"):
        assert elsewhere() == "partial"
    set_policy("jax")
    assert elsewhere() == "jax"


@pytest.mark.parametrize("name", ["Partial", "", "both"])
def test_an_unknown_policy_is_refused_and_changes_nothing(name: str) -> None:
    with pytest.raises(ShardingTypeError, match=f"there is no policy {name!r}"):
        set_policy(name)
    with pytest.raises(ShardingTypeError, match=f"there is no policy {name!r}"), policy(name):
        pass
    assert current_policy() == "partial"
