"""The gateway of the chart: its pods, who may call it, and the configuration that it starts with."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from spawnmesh_devstack.gateway import envoy_program
from spawnmesh_gateway.settings import SERVICES

from tests.support.deploy.policies import allowed_in, allowed_out, component_of, ports_of
from tests.support.deploy.rendering import CI, Object, objects, of_kind, refusal
from tests.support.runtime.authority import Authority, Mounted

ON = str(CI / "gateway.yaml")
FOREIGN = {"Certificate", "ServiceMonitor", "PrometheusRule", "HTTPRoute"}
CALLS = 8443


def pod_of(*values: str) -> Object:
    spec: Object = of_kind("Deployment", *values)["gateway"]["spec"]["template"]["spec"]
    return spec


def over(tmp_path: Path, **gateway: Any) -> str:
    """Return a file of values over those of the gateway."""
    file = tmp_path / "over.yaml"
    file.write_text(yaml.safe_dump({"gateway": gateway}))
    return str(file)


@pytest.mark.parametrize("values", ["minimal", "trial", "production"])
def test_nothing_of_it_is_there_unless_it_is_enabled(values: str) -> None:
    assert "gateway" not in {one["metadata"]["name"] for one in objects(values)}


@pytest.mark.parametrize("values", ["minimal", "trial", "production"])
def test_kubernetes_takes_its_objects_and_its_pods_are_restricted(values: str) -> None:
    mine = [one for one in objects(values, ON) if one["metadata"]["name"] == "gateway"]
    kinds = {one["kind"] for one in mine}
    assert {"ServiceAccount", "Service", "Deployment", "NetworkPolicy", "PodDisruptionBudget"} <= kinds
    for one in mine:
        if one["kind"] not in FOREIGN:
            kubernetes_validate.validate(one, "1.29", strict=True)
    pod = pod_of(values, ON)
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    for container in (*pod["initContainers"], *pod["containers"]):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["limits"]["memory"]
        assert "@sha256:" in container["image"] or values == "trial"


def test_it_calls_the_services_and_is_called_by_those_that_are_named() -> None:
    assert {called for caller, called in allowed_out("production", ON) if caller == "gateway"} == set(
        SERVICES
    )
    assert {called for caller, called in allowed_in("production", ON) if caller == "gateway"} == set(SERVICES)
    policy = of_kind("NetworkPolicy", "production", ON)["gateway"]["spec"]
    callers = [rule["from"] for rule in policy["ingress"] if CALLS in ports_of(rule)]
    assert callers == [[{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "agents"}}}]]
    assert all(component_of(peer) != "gateway" for rule in policy["ingress"] for peer in rule["from"])
    assert {port for rule in policy["egress"] for port in ports_of(rule)} == {53, 50051}


def test_nobody_calls_it_if_nobody_is_named(tmp_path: Path) -> None:
    policy = of_kind("NetworkPolicy", "minimal", ON, over(tmp_path, **{"from": []}))["gateway"]["spec"]
    assert policy["ingress"] is None or policy["ingress"] == []


def configured(pod: Object, folder: Path) -> dict[str, Any]:
    """Run the init container here, check the result with Envoy, and return the configuration."""
    (configure,) = pod["initContainers"]
    authority, secrets = Authority("mesh"), folder / "secrets"
    secrets.mkdir(parents=True)
    for name in ("tls", "clients-tls"):
        Mounted(secrets / name).put(authority.leaf(name), authority)
    here = {"/run/secrets": str(secrets), "/etc/envoy": str(folder / "envoy")}
    module, *arguments = configure["args"]
    for there, path in here.items():
        arguments = [argument.replace(there, path) for argument in arguments]
    subprocess.run([sys.executable, "-m", module, *arguments], check=True)
    file = folder / "envoy" / "envoy.json"
    checked = subprocess.run(
        [envoy_program(), "-c", file, "--mode", "validate"], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stderr
    content: dict[str, Any] = json.loads(file.read_text())
    return content


@pytest.mark.parametrize("values", ["trial", "production"])
def test_envoy_takes_the_configuration_that_the_pod_writes(tmp_path: Path, values: str) -> None:
    content = configured(pod_of(values, ON), tmp_path)
    clusters = {one["name"]: one for one in content["static_resources"]["clusters"]}
    for service in SERVICES:
        ((endpoint,),) = [one["lb_endpoints"] for one in clusters[service]["load_assignment"]["endpoints"]]
        address = endpoint["endpoint"]["address"]["socket_address"]
        assert address == {"address": f"{service}.mesh.svc.cluster.local", "port_value": 50051}
        assert ("transport_socket" in clusters[service]) == (values == "production")
    listeners = {one["name"]: one for one in content["static_resources"]["listeners"]}
    assert listeners["calls"]["address"]["socket_address"]["port_value"] == CALLS
    (chain,) = listeners["calls"]["filter_chains"]
    assert ("transport_socket" in chain) == (values == "production")
    assert ("metrics" in listeners) == (values == "production")
    assert content["admin"]["address"]["pipe"]["mode"] == 0o600


def test_every_file_of_the_configuration_is_in_a_volume_of_the_pod() -> None:
    pod = pod_of("production", ON)
    volumes = {volume["name"] for volume in pod["volumes"]}
    (gateway,) = pod["containers"]
    mounts = {mount["mountPath"]: mount["name"] for mount in gateway["volumeMounts"]}
    assert set(mounts.values()) <= volumes
    assert {"/etc/envoy", "/tmp", "/run/secrets/tls"} <= set(mounts)


def test_certificate_has_the_names_by_which_clients_call() -> None:
    certificate = of_kind("Certificate", "production", ON)["gateway"]["spec"]
    assert {"gateway.mesh.svc.cluster.local", "mesh.example.com"} <= set(certificate["dnsNames"])
    assert certificate["secretName"] == "gateway-tls"


def test_clients_may_see_another_certificate_than_the_services(tmp_path: Path) -> None:
    pod = pod_of("production", ON, over(tmp_path, tlsSecret="public-tls"))
    assert {"name": "clients-tls", "secret": {"secretName": "public-tls", "defaultMode": 0o440}} in pod[
        "volumes"
    ]
    (configure,) = pod["initContainers"]
    assert "--downstream-tls=/run/secrets/clients-tls" in configure["args"]
    assert "--upstream-tls=/run/secrets/tls" in configure["args"]


def test_gateway_of_the_cluster_ends_tls_and_sends_everything_here(tmp_path: Path) -> None:
    values = ("production", ON, over(tmp_path, parentRefs=[{"name": "public", "namespace": "ingress"}]))
    route = of_kind("HTTPRoute", *values)["gateway"]["spec"]
    assert route["parentRefs"] == [{"name": "public", "namespace": "ingress"}]
    assert route["hostnames"] == ["mesh.example.com"]
    (rule,) = route["rules"]
    assert rule["backendRefs"] == [{"name": "gateway", "port": 80}]
    (port,) = of_kind("Service", *values)["gateway"]["spec"]["ports"]
    assert (port["port"], port["appProtocol"]) == (80, "kubernetes.io/h2c")
    (configure,) = pod_of(*values)["initContainers"]
    assert not any("--downstream-tls" in argument for argument in configure["args"])
    assert "--upstream-tls=/run/secrets/tls" in configure["args"]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"image": {"digest": ""}}, "gateway.image has no digest: name that of docker.io/envoyproxy/envoy"),
        ({"image": {"tag": "latest"}}, "/gateway/image/tag"),
        ({"replicas": 0}, "/gateway/replicas"),
        ({"allowedOrigins": ["*"]}, "/gateway/allowedOrigins/0"),
        ({"hostnames": ["https://mesh.example.com"]}, "/gateway/hostnames/0"),
        ({"parentRefs": [{"namespace": "ingress"}]}, "/gateway/parentRefs/0"),
        ({"serviceType": "ExternalName"}, "/gateway/serviceType"),
        ({"hosts": []}, "hosts"),
    ],
    ids=["no-digest", "latest", "no-replica", "any-origin", "url", "no-parent", "service-type", "unknown"],
)
def test_values_that_cannot_work_are_refused(tmp_path: Path, changes: Object, named: str) -> None:
    values: Object = yaml.safe_load(Path(ON).read_text())
    for key, value in changes.items():
        if isinstance(value, dict):
            values["gateway"][key] = {**values["gateway"].get(key, {}), **value}
        else:
            values["gateway"][key] = value
    assert named in refusal(tmp_path, values)
