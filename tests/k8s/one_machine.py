"""A cluster of one machine, for what a deployment's manifests say: pods are processes.

What a container gets is what the manifests and the image's Dockerfile say: the entry point and the
arguments, the environment (with the downward API's fields), and the files of its volumes. Only places
are others: a mounted path is a folder, a Service's name is loopback, and each port is a free one.
Signals, grace and probes are the kubelet's.
"""

import json
import math
import re
import signal
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.certificates import TOKEN, Authority
from tests.integration.processes import BIN, Launcher, Process, until
from tests.integration.test_separate import free_port
from tests.k8s import dockerfile
from tests.k8s.rendering import Rendered, Resource

SERVING = health_pb2.HealthCheckResponse.SERVING


class OneMachine:
    """Where the pods of one deployment run.

    Args:
        rendered: the manifests.
        folder: of all volumes.
        launch: starts the processes.
        edit: what is changed of a configuration file's text, by its name: a run that takes hours is
            no test.
    """

    def __init__(
        self,
        rendered: Rendered,
        folder: Path,
        launch: Launcher,
        edit: Callable[[str, str], str] = lambda name, text: text,
    ) -> None:
        self.rendered = rendered
        self._folder = folder
        self._launch = launch
        self._edit = edit
        self._pods = 0
        learner = rendered.container("learner")
        self._ports = {each["containerPort"]: free_port() for each in learner["ports"]}
        self._secrets = self._make_secrets()

    def start(self, name: str) -> "Pod":
        """A pod of the workload's template."""
        self._pods += 1
        return Pod(self, f"{name}-{self._pods}", name)

    def run(self, pod: str, name: str) -> Process:
        """The process of a pod's one container."""
        folder = self._folder / pod
        mounts = self._mount(name, folder)
        container = self.rendered.container(name)
        # Inside an image there is nothing of this machine's but the program itself.
        environ = {**dockerfile.environment(name), **self._environment(container, pod)}
        program, *words = dockerfile.entrypoint(name)
        environ["TMPDIR"] = "/tmp"
        return self._launch(
            str(BIN / program),
            *(self._placed(word, mounts) for word in [*words, *container["args"]]),
            cwd=mounts["/tmp"],
            environ={key: self._placed(value, mounts) for key, value in environ.items()},
        )

    def address(self, port_name: str) -> str:
        """Where the learner's port of this name is."""
        ports = self.rendered.container("learner")["ports"]
        (number,) = [each["containerPort"] for each in ports if each["name"] == port_name]
        return f"127.0.0.1:{self._ports[number]}"

    def status(self) -> Mapping[str, Any]:
        """What the learner's status page is told."""
        body: Mapping[str, Any] = json.loads(self._get("/status.json"))
        return body

    def metrics(self) -> str:
        """What Prometheus is told."""
        (monitor,) = self.rendered.of("ServiceMonitor")
        return self._get(monitor["spec"]["endpoints"][0]["path"])

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://{self.address('metrics')}{path}", timeout=10) as answer:
            text: str = answer.read().decode()
            return text

    def _make_secrets(self) -> Mapping[str, Mapping[str, bytes]]:
        """What cert-manager and the administrator make, by the secret's name."""
        authority = Authority(self._folder / "authority")
        made: dict[str, Mapping[str, bytes]] = {"seedbed-token": {"token": f"{TOKEN}\n".encode()}}
        for each in self.rendered.of("Certificate"):
            names = each["spec"].get("dnsNames", [])
            # The name that actors call is loopback here.
            files = authority.issue(each["metadata"]["name"], *names, "127.0.0.1")
            made[each["spec"]["secretName"]] = {
                "tls.crt": Path(files["tls_cert"]).read_bytes(),
                "tls.key": Path(files["tls_key"]).read_bytes(),
                "ca.crt": Path(authority.ca).read_bytes(),
            }
        return made

    def _mount(self, name: str, folder: Path) -> Mapping[str, Path]:
        """The pod's volumes, each a folder by its mount's path; volumes that are claimed outlive it."""
        volumes = {each["name"]: each for each in self.rendered.pod(name)["volumes"]}
        mounts = {}
        for mount in self.rendered.container(name)["volumeMounts"]:
            volume = volumes.get(mount["name"], {})
            kept = "persistentVolumeClaim" in volume or not volume
            place = (self._folder / "claims" if kept else folder) / mount["name"]
            place.mkdir(parents=True, exist_ok=True)
            mounts[mount["mountPath"]] = place
        for mount in self.rendered.container(name)["volumeMounts"]:
            self._fill(volumes.get(mount["name"], {}), name, mounts[mount["mountPath"]], mounts)
        return mounts

    def _fill(self, volume: Resource, name: str, place: Path, mounts: Mapping[str, Path]) -> None:
        if "configMap" in volume:
            for file, text in self.rendered.files(name).items():
                (place / file).write_text(self._placed(self._edit(file, text), mounts))
        if "secret" in volume:
            secret = self._secrets[volume["secret"]["secretName"]]
            for item in volume["secret"]["items"]:
                (place / item["path"]).write_bytes(secret[item["key"]])
                (place / item["path"]).chmod(volume["secret"]["defaultMode"])

    def _environment(self, container: Resource, pod: str) -> Mapping[str, str]:
        environ = {}
        for each in container["env"]:
            source = each.get("valueFrom", {})
            if "fieldRef" in source:
                assert source["fieldRef"]["fieldPath"] == "metadata.name"
                environ[each["name"]] = pod
            elif "resourceFieldRef" in source:
                assert source["resourceFieldRef"]["resource"] == "limits.cpu"
                environ[each["name"]] = str(_cores(container["resources"]["limits"]["cpu"]))
            else:
                environ[each["name"]] = each["value"]
        return environ

    def _placed(self, text: str, mounts: Mapping[str, Path]) -> str:
        """`text` with this machine's paths, addresses and ports."""
        # Longer paths first: one may be another's beginning.
        paths = "|".join(re.escape(path) for path in sorted(mounts, key=len, reverse=True))
        text = re.sub(rf"({paths})(?=/|\"|$)", lambda match: str(mounts[match[1]]), text, flags=re.M)
        for number, port in self._ports.items():
            text = re.sub(rf'"learner:{number}"', f'"127.0.0.1:{port}"', text)
            text = re.sub(rf'"0\.0\.0\.0:{number}"', f'"0.0.0.0:{port}"', text)
        return text


class Pod:
    """One pod: started when made."""

    def __init__(self, machine: OneMachine, name: str, workload: str) -> None:
        self.name = name
        self._machine = machine
        self._spec = machine.rendered.pod(workload)
        self._container = machine.rendered.container(workload)
        self.process = machine.run(name, workload)

    def probe(self, kind: str) -> bool:
        """Ask as the kubelet does: gRPC's health check, in plain text, at the container's port."""
        probe = self._container[kind]
        port = self._machine._ports[probe["grpc"]["port"]]
        request = health_pb2.HealthCheckRequest(service=probe["grpc"].get("service", ""))
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            try:
                stub = health_pb2_grpc.HealthStub(channel)
                return bool(stub.Check(request, timeout=probe["timeoutSeconds"]).status == SERVING)
            except grpc.RpcError:
                return False

    def wait_until_ready(self) -> None:
        """Until the startup probe has succeeded, and then the others do."""

        def started() -> bool:
            assert self.process.running, self.process.stderr
            return self.probe("startupProbe")

        until(started, lambda: f"{self.name} to start; it said:\n{self.process.stderr}")
        assert self.probe("readinessProbe")
        assert self.probe("livenessProbe")

    def delete(self) -> int:
        """SIGTERM, and the container's exit status within the grace that the pod has."""
        self.process.signal(signal.SIGTERM)
        return self.process.status(self._spec["terminationGracePeriodSeconds"])


def _cores(quantity: str) -> int:
    """As the downward API rounds them: up."""
    if quantity.endswith("m"):
        return math.ceil(int(quantity[:-1]) / 1000)
    return math.ceil(float(quantity))
