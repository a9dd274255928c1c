"""An actor needs neither TensorFlow nor the packages of environments that it does not step."""

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

FORBIDDEN = {"tensorflow", "keras", "torch", "jax", "learner", "gym", "ale_py", "dm_env", "imageio"}


def test_importing_every_module_of_the_actor_stays_light() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    imported = set(done.stdout.split())
    assert {"actor.__main__", "actor.client", "protos.specs"} <= imported
    assert imported & FORBIDDEN == set()
