"""`module:callable` and `path/file.py:callable`."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from actor.environments import make_environment
from actor.loading import is_callable_id, load_callable
from protos.errors import EnvironmentFailure

TOYS = "tests.actor.toys"

SOURCE = """
import gymnasium
from neighbour import NAME

def make_env():
    return gymnasium.make(NAME)

def takes_seed(seed):
    seeds.append(seed)
    return make_env()

def takes_render_mode(render_mode=None):
    modes.append(render_mode)
    return make_env()

seeds, modes = [], []
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with my_file.py and what it imports; the current one."""
    (tmp_path / "my_file.py").write_text(SOURCE)
    (tmp_path / "neighbour.py").write_text("NAME = 'CartPole-v1'")
    (tmp_path / "broken.py").write_text("import no_such_thing")
    (tmp_path / "random.py").write_text("def make():\n    return None")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", ".")])
    yield tmp_path
    for name in ("my_file", "neighbour", "broken"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("env_id", ["my_file:make_env", "my_file.py:make_env", "./my_file.py:make_env"])
def test_files_of_the_current_folder_are_found(folder: Path, env_id: str) -> None:
    environment = make_environment(env_id, 2, seed=1)
    assert environment.reset().observation.shape == (2, 4)


def test_files_elsewhere_are_found_with_their_neighbours(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    assert make_environment(f"{folder}/my_file.py:make_env", 2, seed=1).num_envs == 2


def test_a_file_does_not_replace_a_module_of_its_name(folder: Path) -> None:
    import random

    assert load_callable("random.py:make")() is None
    assert sys.modules["random"] is random


def test_each_call_gets_a_seed_of_its_own(folder: Path) -> None:
    make_environment("my_file:takes_seed", 3, seed=1)
    seeds = sys.modules["my_file"].seeds
    assert len(set(seeds)) == 3


def test_the_environment_that_is_shown_gets_its_render_mode(folder: Path) -> None:
    make_environment("my_file:takes_render_mode", 3, seed=1, render=True)
    assert sys.modules["my_file"].modes == ["rgb_array", None, None]


def test_keywords_that_are_not_named_are_not_passed() -> None:
    assert make_environment(f"{TOYS}:with_keywords", 2, seed=1).num_envs == 2


def test_names_may_be_dotted() -> None:
    assert load_callable("tests.actor.toys:Walk.reset").__name__ == "reset"


@pytest.mark.parametrize(
    ("env_id", "expected"),
    [
        ("module:make", True),
        ("a.b:make.inner", True),
        ("folder/file.py:make", True),
        ("module:Name-v0", False),
        ("CartPole-v1", False),
        (":make", False),
        ("module:", False),
    ],
)
def test_what_is_a_callable(env_id: str, expected: bool) -> None:
    assert is_callable_id(env_id) == expected


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("no_such_module:make", "module 'no_such_module' not found: expected no_such_module.py in"),
        ("no_such.inner:make", "module 'no_such.inner' not found: expected no_such/inner.py in"),
        ("no_such_file.py:make", "file no_such_file.py not found: looked for /"),
        (f"{TOYS}:Wlak", f"environment {TOYS}:Wlak: tests.actor.toys has no 'Wlak'; did you mean Walk"),
        (f"{TOYS}:Walk.qqq", "Walk has no 'qqq'$"),
        (f"{TOYS}:A_NUMBER", "expected a callable, found a int"),
        (f"{TOYS}:nothing", "returned a NoneType: expected a Gymnasium Env or VectorEnv"),
        (f"{TOYS}:shared", "returned the same object twice: expected a new environment a call"),
        (
            f"{TOYS}:vector_of_two",
            "returned a vector environment of 2, expected 3: give vector_of_two an argument num_envs, "
            "or say --num-envs 2",
        ),
    ],
)
def test_refusals(env_id: str, message: str) -> None:
    with pytest.raises(EnvironmentFailure, match=message) as caught:
        make_environment(env_id, 3, seed=1)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("class Grid: ...\ndef make_env(): ...\ndef _own(): ...\nA = 1\n", "it has Grid, make_env"),
        ("A = 1\n", "it has none"),
        ("def broken(:\n", "it has none"),
    ],
)
@pytest.mark.parametrize("env_id", ["grid.py", "grid.py:"])
def test_a_file_without_a_callable_says_what_it_has(
    folder: Path, env_id: str, text: str, found: str
) -> None:
    (folder / "grid.py").write_text(text)
    with pytest.raises(EnvironmentFailure) as refused:
        make_environment(env_id, 1, seed=1)
    assert str(refused.value) == f"environment {env_id}: expected grid.py:CALLABLE; {found}"


def test_a_file_that_is_not_there_is_said_without_a_callable_too() -> None:
    with pytest.raises(EnvironmentFailure, match=r"file no_such_file\.py not found: looked for /"):
        make_environment("no_such_file.py", 1, seed=1)


def test_what_a_module_raises_is_the_cause(folder: Path) -> None:
    with pytest.raises(
        EnvironmentFailure, match=r"importing broken failed: ModuleNotFoundError: .*no_such_thing"
    ) as caught:
        make_environment("broken:make", 1, seed=1)
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_a_wrong_signature_is_the_cause() -> None:
    with pytest.raises(EnvironmentFailure, match=r"cannot be made: TypeError: .*positional"):
        make_environment("tests.actor.fake_gym:Box", 1, seed=1)
