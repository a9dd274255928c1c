"""The overlay of several learners: the group that it describes is the one that the program reads."""

import pytest

from learner.cluster import read_cluster
from tests.k8s.rendering import Rendered, needs_kubectl, overlay

pytestmark = needs_kubectl

PORT = 7780


@pytest.fixture
def rendered() -> Rendered:
    return overlay("many-learners")


def test_every_pod_is_one_learner_of_the_group(rendered: Rendered) -> None:
    learners = rendered.workload("learner")["spec"]
    environ = {each["name"]: each for each in rendered.container("learner")["env"]}
    path = environ["POD_INDEX"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert path == "metadata.labels['apps.kubernetes.io/pod-index']"
    names = [each["name"] for each in rendered.container("learner")["env"]]
    # Kubernetes puts in only what stands before.
    assert names.index("POD_INDEX") < names.index("TF_CONFIG")
    for index in range(learners["replicas"]):
        text = environ["TF_CONFIG"]["value"].replace("$(POD_INDEX)", str(index))
        cluster = read_cluster({"TF_CONFIG": text})
        assert cluster is not None
        assert cluster.index == index
        assert cluster.addresses == tuple(
            f"learner-{each}.{learners['serviceName']}:{PORT}" for each in range(learners["replicas"])
        )


def test_they_start_together_and_are_found_before_they_serve(rendered: Rendered) -> None:
    learners = rendered.workload("learner")["spec"]
    assert learners["podManagementPolicy"] == "Parallel"
    assert rendered.one("Service", learners["serviceName"])["spec"]["publishNotReadyAddresses"] is True
    assert rendered.one("Service", "learner")["spec"]["sessionAffinity"] == "ClientIP"
    budget = rendered.one("PodDisruptionBudget", "learner")["spec"]
    assert budget["minAvailable"] == learners["replicas"]


def test_learners_alone_reach_the_groups_port(rendered: Rendered) -> None:
    for policy in rendered.of("NetworkPolicy"):
        for rule in policy["spec"].get("ingress", []):
            if {"port": PORT} in rule["ports"]:
                (peer,) = rule["from"]
                assert peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "learner"
                assert len(rule["ports"]) == 1
    assert rendered.one("NetworkPolicy", "learners")
