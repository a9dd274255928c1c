"""An actor needs neither TensorFlow nor the packages of environments that it does not step."""

import os
import subprocess
import sys

SCRIPT = """
import importlib, pkgutil, sys
import actor, protos
for package in (actor, protos):
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
sys.stdout.write("\\n".join(sorted(sys.modules)))
"""

WHEN_GRPC_IS_IMPORTED = """
import os, sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "grpc":
            for variable in ("GRPC_ENABLE_FORK_SUPPORT", "GRPC_EXPERIMENTS"):
                print(os.environ.get(variable, "unset"))

sys.meta_path.insert(0, Watch())
import actor.__main__
"""

FORBIDDEN = {"tensorflow", "keras", "torch", "jax", "learner", "gym", "ale_py", "dm_env", "imageio"}


def test_importing_every_module_of_the_actor_stays_light() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    imported = set(done.stdout.split())
    assert {"actor.__main__", "actor.client", "protos.specs"} <= imported
    assert imported & FORBIDDEN == set()


def test_grpc_is_told_of_forks_and_of_waiting_in_place_before_it_is_imported() -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    done = subprocess.run(
        [sys.executable, "-c", WHEN_GRPC_IS_IMPORTED],
        capture_output=True,
        text=True,
        timeout=60,
        env=environ,
    )
    assert done.stdout.split() == ["0", "-event_engine_client,-event_engine_listener"], done.stderr
