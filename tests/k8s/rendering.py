"""The manifests as a cluster gets them: built by `kubectl kustomize`, in Python's own containers."""

import functools
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
K8S = ROOT / "k8s"
OVERLAYS = ("cpu", "gpu", "job", "kind")
OTHER_OVERLAYS = sorted(
    path.parent.name
    for path in (K8S / "overlays").glob("*/kustomization.yaml")
    if path.parent.name not in OVERLAYS
)
"""Of another shape than one learner and its actors: with tests of their own."""

SECURE = ("tls", "token", "network-policy")
COMBINATIONS: dict[str, tuple[str, ...]] = {
    "plain": ("plaintext", "network-policy"),
    "gpu, plain": ("gpu", "plaintext", "network-policy", "spot-nodes"),
    "secure": SECURE,
    "secure, watched": (*SECURE, "monitoring"),
    "secure, spot, scaled": (*SECURE, "spot-nodes", "monitoring", "actor-autoscaling"),
    "secure, gpu, keda": (*SECURE, "gpu", "monitoring", "actor-autoscaling-keda"),
    "job, plain": ("plaintext", "network-policy", "job"),
    "job, everything": (*SECURE, "gpu", "spot-nodes", "monitoring", "job"),
}
"""Components over the base that make sense together, beside those of the overlays."""

Resource = Mapping[str, Any]

needs_kubectl = pytest.mark.skipif(
    shutil.which("kubectl") is None and os.environ.get("CI") != "true",
    reason="kubectl is not installed: it builds the manifests",
)


class Rendered(list[Resource]):
    """All resources of one deployment."""

    def of(self, *kinds: str) -> list[Resource]:
        return [each for each in self if each["kind"] in kinds]

    def one(self, kind: str, name: str) -> Resource:
        found = [each for each in self.of(kind) if each["metadata"]["name"] == name]
        assert len(found) == 1, f"expected one {kind} {name}, found {len(found)}"
        return found[0]

    def workload(self, name: str) -> Resource:
        """The StatefulSet, Deployment or Job of this name."""
        found = [each for each in self.workloads() if each["metadata"]["name"] == name]
        assert len(found) == 1, f"expected one workload {name}, found {len(found)}"
        return found[0]

    def workloads(self) -> list[Resource]:
        return self.of("StatefulSet", "Deployment", "Job")

    def pod(self, name: str) -> Resource:
        spec: Resource = self.workload(name)["spec"]["template"]["spec"]
        return spec

    def container(self, name: str) -> Resource:
        (container,) = self.pod(name)["containers"]
        assert container["name"] == name
        return container  # type: ignore[no-any-return]  # parsed YAML has no types

    def files(self, name: str) -> Mapping[str, str]:
        """Contents of the pod's configuration, by the file's name."""
        volume = next(each for each in self.pod(name)["volumes"] if each["name"] == "config")
        data: Mapping[str, str] = self.one("ConfigMap", volume["configMap"]["name"])["data"]
        return data


@functools.cache
def overlay(name: str) -> Rendered:
    return build(K8S / "overlays" / name)


def combination(components: Sequence[str], folder: Path) -> Rendered:
    """The base with these components, of a kustomization that is written into `folder`."""
    lines = ["resources:", f"  - {os.path.relpath(K8S / 'base', folder)}", "components:"]
    lines += [f"  - {os.path.relpath(K8S / 'components' / each, folder)}" for each in components]
    (folder / "kustomization.yaml").write_text("\n".join(lines) + "\n")
    return build(folder)


def build(folder: Path) -> Rendered:
    """What the kustomization in `folder` comes to."""
    done = subprocess.run(
        ["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", done.stderr  # such as a warning of something deprecated
    return Rendered(yaml.safe_load_all(done.stdout))


def components_of(name: str) -> Iterator[str]:
    """Names of the components that an overlay takes."""
    text = (K8S / "overlays" / name / "kustomization.yaml").read_text()
    for path in yaml.safe_load(text)["components"]:
        yield Path(path).name
