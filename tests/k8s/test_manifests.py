"""Every deployment builds, validates, and agrees with itself and with the program."""

import itertools
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from actor.config import ActorOptions
from learner.config import LearnerOptions
from learner.planning.plan import MUCH_LAG
from learner.run import DEFAULT_LISTEN
from protos.options import option_names, parse
from protos.secrets import is_private
from tests.k8s import custom_resources
from tests.k8s.rendering import (
    COMBINATIONS,
    K8S,
    OTHER_OVERLAYS,
    OVERLAYS,
    ROOT,
    Rendered,
    Resource,
    combination,
    components_of,
    needs_kubectl,
    overlay,
)

pytestmark = needs_kubectl

PORTS = {"grpc": 7777, "health": 7778, "metrics": 7779}
PROGRAMS: dict[str, type] = {"learner": LearnerOptions, "actor": ActorOptions}


@pytest.fixture(scope="module", params=[*OVERLAYS, *COMBINATIONS])
def rendered(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Rendered:
    if request.param in OVERLAYS:
        return overlay(request.param)
    return combination(COMBINATIONS[request.param], tmp_path_factory.mktemp("combination"))


# Schemas ----------------------------------------------------------------------------------------


def newest_versions() -> list[str]:
    """The three newest minor versions of Kubernetes whose schemas are installed."""
    folder = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema"
    found = (re.fullmatch(r"v1\.(\d+)\.\d+-local-strict", path.name) for path in folder.iterdir())
    minors = sorted({int(match[1]) for match in found if match})
    return [f"1.{minor}" for minor in minors[-3:]]


def check_schemas(rendered: Rendered) -> None:
    for resource in rendered:
        own = "." not in resource["apiVersion"] or resource["apiVersion"].endswith(
            (".k8s.io/v1", ".k8s.io/v2")
        )
        if not own:
            custom_resources.check(resource, rendered)
            continue
        for version in newest_versions():
            kubernetes_validate.validate(resource, version, strict=True)


def test_validates_strictly(rendered: Rendered) -> None:
    assert len(newest_versions()) == 3
    check_schemas(rendered)


def test_other_overlays_validate() -> None:
    for name in OTHER_OVERLAYS:
        check_schemas(overlay(name))


def test_a_wrong_field_would_be_noticed() -> None:
    resource = {**overlay("kind").one("PodDisruptionBudget", "learner")}
    resource["spec"] = {**resource["spec"], "minAvaliable": 1}
    with pytest.raises(kubernetes_validate.ValidationError):
        check_schemas(Rendered([resource]))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_combination_validates(tmp_path: Path) -> None:
    choices = itertools.product(
        [("plaintext",), ("tls", "token")],
        [(), ("gpu",)],
        [(), ("network-policy",)],
        [(), ("spot-nodes",)],
        [(), ("monitoring",)],
        [(), ("actor-autoscaling",), ("actor-autoscaling-keda",), ("job",)],
    )
    for number, chosen in enumerate(choices):
        folder = tmp_path / str(number)
        folder.mkdir()
        check_schemas(combination([name for part in chosen for name in part], folder))
    assert number == 127


def test_every_component_is_in_some_combination() -> None:
    used = {name for each in COMBINATIONS.values() for name in each}
    used |= {name for each in OVERLAYS for name in components_of(each)}
    # Not for overlays: both forms of autoscaling take it in.
    used |= {"actor-demand"}
    assert used == {path.parent.name for path in (K8S / "components").glob("*/kustomization.yaml")}


# References -------------------------------------------------------------------------------------


def pods(rendered: Rendered) -> Iterator[tuple[Mapping[str, str], Mapping[str, Any]]]:
    """(labels, spec) of every pod template."""
    for workload in rendered.workloads():
        template = workload["spec"]["template"]
        yield template["metadata"]["labels"], template["spec"]


def selectors(node: Any) -> Iterator[Mapping[str, str]]:
    """All `matchLabels` of pods below a node."""
    if isinstance(node, list):
        for each in node:
            yield from selectors(each)
    elif isinstance(node, dict):
        for key, value in node.items():
            if key in ("labelSelector", "podSelector", "selector") and isinstance(value, dict):
                # A Service's selector is the labels themselves.
                yield value.get("matchLabels", value)
            elif key != "namespaceSelector":
                yield from selectors(value)


def test_selectors_match_pods(rendered: Rendered) -> None:
    ours = [labels for labels, _ in pods(rendered)]
    assert len(ours) == 2
    for resource in rendered:
        if resource["kind"] == "ServiceMonitor":  # It selects Services: custom_resources.
            continue
        for selector in selectors(resource.get("spec", {})):
            if selector == {"k8s-app": "kube-dns"}:
                continue
            matched = [labels for labels in ours if selector.items() <= labels.items()]
            # Exactly one, so that no actor is taken for the learner; {} means all.
            assert len(matched) == (1 if selector else 2), (resource["metadata"]["name"], selector)


def test_every_resource_is_in_the_namespace_and_labelled(rendered: Rendered) -> None:
    rendered.one("Namespace", "seedbed")
    for resource in rendered:
        if resource["kind"] != "Namespace":
            assert resource["metadata"]["namespace"] == "seedbed"
            assert resource["metadata"]["labels"]["app.kubernetes.io/name"] == "seedbed"


def test_volumes_lead_somewhere(rendered: Rendered) -> None:
    secrets = {each["spec"]["secretName"] for each in rendered.of("Certificate")}
    # Made by hand; test_readme.py looks for it there.
    secrets.add("seedbed-token")
    claims = {each["metadata"]["name"] for each in rendered.of("PersistentVolumeClaim")}
    for workload in rendered.workloads():
        spec = workload["spec"]["template"]["spec"]
        volumes = {each["name"]: each for each in spec["volumes"]}
        templates = workload["spec"].get("volumeClaimTemplates", [])
        mounted = {mount["name"] for each in spec["containers"] for mount in each["volumeMounts"]}
        assert mounted == {*volumes, *(each["metadata"]["name"] for each in templates)}
        for volume in volumes.values():
            if "configMap" in volume:
                rendered.one("ConfigMap", volume["configMap"]["name"])
            if "secret" in volume:
                assert volume["secret"]["secretName"] in secrets
                # The program refuses files that others can read.
                assert volume["secret"]["defaultMode"] == 0o440
            if "persistentVolumeClaim" in volume:
                assert volume["persistentVolumeClaim"]["claimName"] in claims
        rendered.one("ServiceAccount", spec["serviceAccountName"])


def test_actors_do_not_get_the_learners_key(rendered: Rendered) -> None:
    for volume in rendered.pod("actor")["volumes"]:
        if volume.get("secret", {}).get("secretName") == "learner-tls":
            assert [item["key"] for item in volume["secret"]["items"]] == ["ca.crt"]


# The program ------------------------------------------------------------------------------------


def options_of(rendered: Rendered, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the program makes of a container's arguments, environment and files."""
    container, environ = rendered.container(name), {}
    for each in container["env"]:
        # What the downward API fills in is a number of cores or a name.
        environ[each["name"]] = each.get("value", "7")
    (argument,) = container["args"]
    path = argument.removeprefix("--config=")
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert Path(path).parent == Path(mounts["config"])
    file = folder / Path(path).name
    file.write_text(rendered.files(name)[file.name])
    for variable, value in environ.items():
        monkeypatch.setenv(variable, value)
        if variable.startswith("SEEDBED_"):
            assert variable.removeprefix("SEEDBED_").lower() in option_names(PROGRAMS[name])
        if value.startswith("/"):
            # Files that options name are where volumes are mounted.
            assert any(Path(value).is_relative_to(mount) for mount in mounts.values())
    # It is read beside its place, which is not this machine's.
    return parse(PROGRAMS[name], [f"--config={file}"], prog=name, description="")


@pytest.fixture
def learner(rendered: Rendered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LearnerOptions:
    options: LearnerOptions = options_of(rendered, "learner", tmp_path, monkeypatch)
    return options


def set_keys(rendered: Rendered, name: str) -> set[str]:
    (text,) = rendered.files(name).values()
    return set(tomllib.loads(text))


def test_configuration_is_accepted(
    rendered: Rendered, learner: LearnerOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set_keys(rendered, "learner") <= set(option_names(LearnerOptions))
    assert set_keys(rendered, "actor") <= set(option_names(ActorOptions))
    # The other program's variables are not this one's.
    for variable in [each["name"] for each in rendered.container("learner")["env"]]:
        monkeypatch.delenv(variable)
    # Parsing opens the files that it names.
    monkeypatch.setattr(ActorOptions, "credentials", lambda self: None)
    actor: ActorOptions = options_of(rendered, "actor", tmp_path, monkeypatch)
    assert actor.env == learner.env
    # Pods are all started by the same words.
    assert actor.seed == -1
    assert actor.num_envs <= (learner.inference_batch_size or 256)
    host, _, port = actor.server.partition(":")
    service = rendered.one("Service", host)["spec"]
    assert int(port) in [each["port"] for each in service["ports"]]
    # It waits in its stream until the learner serves.
    assert service["publishNotReadyAddresses"] is True
    certificates = [each["spec"] for each in rendered.of("Certificate") if not each["spec"].get("isCA")]
    assert all(host in each["dnsNames"] for each in certificates)
    assert bool(actor.tls_ca) == bool(learner.tls_cert) == bool(certificates)
    assert bool(actor.token_file) == bool(learner.token_file)


def most_environments(rendered: Rendered, folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Of all actors that may run at a time."""
    actor: ActorOptions = options_of(rendered, "actor", folder, monkeypatch)
    spec = rendered.workload("actor")["spec"]
    scaled = [each["spec"] for each in rendered.of("HorizontalPodAutoscaler", "ScaledObject")]
    actors = [spec.get("replicas", 1), spec.get("parallelism", 1)]
    actors += [each.get("maxReplicas", each.get("maxReplicaCount")) for each in scaled]
    return max(actors) * actor.num_envs


def test_the_learner_has_room_for_all_actors(
    rendered: Rendered, learner: LearnerOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environments = most_environments(rendered, tmp_path, monkeypatch)
    # And a quarter more, as docs/operations.md says, for the leases of those that were killed.
    assert (learner.max_environments or 1024) >= 1.25 * environments


@pytest.mark.parametrize("name", OVERLAYS)
def test_no_overlay_can_come_near_the_alert_of_its_lag(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner: LearnerOptions = options_of(overlay(name), "learner", tmp_path, monkeypatch)
    for variable in [each["name"] for each in overlay(name).container("learner")["env"]]:
        monkeypatch.delenv(variable)
    monkeypatch.setattr(ActorOptions, "credentials", lambda self: None)
    environments = most_environments(overlay(name), tmp_path, monkeypatch)
    # As `seedbed plan` reckons it where the queue is full.
    waiting = 1 + (learner.queue_capacity or learner.batch_size) / learner.batch_size
    assert environments / (2 * learner.batch_size) + waiting <= MUCH_LAG


def test_the_learner_may_listen_on_the_network(learner: LearnerOptions) -> None:
    assert learner.listen is not None
    assert not is_private(learner.listen)
    secure = bool(learner.tls_cert and learner.tls_key and learner.token_file)
    # One of the two, and not half of one.
    assert learner.insecure != secure


def test_plain_text_is_behind_network_policies() -> None:
    for name in OVERLAYS:
        if "plaintext" in components_of(name):
            assert "network-policy" in components_of(name)


def test_ports_are_the_programs(rendered: Rendered, learner: LearnerOptions) -> None:
    assert DEFAULT_LISTEN.endswith(f":{PORTS['grpc']}")
    said = {"grpc": learner.listen, "health": learner.health_listen, "metrics": learner.metrics_listen}
    assert said == {name: f"0.0.0.0:{port}" for name, port in PORTS.items()}
    container = rendered.container("learner")
    assert {each["name"]: each["containerPort"] for each in container["ports"]} == PORTS
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["grpc"] == {"port": PORTS["health"]}
    for service in rendered.of("Service"):
        for port in service["spec"]["ports"]:
            assert port["port"] == PORTS[port["targetPort"]]
    for policy in rendered.of("NetworkPolicy"):
        for rule in [*policy["spec"].get("ingress", []), *policy["spec"].get("egress", [])]:
            assert {port["port"] for port in rule["ports"]} <= {*PORTS.values(), 53}
    assert "ports" not in rendered.container("actor")


def test_a_drain_fits_into_its_grace(rendered: Rendered, learner: LearnerOptions) -> None:
    assert learner.drain_seconds > 0
    assert rendered.pod("learner")["terminationGracePeriodSeconds"] > learner.drain_seconds
    # The health check is NOT_SERVING while the run ends and saves.
    liveness = rendered.container("learner")["livenessProbe"]
    assert liveness["periodSeconds"] * (liveness["failureThreshold"] - 1) > learner.drain_seconds
    # An actor's lease is not held longer than it takes to come back by itself.
    assert 0 < rendered.pod("actor")["terminationGracePeriodSeconds"] <= learner.lease_seconds


def test_the_run_is_kept(rendered: Rendered, learner: LearnerOptions) -> None:
    mounts = {each["name"]: each["mountPath"] for each in rendered.container("learner")["volumeMounts"]}
    assert learner.logdir is not None
    # Inside the volume: its root may hold a file system's own files, such as lost+found.
    assert Path(mounts["run"]) in Path(learner.logdir).parents
    for workload in rendered.of("StatefulSet"):
        assert workload["spec"]["replicas"] == 1
        kept = workload["spec"]["persistentVolumeClaimRetentionPolicy"]
        assert set(kept.values()) == {"Retain"}
    assert rendered.one("PodDisruptionBudget", "learner")["spec"]["minAvailable"] == 1


def test_a_service_has_no_end_and_a_job_has_one(rendered: Rendered, learner: LearnerOptions) -> None:
    jobs = rendered.of("Job")
    if not jobs:
        # Kubernetes would start a run that is complete again and again.
        assert learner.total_steps == 10**15
        return
    assert rendered.of("StatefulSet", "Deployment") == []
    assert {each["metadata"]["name"] for each in jobs} == {"learner", "actor"}
    assert learner.interrupted_status == 143
    for job in jobs:
        spec = job["spec"]
        assert spec["template"]["spec"]["restartPolicy"] == "Never"
        ignored, fatal = spec["podFailurePolicy"]["rules"]
        assert ignored["onPodConditions"] == [{"type": "DisruptionTarget"}]
        assert fatal["onExitCodes"]["values"] == [2]
        variables = [each["name"] for each in spec["template"]["spec"]["containers"][0]["env"]]
        assert "SEEDBED_INTERRUPTED_STATUS" in variables
    # No number of completions: the Job is complete when one actor, and then all, have ended with 0.
    assert "completions" not in rendered.workload("actor")["spec"]
    assert rendered.workload("actor")["spec"]["parallelism"] >= 1


def test_an_overlay_for_jobs_has_an_end() -> None:
    (text,) = overlay("job").files("learner").values()
    assert tomllib.loads(text)["total_steps"] < 10**12


# Security ---------------------------------------------------------------------------------------


def test_pods_are_restricted(rendered: Rendered) -> None:
    """Kubernetes' "restricted" Pod Security Standard, and a read-only root besides."""
    labels = rendered.one("Namespace", "seedbed")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    allowed = {"configMap", "emptyDir", "secret", "persistentVolumeClaim", "projected", "downwardAPI"}
    for _, spec in pods(rendered):
        context = spec["securityContext"]
        assert context["runAsNonRoot"] is True
        assert context["runAsUser"] == context["runAsGroup"] == context["fsGroup"] == 65532
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & set(spec)
        for volume in spec["volumes"]:
            assert set(volume) - {"name"} <= allowed
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert "/tmp" in [mount["mountPath"] for mount in container["volumeMounts"]]
    for account in rendered.of("ServiceAccount"):
        assert account["automountServiceAccountToken"] is False
    assert rendered.of("Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding", "Secret") == []


def test_resources_are_bounded(rendered: Rendered) -> None:
    for _, spec in pods(rendered):
        for container in spec["containers"]:
            assert {"cpu", "memory"} <= set(container["resources"]["requests"])
            assert {"cpu", "memory"} <= set(container["resources"]["limits"])


def test_images_are_of_this_version(rendered: Rendered) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    has_gpu = "nvidia.com/gpu" in rendered.container("learner")["resources"]["limits"]
    learner = f"seedbed-learner:{version}{'-gpu' if has_gpu else ''}"
    assert rendered.container("learner")["image"] == learner
    assert rendered.container("actor")["image"] == f"seedbed-actor:{version}"


def test_autoscaling_owns_the_number_of_actors(rendered: Rendered) -> None:
    scaled = rendered.of("HorizontalPodAutoscaler", "ScaledObject")
    assert len(scaled) <= 1
    for deployment in rendered.of("Deployment"):
        # Applying the manifests again would set it back.
        assert ("replicas" in deployment["spec"]) == (not scaled)


def resources_by_kind(rendered: Rendered) -> Mapping[str, Resource]:
    return {each["kind"]: each for each in rendered}


def test_overlays_are_what_they_are_called() -> None:
    assert "nvidia.com/gpu" in overlay("gpu").container("learner")["resources"]["limits"]
    assert {"Certificate", "HorizontalPodAutoscaler", "ServiceMonitor"} <= set(
        resources_by_kind(overlay("gpu"))
    )
    affinity = overlay("gpu").pod("actor")["affinity"]["nodeAffinity"]
    assert len(affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]) == 4
    assert "affinity" not in overlay("gpu").pod("learner")
    assert "Certificate" in resources_by_kind(overlay("cpu"))
    assert "Job" in resources_by_kind(overlay("job"))
    assert "Certificate" not in resources_by_kind(overlay("kind"))
