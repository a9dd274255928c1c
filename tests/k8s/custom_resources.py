"""What the manifests need of kinds that Kubernetes' own schemas do not know.

Their schemas are in no package of Python's. This is a small structural check in their place: required
fields, known fields at the first levels, and references that lead somewhere. It does not prove that an
operator takes them.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from tests.k8s.rendering import Rendered, Resource

DURATION = re.compile(r"(\d+h)?(\d+m)?(\d+s)?")


def check(resource: Resource, rendered: Rendered) -> None:
    """Fail if a custom resource is of an unknown kind, or does not hold together."""
    kind = resource["kind"]
    assert kind in CHECKS, f"{kind}: no schema, and no check of ours"
    api_version, check_spec = CHECKS[kind]
    assert resource["apiVersion"] == api_version
    assert set(resource) == {"apiVersion", "kind", "metadata", "spec"}
    assert resource["metadata"]["namespace"] == "seedbed"
    check_spec(resource["spec"], rendered)


def _fields(found: Mapping[str, Any], required: str, optional: str = "") -> None:
    missing = set(required.split()) - set(found)
    unknown = set(found) - set(required.split()) - set(optional.split())
    assert not missing, f"missing {missing}"
    assert not unknown, f"unknown {unknown}"


def _issuer(spec: Mapping[str, Any], rendered: Rendered) -> None:
    assert len(spec) == 1
    if "ca" in spec:
        secrets = [each["spec"]["secretName"] for each in rendered.of("Certificate")]
        assert spec["ca"]["secretName"] in secrets
    else:
        assert spec == {"selfSigned": {}}


def _certificate(spec: Mapping[str, Any], rendered: Rendered) -> None:
    optional = "isCA commonName dnsNames duration renewBefore usages privateKey"
    _fields(spec, "secretName issuerRef", optional)
    assert spec["issuerRef"]["group"] == "cert-manager.io"
    rendered.one(spec["issuerRef"]["kind"], spec["issuerRef"]["name"])
    assert spec.get("isCA") or spec["dnsNames"]
    for name in ("duration", "renewBefore"):
        assert DURATION.fullmatch(spec.get(name, "1h"))
    _fields(spec["privateKey"], "algorithm", "size rotationPolicy encoding")


def _service_monitor(spec: Mapping[str, Any], rendered: Rendered) -> None:
    _fields(spec, "selector endpoints", "namespaceSelector")
    for endpoint in spec["endpoints"]:
        _fields(endpoint, "port", "path interval scheme metricRelabelings relabelings")
        ports = [
            port["name"]
            for service in rendered.of("Service")
            if spec["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
            for port in service["spec"]["ports"]
        ]
        # One: a second Service with that port would count everything twice.
        assert ports.count(endpoint["port"]) == 1


def _prometheus_rule(spec: Mapping[str, Any], rendered: Rendered) -> None:
    _fields(spec, "groups")
    for group in spec["groups"]:
        _fields(group, "name rules", "interval")
        for rule in group["rules"]:
            _fields(rule, "expr", "alert record for labels annotations keep_firing_for")
            assert ("alert" in rule) != ("record" in rule)


def _scaled_object(spec: Mapping[str, Any], rendered: Rendered) -> None:
    optional = "pollingInterval cooldownPeriod minReplicaCount maxReplicaCount advanced fallback"
    _fields(spec, "scaleTargetRef triggers", optional)
    target = spec["scaleTargetRef"]
    rendered.one(target.get("kind", "Deployment"), target["name"])
    for trigger in spec["triggers"]:
        _fields(trigger, "type metadata", "metricType name authenticationRef")
        assert all(isinstance(value, str) for value in trigger["metadata"].values())


CHECKS: dict[str, tuple[str, Callable[[Mapping[str, Any], Rendered], None]]] = {
    "Issuer": ("cert-manager.io/v1", _issuer),
    "Certificate": ("cert-manager.io/v1", _certificate),
    "ServiceMonitor": ("monitoring.coreos.com/v1", _service_monitor),
    "PrometheusRule": ("monitoring.coreos.com/v1", _prometheus_rule),
    "ScaledObject": ("keda.sh/v1alpha1", _scaled_object),
}
