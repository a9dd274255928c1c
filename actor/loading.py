"""Your own environment: `module:callable` or `path/file.py:callable`.

The module is looked for in the current directory first, as `python -m` does. The callable returns an
environment, or a whole Gymnasium `VectorEnv`. Of these arguments it is given those that it names:
- `num_envs`: how many environments a `VectorEnv` must have;
- `seed`: of this one environment (Gymnasium and gym environments are also seeded in `reset`);
- `render_mode`: "rgb_array", for the one environment that is recorded.
A single environment is made by calling it again for each.
"""

import ast
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from gymnasium.vector import VectorEnv

from actor.adapters import as_gymnasium
from actor.vector import ENVIRONMENT_ERRORS, environment_seeds, synchronous
from protos.errors import EnvironmentFailure
from protos.words import text_of


def is_callable_id(env_id: str) -> bool:
    """Whether `env_id` is `module:callable`. In Gymnasium's `module:Name-v0`, the name is none."""
    module, _, name = env_id.rpartition(":")
    return module != "" and all(part.isidentifier() for part in name.split("."))


def absolute(env_id: str) -> str:
    """The same environment, whatever the current directory is when it is made."""
    location, colon, name = env_id.rpartition(":")
    return f"{Path(location).absolute()}{colon}{name}" if location.endswith(".py") else env_id


def refuse_bare_file(env_id: str) -> None:
    """Refuse the name of a file, where one of a callable in it is expected.

    Raises:
        EnvironmentFailure: it is that; with what the file has to offer.
    """
    location = env_id.removesuffix(":")
    if not location.endswith(".py"):
        return
    path = Path(location)
    if not path.is_file():
        raise EnvironmentFailure(f"file {location} not found: looked for {path.resolve()}")
    names = _callables(path)
    found = f"it has {', '.join(names)}" if names else "it has none"
    raise EnvironmentFailure(f"environment {env_id}: expected {location}:CALLABLE; {found}")


def _callables(path: Path) -> list[str]:
    """Functions and classes that a file defines for others; none of one that Python cannot read."""
    try:
        body = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return []
    kinds = ast.FunctionDef, ast.ClassDef
    return [each.name for each in body if isinstance(each, kinds) and not each.name.startswith("_")]


def load_environments(env_id: str, num_envs: int, *, seed: int, render: bool) -> Any:
    """A Gymnasium vector environment of what the callable returns.

    Raises:
        EnvironmentFailure: no such callable, or it returned what cannot be used.
    """
    make = load_callable(env_id)
    named = _parameters(make)
    seeds = environment_seeds(seed, num_envs)

    def make_one(index: int) -> Any:
        offered = {"num_envs": num_envs, "seed": seeds[index]}
        if render and index == 0:
            offered["render_mode"] = "rgb_array"  # type: ignore[assignment]
        return make(**{name: value for name, value in offered.items() if name in named})

    made = make_one(0)
    if isinstance(made, VectorEnv):
        if made.num_envs != num_envs:
            raise EnvironmentFailure(
                f"environment {env_id} returned a vector environment of {made.num_envs}, "
                f"expected {num_envs}: give {make.__name__} an argument num_envs, "
                f"or say --num-envs {made.num_envs}"
            )
        return made
    first = as_gymnasium(made, env_id)  # refused before more are made
    others = [make_one(index) for index in range(1, num_envs)]
    if len({id(single) for single in [made, *others]}) != num_envs:
        raise EnvironmentFailure(
            f"environment {env_id} returned the same object twice: expected a new environment a call"
        )
    return synchronous([first, *(as_gymnasium(other, env_id) for other in others)])


def load_callable(env_id: str) -> Callable[..., Any]:
    """The callable that `env_id` names.

    Raises:
        EnvironmentFailure: there is no such file, module or callable, or the module raised; then its
            error is the `__cause__`.
    """
    location, _, name = env_id.rpartition(":")
    try:
        module = _import_file(location) if location.endswith(".py") else import_module(location)
    except EnvironmentFailure:
        raise
    except ENVIRONMENT_ERRORS as error:
        raise EnvironmentFailure(
            f"environment {env_id}: importing {location} failed: {type(error).__name__}: "
            f"{text_of(error)}"
        ) from error
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise EnvironmentFailure(_no_attribute(env_id, found, part))
        found = getattr(found, part)
    if not callable(found):
        raise EnvironmentFailure(
            f"environment {env_id}: expected a callable, found a {type(found).__name__}"
        )
    return found  # type: ignore[no-any-return]


def import_module(name: str) -> ModuleType:
    """The module, from the current directory first: a console script does not look there by itself.

    Raises:
        EnvironmentFailure: there is none of this name. What the module raises is not touched.
    """
    _search(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise EnvironmentFailure(
                f"module {name!r} not found: expected {name.replace('.', '/')}.py in {Path.cwd()}, "
                "or an installed package"
            ) from None
        raise


def _search(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _import_file(location: str) -> ModuleType:
    path = Path(location).resolve()
    if not path.is_file():
        raise EnvironmentFailure(f"file {location} not found: looked for {path}")
    _search(path.parent)  # for its neighbours, as if it were run as a script
    # A name of its own, so that random.py does not replace the standard library's.
    name = f"seedbed_environment_{path.stem}"
    imported = sys.modules.get(name)
    if imported is not None and imported.__file__ == str(path):
        return imported  # by another thread of this actor, with which it shares what the file defines
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "its name ends in .py"
    assert spec.loader is not None, "its name ends in .py"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _parameters(function: Callable[..., Any]) -> set[str]:
    """Names of the arguments that it declares; `**keywords` declares none."""
    try:
        return set(inspect.signature(function).parameters)
    except ValueError:  # some builtins have no signature
        return set()


def _no_attribute(env_id: str, owner: Any, name: str) -> str:
    close = get_close_matches(name, [other for other in dir(owner) if not other.startswith("_")])
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    return f"environment {env_id}: {getattr(owner, '__name__', owner)} has no {name!r}{hint}"
