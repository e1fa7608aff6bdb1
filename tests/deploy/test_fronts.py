"""Ingresses in front of the gateway and the console, and secrets that come from a store."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.deploy.rendering import CI, VALUE_SETS, Object, of_kind, refusal, text_of

FRONT = ("minimal", "ingress")
SECRETS = ("minimal", "secrets")


@pytest.mark.parametrize(
    ("name", "host"), [("gateway", "mesh.example.com"), ("console", "console.example.com")]
)
def test_ingress_ends_tls_and_sends_everything_to_the_pods(name: str, host: str) -> None:
    ingress = of_kind("Ingress", *FRONT)[name]
    assert ingress["spec"]["ingressClassName"] == "nginx"
    assert ingress["spec"]["tls"] == [
        {"hosts": [host], "secretName": f"{name.replace('gateway', 'mesh')}-example-com"}
    ]
    (rule,) = ingress["spec"]["rules"]
    backend = {"service": {"name": name, "port": {"number": 80}}}
    assert rule == {
        "host": host,
        "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]},
    }
    (port,) = of_kind("Service", *FRONT)[name]["spec"]["ports"]
    assert port["port"] == 80
    # Its pods are reached in plain text, by the peers that are named.
    policy = of_kind("NetworkPolicy", *FRONT)[name]["spec"]
    assert any("ingress-nginx" in str(inward["from"]) for inward in policy["ingress"])  # fmt: skip


def test_gateway_behind_an_ingress_keeps_tls_to_the_services() -> None:
    pod = of_kind("Deployment", *FRONT)["gateway"]["spec"]["template"]["spec"]
    (configure,) = pod["initContainers"]
    assert "--upstream-tls=/run/secrets/tls" in configure["args"]
    assert not any("--downstream-tls" in argument for argument in configure["args"])
    assert pod["containers"][0]["readinessProbe"]["httpGet"]["scheme"] == "HTTP"


def test_certificate_of_an_ingress_may_be_that_of_its_controller(tmp_path: Path) -> None:
    over = tmp_path / "over.yaml"
    over.write_text('gateway: {ingress: {tlsSecret: "", className: ""}}')
    spec = of_kind("Ingress", *FRONT, str(over))["gateway"]["spec"]
    assert spec["tls"] == [{"hosts": ["mesh.example.com"]}]
    assert "ingressClassName" not in spec


@pytest.mark.parametrize("values", VALUE_SETS)
def test_nothing_of_it_is_there_unless_it_is_asked_for(values: str) -> None:
    assert not of_kind("Ingress", values)
    assert not of_kind("ExternalSecret", values)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"gateway": {"from": []}}, "gateway.from is empty, and gateway.ingress.enabled needs the peers"),
        ({"console": {"from": []}}, "console.from is empty, and console.ingress.enabled needs the peers"),
        ({"gateway": {"hostnames": []}}, "gateway.hostnames is empty"),
        ({"gateway": {"tlsSecret": "clients-tls"}}, "gateway.tlsSecret has no use with gateway.ingress.enabled"),
        ({"gateway": {"parentRefs": [{"name": "public"}]}}, "gateway.ingress.enabled and gateway.parentRefs are two fronts"),
        ({"gateway": {"ingress": {"host": "a"}}}, "host"),
        ({"gateway": {"pod": {"extraEnv": [{"name": "A", "value": "b"}]}}}, "extraEnv"),
    ],
)  # fmt: skip
def test_front_that_could_send_nothing_is_refused(tmp_path: Path, changes: Object, named: str) -> None:
    values: Any = yaml.safe_load((CI / "ingress.yaml").read_text())
    for section, members in changes.items():
        values[section] |= members
    assert named in refusal(tmp_path, values)


def test_secrets_come_from_the_store_before_the_first_pod_that_needs_them() -> None:
    made = of_kind("ExternalSecret", *SECRETS)
    text = text_of(*SECRETS)
    assert len(made) == 4
    for name, one in made.items():
        assert one["spec"]["target"] == {"name": name, "creationPolicy": "Orphan", "deletionPolicy": "Retain"}
        assert f"name: {name}\n" in text or f"secretName: {name}" in text, "a pod mounts it"
    migrating = of_kind("Job", *SECRETS)["migrate"]["metadata"]["annotations"]
    for one in made.values():
        annotations = one["metadata"]["annotations"]
        assert annotations["helm.sh/hook"] == migrating["helm.sh/hook"]
        assert int(annotations["helm.sh/hook-weight"]) < int(migrating["helm.sh/hook-weight"])
    providers = made["spawnmesh-providers"]["spec"]
    assert providers["secretStoreRef"] == {"name": "vault", "kind": "ClusterSecretStore"}
    assert providers["dataFrom"] == [{"extract": {"key": "mesh/providers", "version": "3"}}]


@pytest.mark.parametrize(
    ("external", "named"),
    [
        ({"secrets": {"spawnmesh-s3": {"key": "a"}}}, "/externalSecrets/secretStoreRef/name"),
        (
            {"secretStoreRef": {"name": "vault"}, "secrets": {"spawnmesh-postgres": {"key": "a"}}},
            "externalSecrets.secrets has spawnmesh-postgres, and no value names a secret that is called so",
        ),
        ({"secretStoreRef": {"name": "vault"}, "secrets": {"spawnmesh-s3": {}}}, "/externalSecrets/secrets/spawnmesh-s3"),
        ({"secretStoreRef": {"kind": "Vault"}}, "/externalSecrets/secretStoreRef/kind"),
    ],
)  # fmt: skip
def test_secrets_that_nothing_would_read_are_refused(tmp_path: Path, external: Object, named: str) -> None:
    assert named in refusal(tmp_path, {"externalSecrets": external})
