"""The pages on Kubernetes: their commands exist, what they name is there, and what they show builds."""

import functools
import itertools
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from learner.config import LearnerOptions
from learner.planning.plan import MUCH_LAG
from protos.options import parse
from tests.k8s.rendering import K8S, OVERLAYS, ROOT, Rendered, Resource, build, needs_kubectl, overlay
from tests.k8s.test_images import build as make_images
from tests.k8s.test_images import fake_engine
from tests.k8s.test_manifests import check_schemas, newest_versions, selectors
from tests.test_docs import broken_links

pytestmark = needs_kubectl

PAGE = K8S / "README.md"
OPERATIONS = ROOT / "docs" / "operations.md"
TEXT = PAGE.read_text(encoding="utf-8")
MINE = "k8s/overlays/mine"


def blocks(page: Path, language: str) -> list[str]:
    found: list[str] = re.findall(
        rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL
    )
    return found


def commands() -> Iterator[str]:
    """Lines of shell blocks, and spans that are commands of Kubernetes or of our images."""
    for page in (PAGE, OPERATIONS):
        for block in blocks(page, "sh"):
            yield from filter(None, block.replace("\\\n", " ").splitlines())
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        yield from re.findall(r"`((?:kubectl|make) [^`]*)`", text)


def ours() -> set[str]:
    """TYPE/NAME of what the pages' commands may be about."""
    found = {"pod/learner-0", "pod/run-files", "persistentvolumeclaim/run-learner-0"}
    for name in OVERLAYS:
        found |= {f"{each['kind'].lower()}/{each['metadata']['name']}" for each in overlay(name)}
    return found


@functools.cache
def help_of(*words: str) -> str:
    done = subprocess.run(["kubectl", *words], capture_output=True, text=True, check=True)
    return done.stdout


def check_kubectl(words: Sequence[str]) -> None:
    # What follows is for the pod.
    words = list(itertools.takewhile(lambda word: word != "--", words))
    depth = 3 if words[:2] == ["create", "secret"] else 2 if words[0] == "rollout" else 1
    known = help_of(*words[:depth], "--help") + help_of("options")
    for flag in [word.partition("=")[0] for word in words[depth:] if word.startswith("-")]:
        assert re.search(rf"(^|\s){re.escape(flag)}[=,:]", known), flag
    named = dict(itertools.pairwise(words))
    if named.get("-k", MINE) != MINE:
        assert (ROOT / named["-k"] / "kustomization.yaml").is_file()
    if "-f" in named and named["-f"] not in shown_manifests():
        assert (ROOT / named["-f"]).is_file()
    if "--namespace" in named:
        assert named["--namespace"] == "seedbed"
    for word in words:
        # What is copied from a pod goes to runs/, on the reader's machine.
        if re.fullmatch(r"(?!runs/)[a-z]+/[a-z0-9-]+", word):
            assert word in ours()
        elif word in ("learner-0", "run-files"):
            assert f"pod/{word}" in ours()
        elif ports := re.fullmatch(r"(\d+):(\d+)", word):
            listening = [each["containerPort"] for each in overlay("cpu").container("learner")["ports"]]
            assert int(ports[2]) in listening


def images_of(registry: str, tmp_path: Path) -> list[str]:
    """What `make images` would build."""
    fake_engine(tmp_path, "docker")
    done = make_images(tmp_path, REGISTRY=registry)
    return re.findall(r"--tag (\S+)", done.stdout)


@pytest.mark.parametrize("command", sorted(set(commands())))
def test_command_exists(command: str, tmp_path: Path) -> None:
    words = shlex.split(command, comments=True)
    while "=" in words[0]:
        words.pop(0)
    program, *rest = words
    if program == "make":
        assert re.search(rf"^{rest[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    elif program == "kind":
        images = [overlay("kind").container(name)["image"] for name in ("learner", "actor")]
        assert rest == ["load", "docker-image", *images]
    elif program == "docker":
        assert rest[0] == "push"
        assert rest[1] in images_of("registry.example.org/team", tmp_path)
    elif program in ("mkdir", "cp"):
        # Run, with what they are for, by what renders the overlay.
        assert rest[-1] == MINE
    elif program != "seedbed":  # test_docs.py has those.
        assert program == "kubectl"
        if rest != ["apply", "-k"]:
            check_kubectl(rest)


def test_all_images_are_pushed(tmp_path: Path) -> None:
    pushed = [each.split()[-1] for each in commands() if each.startswith("docker push")]
    assert pushed == images_of("registry.example.org/team", tmp_path)


def test_commands_are_found() -> None:
    assert len(set(commands())) >= 40
    with pytest.raises(AssertionError):
        check_kubectl(["apply", "-k", "k8s/overlays/none"])
    with pytest.raises(AssertionError):
        check_kubectl(["logs", "statefulset/learner", "--no-such-flag"])
    with pytest.raises(AssertionError):
        check_kubectl(["logs", "deployment/learner"])
    with pytest.raises(AssertionError):
        check_kubectl(["apply", "-f", "no-such-file.yaml"])


def test_the_secret_is_the_one_that_pods_mount() -> None:
    (command,) = [each for each in commands() if "create secret" in each]
    words = shlex.split(command)
    assert re.search(r"--from-literal=token=", command)
    for name in ("learner", "actor"):
        (volume,) = [each for each in overlay("cpu").pod(name)["volumes"] if each["name"] == "token"]
        assert volume["secret"]["secretName"] == words[4]
        assert volume["secret"]["items"] == [{"key": "token", "path": "token"}]


# What the pages show ------------------------------------------------------------------------------


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The manifests, with the files that the page's commands put into an overlay of one's own."""
    shutil.copytree(K8S, tmp_path / "k8s", ignore=shutil.ignore_patterns("images"))
    (block,) = [each for each in blocks(PAGE, "sh") if each.startswith("mkdir ")]
    subprocess.run(["sh", "-e", "-c", block], cwd=tmp_path, check=True)
    return tmp_path


def shown_overlays() -> tuple[str, str]:
    """The kustomizations of the page: with a number of actors, and with an autoscaler."""
    fixed, scaled = blocks(PAGE, "yaml")
    for each in (fixed, scaled):
        assert each.startswith(f"# {MINE}/kustomization.yaml\n")
    return fixed, scaled


def built(checkout: Path, kustomization: str) -> Rendered:
    (checkout / MINE / "kustomization.yaml").write_text(kustomization)
    rendered = build(checkout / MINE)
    check_schemas(rendered)
    return rendered


def test_own_overlay_builds(checkout: Path) -> None:
    shown, _ = shown_overlays()
    mine = built(checkout, shown)
    assert mine.container("learner")["image"] == "registry.example.org/team/seedbed-learner:0.1.0"
    assert mine.workload("actor")["spec"]["replicas"] == 32
    # Its own files, not those of the base.
    (checkout / MINE / "learner.toml").write_text('env = "ALE/Pong-v5"\n')
    assert built(checkout, shown).files("learner")["learner.toml"] == 'env = "ALE/Pong-v5"\n'
    # Where the images are says nothing of which they are.
    with_gpu = shown.replace("components:\n", "components:\n  - ../../components/gpu\n", 1)
    image = built(checkout, with_gpu).container("learner")["image"]
    assert image == "registry.example.org/team/seedbed-learner:0.1.0-gpu"


def test_own_overlay_needs_its_files(checkout: Path) -> None:
    (checkout / MINE / "learner.toml").unlink()
    with pytest.raises(AssertionError, match=r"learner\.toml"):
        built(checkout, shown_overlays()[0])


def test_own_overlay_scales(checkout: Path) -> None:
    _, shown = shown_overlays()
    mine = built(checkout, shown)
    assert "replicas" not in mine.workload("actor")["spec"]
    most = mine.one("HorizontalPodAutoscaler", "actor")["spec"]["maxReplicas"]
    assert most == 450
    # The same with KEDA, as the comment says.
    keda = shown.replace("components/actor-autoscaling\n", "components/actor-autoscaling-keda\n")
    keda = keda.replace("{kind: HorizontalPodAutoscaler,", "{kind: ScaledObject,")
    mine = built(checkout, keda.replace("/spec/maxReplicas,", "/spec/maxReplicaCount,"))
    assert mine.one("ScaledObject", "actor")["spec"]["maxReplicaCount"] == most
    assert "replicas" not in mine.workload("actor")["spec"]


def test_a_number_of_actors_would_undo_autoscaling(checkout: Path) -> None:
    """Why the page says to leave it out: kustomize sets it after the component has taken it away."""
    scaled = shown_overlays()[1] + "replicas:\n  - {name: actor, count: 32}\n"
    assert built(checkout, scaled).workload("actor")["spec"]["replicas"] == 32


def test_the_learner_has_room_for_as_many_as_shown(checkout: Path) -> None:
    (snippet,) = blocks(PAGE, "toml")
    changed = tomllib.loads(snippet)
    path = checkout / MINE / "learner.toml"
    kept = [line for line in path.read_text().splitlines() if line.partition(" = ")[0] not in changed]
    path.write_text("\n".join(kept) + f"\n{snippet}")
    learner = parse(LearnerOptions, [f"--config={path}", "--insecure"], prog="docs", description="")
    num_envs = tomllib.loads((checkout / MINE / "actor.toml").read_text())["num_envs"]
    environments = 450 * num_envs
    assert learner.max_environments == 1.25 * environments
    assert learner.batch_size == changed["batch_size"]
    assert environments / (2 * learner.batch_size) + 2 <= MUCH_LAG


def shown_manifests() -> dict[str, Resource]:
    """Resources that operations.md shows, by the file that they are saved as, or by their kind."""
    found: dict[str, Resource] = {}
    for block in blocks(OPERATIONS, "yaml"):
        resource: dict[str, Any] = yaml.safe_load(block)
        file = re.match(r"# (\S+\.yaml)\n", block)
        found[file[1] if file else resource["kind"]] = resource
    return found


def test_shown_manifests_validate() -> None:
    assert set(shown_manifests()) == {"VolumeSnapshot", "PersistentVolumeClaim", "run-files.yaml"}
    for resource in shown_manifests().values():
        assert resource["metadata"]["namespace"] == "seedbed"
        if resource["kind"] != "VolumeSnapshot":  # An extension: no package has its schema.
            for version in newest_versions():
                kubernetes_validate.validate(resource, version, strict=True)


def test_the_pod_with_the_runs_files_is_one_that_may_start_there() -> None:
    """As restricted as the learner, on its volume; and no selector takes it for another."""
    pod = shown_manifests()["run-files.yaml"]
    learner, (container,) = overlay("cpu").pod("learner"), pod["spec"]["containers"]
    original = overlay("cpu").container("learner")
    for key in ("runAsNonRoot", "runAsUser", "runAsGroup", "fsGroup", "seccompProfile"):
        assert pod["spec"]["securityContext"][key] == learner["securityContext"][key]
    assert container["securityContext"] == original["securityContext"]
    assert container["image"] == original["image"]
    assert {"cpu", "memory"} <= set(container["resources"]["limits"])
    (claims,) = overlay("cpu").one("StatefulSet", "learner")["spec"]["volumeClaimTemplates"]
    (volume,) = pod["spec"]["volumes"]
    assert volume["persistentVolumeClaim"]["claimName"] == f"{claims['metadata']['name']}-learner-0"
    assert container["volumeMounts"] == [
        each for each in original["volumeMounts"] if each["name"] == volume["name"]
    ]
    for resource in overlay("gpu"):
        for selector in selectors(resource.get("spec", {})):
            assert not selector or not selector.items() <= pod["metadata"]["labels"].items()


def test_every_component_and_overlay_is_listed() -> None:
    for folder in ("components", "overlays"):
        for path in (K8S / folder).glob("*/kustomization.yaml"):
            # Taken in by the two that follow its rule.
            if path.parent.name != "actor-demand":
                assert f"`{path.parent.name}`" in TEXT


def test_links_lead_somewhere() -> None:
    broken = broken_links(PAGE)
    assert [each for each in broken if not (PAGE.parent / each).is_dir()] == []
