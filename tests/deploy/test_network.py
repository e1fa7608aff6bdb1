"""The network policies allow the calls of the mesh, and no others.

tests/mesh/test_replicas.py compares the allowed calls with those of a trace.
"""

import importlib
import json
from ipaddress import ip_network
from pathlib import Path

import pytest
from spawnmesh_calls.contracts import mesh_services
from spawnmesh_runtime.methods import policy_of

from tests.support.deploy.policies import (
    COMPONENT,
    allowed_in,
    allowed_out,
    call_edges,
    component_of,
    ports_of,
)
from tests.support.deploy.rendering import VALUE_SETS, of_kind

SERVICES = ("session", "attachment-blob", "transcript", "model-router", "hook")
DATABASE = {*SERVICES, "session-worker", "attachment-blob-worker", "transcript-worker", "hook-worker"}


def settings_of(service: str) -> set[str]:
    snake = service.replace("-", "_")
    module = importlib.import_module(f"spawnmesh_{snake}.settings")
    pascal = "".join(part.capitalize() for part in service.split("-"))
    return set(getattr(module, f"{pascal}Settings").model_fields)


def test_services_may_call_those_whose_targets_they_are_given_and_no_others() -> None:
    wanted = {
        (service, field.removesuffix("_target").replace("_", "-"))
        for service in (*SERVICES, "runner")
        for field in settings_of(service)
        if field.endswith("_target")
    }
    assert call_edges("production") == wanted


def test_both_ends_of_an_edge_agree() -> None:
    outside = {edge for edge in allowed_in("production") if edge[0] == ""}
    assert allowed_in("production") - outside == allowed_out("production")


def test_callers_from_elsewhere_reach_what_has_calls_for_them_and_nothing_else() -> None:
    for_clients = {
        one.file.package.split(".")[1].replace("_", "-")
        for one in mesh_services()
        if any(
            {caller.name for caller in policy_of(method).callers} & {"CLIENT", "ADMIN"}
            for method in one.methods
        )
    }
    assert {called for caller, called in allowed_in("production") if caller == ""} == for_clients & set(
        SERVICES
    )


def test_every_pod_is_under_a_policy_for_both_directions() -> None:
    policies = of_kind("NetworkPolicy", "production")
    covered = {policy["spec"]["podSelector"]["matchLabels"][COMPONENT] for policy in policies.values()}
    assert covered == {*of_kind("Deployment", "production"), "migrate", "client"}
    for name, policy in policies.items():
        assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"], name


@pytest.mark.parametrize(
    ("port", "cidr", "who"),
    [
        (5432, "10.20.0.0/24", {*DATABASE, "migrate"}),
        (443, "10.30.0.0/24", {"attachment-blob", "attachment-blob-worker", "client"}),
        (443, "0.0.0.0/0", {"model-router", "hook", "hook-worker", "runner"}),
    ],
)
def test_storage_and_providers_are_reached_by_those_who_use_them(port: int, cidr: str, who: set[str]) -> None:
    reaching = {
        name
        for name, policy in of_kind("NetworkPolicy", "production").items()
        for rule in policy["spec"]["egress"]
        if port in ports_of(rule)
        and any(peer.get("ipBlock", {}).get("cidr") == cidr for peer in rule.get("to", []))
    }  # fmt: skip
    assert reaching == who


# Everything that leads outside is on: a collector, and keys by URL and of an identity provider.
OUTSIDE = {
    "telemetry": {"otlpEndpoint": "http://collector.example.com:4317"},
    "tokens": {
        "jwksUrl": "https://keys.example.com/jwks.json",
        "oidcIssuers": [
            {"issuer": "https://id.example.com", "audience": "x", "jwks_url": "https://id.example.com/keys"}
        ],
    },
}
PRIVATE = [ip_network(one) for one in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")]
# Pods that call providers, plugins and MCP servers of the internet.
CALLS_OUT = {"model-router", "hook", "hook-worker", "runner"}


@pytest.mark.parametrize("values", VALUE_SETS)
def test_nobody_may_send_anywhere_but_to_dns_storage_telemetry_and_peers(tmp_path: Path, values: str) -> None:
    over = tmp_path / "outside.yaml"
    over.write_text(json.dumps(OUTSIDE))
    for name, policy in of_kind("NetworkPolicy", values, str(over)).items():
        for rule in policy["spec"].get("egress", []):
            assert ports_of(rule) <= {53, 443, 4317, 5432, 8333, 50051}, name
            assert rule.get("to"), f"{name} may send to any address on {ports_of(rule)}"
            for peer in rule["to"]:
                if "ipBlock" not in peer:
                    continue
                network = ip_network(peer["ipBlock"]["cidr"])
                is_private = any(network.version == one.version and network.subnet_of(one) for one in PRIVATE)
                assert is_private or (name in CALLS_OUT and ports_of(rule) == {443}), (
                    f"{name} may send to {network} on {ports_of(rule)}"
                )


def test_names_are_asked_of_the_clusters_own_servers_alone() -> None:
    for name, policy in of_kind("NetworkPolicy", "production").items():
        (rule,) = [rule for rule in policy["spec"]["egress"] if ports_of(rule) == {53}]
        assert {port["protocol"] for port in rule["ports"]} == {"UDP", "TCP"}, name
        (peer,) = rule["to"]
        assert peer == {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}
        }, name


def test_names_are_asked_where_the_values_say(tmp_path: Path) -> None:
    servers = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "openshift-dns"}},
        "podSelector": {"matchLabels": {"dns.operator.openshift.io/daemonset-dns": "default"}},
    }
    cache = {"ipBlock": {"cidr": "169.254.20.10/32"}}
    over = tmp_path / "dns.yaml"
    over.write_text(json.dumps({"networkPolicy": {"dns": {"to": [servers, cache], "ports": [53, 5353]}}}))
    for name, policy in of_kind("NetworkPolicy", "production", str(over)).items():
        (rule,) = [rule for rule in policy["spec"]["egress"] if 53 in ports_of(rule)]
        asked = {(port["port"], port["protocol"]) for port in rule["ports"]}
        assert asked == {(53, "UDP"), (53, "TCP"), (5353, "UDP"), (5353, "TCP")}, name
        assert rule["to"] == [servers, cache], name


@pytest.mark.parametrize("values", ["minimal", "trial", "production"])
def test_migration_may_send_where_this_release_says_and_not_where_the_one_before_did(
    values: str,
) -> None:
    hook, weight = "helm.sh/hook", "helm.sh/hook-weight"
    policy = of_kind("NetworkPolicy", values)["migrate"]["metadata"].get("annotations", {})
    (job,) = (one["metadata"].get("annotations", {}) for one in of_kind("Job", values).values())
    assert policy.get(hook) == job.get(hook)
    if job:
        assert int(policy[weight]) < int(job[weight])
        assert policy["helm.sh/hook-delete-policy"] == "before-hook-creation,hook-succeeded"


def test_bundled_storage_lets_in_the_mesh_alone() -> None:
    policies = of_kind("NetworkPolicy", "trial")
    (rule,) = policies["s3"]["spec"]["ingress"]
    assert {component_of(peer) for peer in rule["from"]} == {
        "attachment-blob",
        "attachment-blob-worker",
        "client",
    }
    (rule,) = policies["postgresql"]["spec"]["ingress"]
    assert {component_of(peer) for peer in rule["from"]} == {*DATABASE, "migrate"}


def test_bundled_storage_binds_the_parts_behind_S3_to_the_pod_and_to_keys() -> None:
    (container,) = of_kind("StatefulSet", "trial")["s3"]["spec"]["template"]["spec"]["containers"]
    assert {"-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3.ip.bind=0.0.0.0"} <= set(container["args"])
    secret = of_kind("Secret", "trial")["s3-bundled"]["stringData"]
    keys = {
        one["name"]: secret[one["valueFrom"]["secretKeyRef"]["key"]]
        for one in container["env"]
        if "valueFrom" in one
    }
    assert set(keys) == {
        "WEED_JWT_SIGNING_KEY",
        "WEED_JWT_FILER_SIGNING_KEY",
        "WEED_JWT_FILER_SIGNING_READ_KEY",
    }
    assert all(len(key) == 64 for key in keys.values())


def test_the_role_of_bundled_storage_trusts_the_service_alone() -> None:
    secret = of_kind("Secret", "trial")["s3-bundled"]["stringData"]
    (role,) = json.loads(secret["iam.json"])["roles"]
    (statement,) = role["trustPolicy"]["Statement"]
    assert statement["Principal"] == {"AWS": ["arn:aws:iam::000000000000:user/admin"]}
