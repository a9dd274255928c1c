"""The images' definitions, and what their steps come to: run here without a container engine."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests.integration.processes import Launcher, options
from tests.integration.test_separate import free_port
from tests.k8s import dockerfile
from tests.k8s.rendering import K8S, ROOT

IMAGES = K8S / "images"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
UNPRIVILEGED = "65532:65532"


# Definitions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["actor", "learner"])
def test_every_base_has_a_version(role: str) -> None:
    stages: set[str] = set()
    for each in dockerfile.read(role):
        assert "latest" not in each.rest
        if each.name == "FROM":
            image, *name = each.rest.split(" AS ")
            pinned = re.fullmatch(
                r"docker\.io/library/python:3\.11\.\d+-slim-\w+(@sha256:[0-9a-f]{64})?", image
            )
            assert image in stages or pinned, image
            stages |= set(name)
    assert stages == {"base", "build"}


def test_both_have_one_base() -> None:
    first = {dockerfile.read(role)[0] for role in ("actor", "learner")}
    assert len(first) == 1


@pytest.mark.parametrize("role", ["actor", "learner"])
def test_images_run_as_nobody_in_particular(role: str) -> None:
    stage = dockerfile.last_stage(role)
    assert [each.rest for each in stage if each.name == "USER"] == [UNPRIVILEGED]
    # Nothing runs in the image itself, and nothing comes into it but the environment.
    assert [each.rest for each in stage if each.name in ("RUN", "ADD", "COPY")] == [
        "--from=build /opt/seedbed /opt/seedbed"
    ]
    # The root file system is read-only.
    assert dockerfile.environment(role)["HOME"] == "/tmp"
    assert dockerfile.environment(role)["PYTHONDONTWRITEBYTECODE"] == "1"


@pytest.mark.parametrize(("role", "list_"), [("actor", "actor"), ("learner", "learner-${DEVICE}")])
def test_images_are_filled_by_the_script_alone(role: str, list_: str) -> None:
    instructions = dockerfile.read(role)
    assert [each.rest for each in instructions if each.name == "RUN"] == [
        f"k8s/images/install.sh dependencies {list_} /opt/seedbed",
        "k8s/images/install.sh program . /opt/seedbed",
    ]
    copied = [each.rest.split() for each in instructions if each.name == "COPY"]
    assert copied[0][:-1] == [
        "k8s/images/install.sh",
        "k8s/images/requirements-build.txt",
        f"k8s/images/requirements-{list_}.txt",
    ]
    for name in copied[0][:-1]:
        assert (ROOT / name.replace("${DEVICE}", "cpu")).is_file()


def test_the_context_holds_what_the_script_needs() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"}
    script = (IMAGES / "install.sh").read_text()
    (wanted,) = re.findall(r"for each in (.*); do", script)
    assert kept == {*wanted.split(), "k8s/images"}


# Pinned packages --------------------------------------------------------------------------------


def pinned(role: str) -> Mapping[str, Version]:
    text = (IMAGES / f"requirements-{role}.txt").read_text()
    entries = re.findall(
        r"^([\w.-]+)==(\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}.*\n?)+)", text, re.MULTILINE
    )
    # Every line that is no comment belongs to an entry with its hashes.
    assert len(entries) == len(re.findall(r"^[^\s#]", text, re.MULTILINE))
    return {name: Version(version) for name, version, _ in entries}


def wanted(*extras: str) -> list[Requirement]:
    project = PROJECT["project"]
    texts = [
        *project["dependencies"],
        *(text for each in extras for text in project["optional-dependencies"][each]),
    ]
    target = {"platform_machine": "x86_64", "sys_platform": "linux", "python_version": "3.11"}
    requirements = [Requirement(text) for text in texts]
    return [each for each in requirements if each.marker is None or each.marker.evaluate(target)]


@pytest.mark.parametrize(
    ("role", "extras"),
    [("actor", ["atari"]), ("learner-cpu", ["learner", "atari"]), ("learner-gpu", ["learner", "atari"])],
)
def test_what_is_pinned_is_what_the_program_asks_for(role: str, extras: list[str]) -> None:
    versions = pinned(role)
    for each in wanted(*extras):
        name = "tensorflow" if (each.name, role) == ("tensorflow-cpu", "learner-gpu") else each.name
        assert name in versions, "run: k8s/images/make_requirements.sh"
        assert versions[name] in each.specifier


def test_learners_differ_by_the_device_alone() -> None:
    cpu, gpu = pinned("learner-cpu"), pinned("learner-gpu")
    assert "tensorflow" not in cpu
    assert cpu["tensorflow-cpu"] == gpu["tensorflow"]
    more = set(gpu) - set(cpu) - {"tensorflow"}
    assert more
    assert all(name.startswith("nvidia-") for name in more)
    assert {name: cpu[name] for name in cpu if name != "tensorflow-cpu"} == {
        name: gpu[name] for name in cpu if name != "tensorflow-cpu"
    }


def test_actors_and_learners_speak_by_the_same_libraries() -> None:
    actor, learner = pinned("actor"), pinned("learner-cpu")
    assert {name: learner[name] for name in actor} == actor


def test_the_build_is_pinned_too() -> None:
    versions = pinned("build")
    for each in map(Requirement, PROJECT["build-system"]["requires"]):
        assert versions[each.name] in each.specifier


# The steps, without an engine -------------------------------------------------------------------


@pytest.fixture(scope="module")
def actor_image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The environment that the actor's image holds."""
    venv = tmp_path_factory.mktemp("image") / "seedbed"
    for step, argument in (("dependencies", "actor"), ("program", str(ROOT))):
        done = subprocess.run(
            [str(IMAGES / "install.sh"), step, argument, str(venv)],
            env={**os.environ, "PYTHON": sys.executable},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    return venv


@pytest.mark.timeout(300)
def test_the_actors_image(actor_image: Path, launch: Launcher, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    environ = {**dockerfile.environment("actor"), "HOME": str(home), "TMPDIR": str(home)}
    before = sorted(actor_image.rglob("*"))
    program = str(actor_image / "bin" / dockerfile.entrypoint("actor")[0])

    absent = "import importlib.util as u; print([n for n in {!r} if u.find_spec(n)])"
    heavy = ["tensorflow", "keras", "tensorboard", "matplotlib", "rich", "grpc_health", "pytest"]
    look = launch(str(actor_image / "bin/python"), "-c", absent.format(heavy), cwd=home, environ=environ)
    assert look.status() == 0, look.stderr
    assert look.stdout.strip() == "[]"

    for env in ("CartPole-v1", "ALE/Pong-v5"):
        describe = launch(program, f"--env={env}", "--describe", cwd=home, environ=environ)
        assert describe.status() == 0, describe.stderr
        assert '"observation"' in describe.stdout

    address = f"127.0.0.1:{free_port()}"
    chosen = options(listen=address, logdir=tmp_path / "run", total_steps=2_000, batch_size=2)
    learner = launch.seedbed("learner", *chosen)
    actor = launch(program, *options(server=address, env="CartPole-v1"), cwd=home, environ=environ)
    assert learner.status(120) == 0, learner.stderr
    assert actor.status() == 0, actor.stderr
    # A read-only root would not have been in the way.
    assert sorted(actor_image.rglob("*")) == before


# Building ---------------------------------------------------------------------------------------


def build(path: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """build.sh where `path` holds all engines that there are."""
    for tool in ("sh", "sed", "dirname"):
        found = shutil.which(tool)
        assert found is not None
        (path / tool).symlink_to(found)
    return subprocess.run(
        ["sh", str(IMAGES / "build.sh")],
        env={"PATH": str(path), **environ},
        capture_output=True,
        text=True,
        check=False,
    )


def fake_engine(path: Path, name: str, *, works: bool = True) -> None:
    script = path / name
    body = 'if [ "$1" = build ]; then echo "$@"; fi\n' if works else "exit 1\n"
    script.write_text(f"#!/bin/sh\n{body}")
    script.chmod(0o755)


def test_make_images_builds_all_three(tmp_path: Path) -> None:
    fake_engine(tmp_path, "docker", works=False)
    fake_engine(tmp_path, "podman")
    done = build(tmp_path, REGISTRY="registry.example.org/team")
    assert done.returncode == 0, done.stderr
    version, prefix = PROJECT["project"]["version"], "registry.example.org/team/seedbed"
    learner = f"--file k8s/images/learner.Dockerfile --tag {prefix}-learner:{version}"
    assert [line.removeprefix("build ") for line in done.stdout.splitlines()] == [
        f"--file k8s/images/actor.Dockerfile --tag {prefix}-actor:{version} .",
        f"{learner} --build-arg DEVICE=cpu .",
        f"{learner}-gpu --build-arg DEVICE=gpu .",
    ]
    assert "images:\n\tk8s/images/build.sh\n" in (ROOT / "Makefile").read_text()


def test_one_device_is_enough(tmp_path: Path) -> None:
    fake_engine(tmp_path, "docker")
    done = build(tmp_path, DEVICES="cpu")
    assert done.returncode == 0, done.stderr
    version = PROJECT["project"]["version"]
    tags = re.findall(r"--tag (\S+)", done.stdout)
    assert tags == [f"seedbed-actor:{version}", f"seedbed-learner:{version}"]


def test_an_unknown_device_is_refused_before_anything_is_built(tmp_path: Path) -> None:
    fake_engine(tmp_path, "docker")
    done = build(tmp_path, DEVICES="cpu tpu")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "build.sh: DEVICES=cpu tpu: expected cpu, gpu or both, found tpu\n"


def test_a_missing_engine_is_named(tmp_path: Path) -> None:
    fake_engine(tmp_path, "docker", works=False)
    done = build(tmp_path)
    assert done.returncode == 1
    assert done.stderr == (
        "build.sh: expected docker (with its daemon), podman or buildah, found none that works: install "
        "one, or say ENGINE=...\n"
    )
