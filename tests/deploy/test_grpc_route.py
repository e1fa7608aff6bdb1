"""A Gateway of the cluster that sends calls of gRPC straight to the services, by their contracts."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from spawnmesh_calls.service_header import SERVICE_HEADER
from spawnmesh_gateway.rpcs import gateway_rpcs
from spawnmesh_gateway.settings import SERVICES

from tests.support.deploy.grpc_services import FILE, content
from tests.support.deploy.policies import ports_of
from tests.support.deploy.rendering import CI, VALUE_SETS, Object, of_kind, refusal

ON = ("production", "grpc-route")
INGRESS = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress"}}}


def rules() -> list[Object]:
    found: list[Object] = of_kind("GRPCRoute", *ON)["services"]["spec"]["rules"]
    return found


def test_contracts_in_the_chart_are_those_of_this_release() -> None:
    assert FILE.read_text() == content(), "run: python -m tests.support.deploy.grpc_services"


@pytest.mark.parametrize("values", VALUE_SETS)
def test_nothing_of_it_is_there_unless_it_is_asked_for(values: str) -> None:
    assert not of_kind("GRPCRoute", values)
    assert not of_kind("BackendTLSPolicy", values)


def test_each_rpc_for_callers_outside_is_sent_to_its_service_and_no_other() -> None:
    sent: dict[tuple[str, str], set[str]] = {}
    for rule in rules():
        [backend] = rule["backendRefs"]
        for match in rule["matches"]:
            named = {header["name"]: header["value"] for header in match.get("headers", ())}
            key = match["method"]["service"], named.get(SERVICE_HEADER, "")
            sent.setdefault(key, set()).add(backend["name"])
    wanted = {
        (rpc.method.containing_service.full_name, service if rpc.is_shared else ""): {service}
        for rpc in gateway_rpcs()
        for service in rpc.services
    }
    assert sent == wanted


def test_route_is_within_the_bounds_of_the_gateway_api() -> None:
    """Its first releases take eight matches in a rule."""
    assert len(rules()) <= 16
    assert max(len(rule["matches"]) for rule in rules()) <= 8
    assert sum(len(rule["matches"]) for rule in rules()) <= 128


def test_route_leads_to_ports_that_there_are() -> None:
    services = of_kind("Service", *ON)
    for rule in rules():
        [backend] = rule["backendRefs"]
        assert backend["port"] in {port["port"] for port in services[backend["name"]]["spec"]["ports"]}


def test_gateway_verifies_each_service_by_a_name_of_its_certificate() -> None:
    certificates = of_kind("Certificate", *ON)
    policies = of_kind("BackendTLSPolicy", *ON)
    assert set(policies) == set(SERVICES)
    for service, policy in policies.items():
        assert policy["spec"]["targetRefs"] == [{"group": "", "kind": "Service", "name": service}]
        checked = policy["spec"]["validation"]
        assert checked["hostname"] in certificates[service]["spec"]["dnsNames"]
        assert checked["caCertificateRefs"] == [{"group": "", "kind": "ConfigMap", "name": "mesh-authority"}]


def test_pods_of_the_gateway_reach_the_services_alone(tmp_path: Path) -> None:
    def open_to_ingress(*values: str) -> set[str]:
        return {
            name
            for name, policy in of_kind("NetworkPolicy", *values).items()
            for rule in policy["spec"].get("ingress") or ()
            if INGRESS in rule["from"] and ports_of(rule) == {50051}
        }

    assert open_to_ingress(*ON) == set(SERVICES)
    off = tmp_path / "off.yaml"
    off.write_text("grpcRoute: {parentRefs: []}")
    assert open_to_ingress(*ON, str(off)) == set()


def test_calls_of_http_take_the_envoy_of_the_chart() -> None:
    route = of_kind("HTTPRoute", *ON)["gateway"]["spec"]
    assert route["hostnames"] == ["mesh.example.com"]
    assert [rule["backendRefs"] for rule in route["rules"]] == [[{"name": "gateway", "port": 80}]]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"hostnames": []}, "grpcRoute.hostnames is empty"),
        ({"hostnames": ["mesh.example.com"]}, "mesh.example.com is in grpcRoute.hostnames and in gateway.hostnames"),
        ({"from": []}, "grpcRoute.from is empty, and grpcRoute.parentRefs needs the peers"),
        ({"parentRefs": [{"namespace": "ingress"}]}, "/grpcRoute/parentRefs/0"),
        ({"hostnames": ["https://a"]}, "/grpcRoute/hostnames/0"),
        ({"caConfigMap": "A b"}, "/grpcRoute/caConfigMap"),
        ({"hosts": []}, "hosts"),
    ],
)  # fmt: skip
def test_values_that_cannot_work_are_refused(tmp_path: Path, changes: Object, named: str) -> None:
    values: Any = yaml.safe_load((CI / "grpc-route.yaml").read_text())
    values["grpcRoute"] |= changes
    assert named in refusal(tmp_path, values)


def test_authority_without_tls_is_refused(tmp_path: Path) -> None:
    values: Any = yaml.safe_load((CI / "grpc-route.yaml").read_text())
    assert "grpcRoute.caConfigMap has no use" in refusal(tmp_path, {**values, "tls": {"mode": "none"}})
