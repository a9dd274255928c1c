"""k8s/README.md: its commands exist, what they name is there, and its overlay builds."""

import functools
import itertools
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.k8s.rendering import K8S, ROOT, Rendered, build, needs_kubectl, overlay
from tests.test_docs import broken_links

pytestmark = needs_kubectl

PAGE = K8S / "README.md"
TEXT = PAGE.read_text()


def commands() -> Iterator[str]:
    """Lines of shell blocks, and spans that are commands."""
    for block in re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL):
        yield from filter(None, block.splitlines())
    yield from re.findall(r"`((?:kubectl|make) [^`]*)`", re.sub(r"```.*?```", "", TEXT, flags=re.DOTALL))


@functools.cache
def help_of(*words: str) -> str:
    done = subprocess.run(["kubectl", *words], capture_output=True, text=True, check=True)
    return done.stdout


def check_kubectl(words: Sequence[str]) -> None:
    depth = 3 if words[:2] == ["create", "secret"] else 2 if words[0] == "rollout" else 1
    known = help_of(*words[:depth], "--help") + help_of("options")
    for flag in [word.partition("=")[0] for word in words[depth:] if word.startswith("-")]:
        assert re.search(rf"(^|\s){re.escape(flag)}[=,:]", known), flag
    named = dict(itertools.pairwise(words))
    if "-k" in named:
        assert (ROOT / named["-k"] / "kustomization.yaml").is_file()
    if "-f" in named:
        assert (ROOT / named["-f"]).is_file()
    if "--namespace" in named:
        assert named["--namespace"] == "seedbed"
    for word in words:
        if word == "learner-0":
            overlay("cpu").one("StatefulSet", "learner")
        elif re.fullmatch(r"[a-z]+/learner", word):
            kinds = {"statefulset": "StatefulSet"}
            overlay("cpu").one(kinds[word.partition("/")[0]], "learner")
        elif ports := re.fullmatch(r"(\d+):(\d+)", word):
            listening = [each["containerPort"] for each in overlay("cpu").container("learner")["ports"]]
            assert int(ports[2]) in listening


@pytest.mark.parametrize("command", sorted(set(commands())))
def test_command_exists(command: str) -> None:
    words = shlex.split(command)
    while "=" in words[0]:
        words.pop(0)
    program, *rest = words
    if program == "make":
        assert re.search(rf"^{rest[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    elif program == "kind":
        images = [overlay("kind").container(name)["image"] for name in ("learner", "actor")]
        assert rest == ["load", "docker-image", *images]
    else:
        assert program == "kubectl"
        if rest != ["apply", "-k"]:
            check_kubectl(rest)


def test_commands_are_found() -> None:
    assert len(set(commands())) >= 10
    with pytest.raises(AssertionError):
        check_kubectl(["apply", "-k", "k8s/overlays/none"])
    with pytest.raises(AssertionError):
        check_kubectl(["logs", "statefulset/learner", "--no-such-flag"])


def test_the_secret_is_the_one_that_pods_mount() -> None:
    (command,) = [each for each in commands() if "create secret" in each]
    words = shlex.split(command)
    assert re.search(r"--from-literal=token=", command)
    for name in ("learner", "actor"):
        (volume,) = [each for each in overlay("cpu").pod(name)["volumes"] if each["name"] == "token"]
        assert volume["secret"]["secretName"] == words[4]
        assert volume["secret"]["items"] == [{"key": "token", "path": "token"}]


def test_own_overlay_builds(tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    # Beside the others, but for the folder's own place.
    copy = tmp_path / "k8s"
    shutil.copytree(K8S, copy, ignore=shutil.ignore_patterns("images"))
    mine = copy / "overlays" / "mine"
    mine.mkdir()
    (mine / "kustomization.yaml").write_text(block)
    for name in ("learner.toml", "actor.toml"):
        (mine / name).write_text((K8S / "overlays" / "gpu" / name).read_text())
    built: Rendered = build(mine)
    assert built.container("learner")["image"] == "registry.example.org/team/seedbed-learner:0.1.0"
    assert built.workload("actor")["spec"]["replicas"] == 32
    assert "ALE/Pong-v5" in built.files("learner")["learner.toml"]
    # Where the images are says nothing of which they are.
    (mine / "kustomization.yaml").write_text(
        block.replace("components:\n", "components:\n  - ../../components/gpu\n", 1)
    )
    image = build(mine).container("learner")["image"]
    assert image == "registry.example.org/team/seedbed-learner:0.1.0-gpu"


def test_every_component_and_overlay_is_listed() -> None:
    for folder in ("components", "overlays"):
        for path in (K8S / folder).glob("*/kustomization.yaml"):
            # Taken in by the two that follow its rule.
            if path.parent.name != "actor-demand":
                assert f"`{path.parent.name}`" in TEXT


def test_links_lead_somewhere() -> None:
    broken = broken_links(PAGE)
    assert [each for each in broken if not (PAGE.parent / each).is_dir()] == []
