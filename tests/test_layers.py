"""The architecture's boundaries: import-linter's contracts in pyproject.toml, and that they bite."""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("protos", "actor", "learner")
LINT = "from importlinter.cli import lint_imports_command as lint; lint(['--no-cache', '--no-logo'])"


def lint(root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", LINT], cwd=root, capture_output=True, text=True)


def test_code_keeps_the_contracts() -> None:
    done = lint(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("copy")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", root)
    return root


@pytest.mark.parametrize(
    ("file", "line", "contract"),
    [
        ("protos/errors.py", "import actor.timestep", "protos is the lowest package"),
        ("actor/retry.py", "import learner.config", "actor and learner never import each other"),
        ("learner/threads.py", "import actor.retry", "actor and learner never import each other"),
        ("actor/loop.py", "import tensorflow", "actor and protos need the base dependencies alone"),
        ("protos/tensors.py", "import rich", "actor and protos need the base dependencies alone"),
        ("learner/serving/slots.py", "import tensorflow", "work on NumPy arrays"),
        ("learner/experience/channel.py", "import keras", "work on NumPy arrays"),
        ("learner/experience/trajectory.py", "import learner.serving.batcher", "only downwards"),
        ("learner/config.py", "import learner.telemetry.report", "only downwards"),
        ("learner/experience/unrolls.py", "import learner.experience.prefetch", "only downwards"),
        ("learner/training/trainer.py", "import learner.serving.inference", "only downwards"),
        ("learner/serving/service.py", "import learner.app", "only downwards"),
        ("learner/serving/leases.py", "import learner.serving.service", "only downwards"),
        ("learner/serving/inference.py", "import learner.serving.leases", "only downwards"),
        ("learner/training/update.py", "import learner.serving.acting", "only downwards"),
        ("learner/stored_run.py", "import learner.evaluation", "only downwards"),
        ("learner/app.py", "import learner.run", "only downwards"),
        ("learner/run.py", "import learner.planning.model", "only downwards"),
        ("learner/telemetry/report.py", "import learner.telemetry.reporter", "in a circle"),
    ],
)
def test_violation_is_found(copy: Path, file: str, line: str, contract: str) -> None:
    text = (copy / file).read_text()
    (copy / file).write_text(f"{text}\n{line}\n")
    try:
        done = lint(copy)
    finally:
        (copy / file).write_text(text)
    assert done.returncode == 1
    broken = [said for said in done.stdout.splitlines() if said.endswith("BROKEN")]
    assert any(contract in said for said in broken), done.stdout


def test_every_module_of_the_learner_has_its_layer() -> None:
    """A file that no contract names could import whatever it likes."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["id"] == "downwards")
    named = {name.strip() for layer in layers for name in layer.split("|")}
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in (ROOT / "learner").rglob("*.py")
        if path.name != "__init__.py"
    }
    homeless = {
        module for module in modules if not any(f"{module}.".startswith(f"{name}.") for name in named)
    }
    assert not homeless, "name these in the layers of contract `downwards` in pyproject.toml"


@pytest.mark.parametrize(
    "module",
    [
        "actor.__main__",
        "learner.config",
        "learner.__main__",
        "learner.run",
        "learner.replaying",
        "learner.serving.server",
    ],
)
def test_import_brings_no_tensorflow(module: str) -> None:
    code = f"import sys, {module}; print(*{{'tensorflow', 'keras'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
