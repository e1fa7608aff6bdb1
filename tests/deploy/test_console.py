"""The console of the chart: its pods, who may call it and whom it calls, its keys, and its sign-in."""

import base64
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import kubernetes_validate
import pytest
import yaml
from cryptography.fernet import Fernet
from spawnmesh_console.settings import ConsoleSettings
from spawnmesh_devstack.forks import ForkServer
from spawnmesh_devstack.ports import free_ports

from tests.support.deploy.api_server import serving_api
from tests.support.deploy.console_values import ON, console_with, over, pod_of, secrets_of, told
from tests.support.deploy.environment import SERVING, forked, until, variables
from tests.support.deploy.policies import GRPC, allowed_in, allowed_out, component_of, ports_of
from tests.support.deploy.rendering import CI, ROOT, Object, containers, helm, objects, of_kind, pods, refusal
from tests.support.deploy.settings_schema import schema
from tests.support.runtime.authority import Authority, Mounted

FOREIGN = {"Certificate", "ServiceMonitor", "PrometheusRule", "HTTPRoute"}
SERVICES = {"session", "attachment-blob", "transcript", "model-router", "hook"}
HTTP = 8080
SCHEMA = schema()["properties"]["console"]


def policy_of(*values: str) -> Object:
    spec: Object = of_kind("NetworkPolicy", *values)["console"]["spec"]
    return spec


@pytest.mark.parametrize("values", ["minimal", "trial", "production"])
def test_nothing_of_it_is_there_unless_it_is_enabled(values: str) -> None:
    for one in objects(values):
        assert "console" not in json.dumps(one["metadata"]), one["kind"]
        if one["kind"] == "NetworkPolicy":
            assert "console" not in json.dumps(one), one["metadata"]["name"]


@pytest.mark.parametrize("values", ["minimal", "trial", "production"])
def test_nothing_of_the_rest_changes_when_it_is_enabled(tmp_path: Path, values: str) -> None:
    """Except that the services let it in. The identity provider is one of theirs, too."""
    tokens = yaml.safe_load(Path(ON).read_text())["tokens"]
    jwks = yaml.safe_load(Path(ON).read_text())["networkPolicy"]
    before = {
        f"{one['kind']}/{one['metadata']['name']}": one
        for one in objects(values, over(tmp_path, tokens=tokens, networkPolicy=jwks))
    }
    after = {f"{one['kind']}/{one['metadata']['name']}": one for one in objects(values, ON)}
    assert all(name.partition("/")[2].startswith("console") for name in set(after) - set(before))
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {f"NetworkPolicy/{service}" for service in SERVICES}


@pytest.mark.parametrize("version", ["1.29", "1.37"])
@pytest.mark.parametrize("values", ["minimal", "trial", "production"])
def test_kubernetes_takes_its_objects(values: str, version: str) -> None:
    mine = [one for one in objects(values, ON) if one["metadata"]["name"].startswith("console")]
    kinds = {one["kind"] for one in mine}
    wanted = {"ServiceAccount", "Service", "Secret", "Deployment", "NetworkPolicy", "PodDisruptionBudget"}
    assert wanted | {"HTTPRoute"} <= kinds
    assert ("Certificate" in kinds) == (values != "trial")
    for one in mine:
        if one["kind"] not in FOREIGN:
            kubernetes_validate.validate(one, version, strict=True)


def test_helm_lint_finds_nothing() -> None:
    done = helm("--lint", str(CI / "production.yaml"), ON)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("values", ["minimal", "trial", "production"])
def test_pod_is_restricted_and_has_no_key_of_the_mesh(values: str) -> None:
    pod = pod_of(values, ON)
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = containers(pod)
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"]["limits"]["memory"]
    assert container["args"] == ["spawnmesh_console", "serve"]
    given = secrets_of(values, ON)
    assert set(given) - {"console-tls"} == {"console-cookie-keys", "console-oidc", "tempo-reader"}
    names = set(told(values, ON))
    assert not names & {"SIGNING_KEY_FILE", "JWKS_FILE", "JWKS_URL", "DATABASE_URL", "S3_ENDPOINT"}
    assert not [name for name in names if name.startswith("PG")]
    # No secret is in a variable.
    assert all("valueFrom" not in one or "fieldRef" in one["valueFrom"] for one in container["env"])


def test_files_that_the_process_reads_are_mounted() -> None:
    pod, said = pod_of("production", ON), told("production", ON)
    (container,) = pod["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert set(mounts) <= {volume["name"] for volume in pod["volumes"]}
    assert said["COOKIE_KEY_FILE"] == f"{mounts['console']}/cookie-keys"
    assert said["SIGN_IN_CLIENT_SECRET_FILE"] == f"{mounts['console']}/client-secret"
    assert said["TLS_CERT_FILE"] == f"{mounts['tls']}/tls.crt"
    assert secrets_of("production", ON)["console-oidc"] == {"client-secret": "client-secret"}
    assert secrets_of("production", ON)["console-cookie-keys"] == {"cookie-keys": "cookie-keys"}


def test_it_calls_the_services_and_is_called_by_those_that_are_named() -> None:
    for edges in (allowed_out("production", ON), allowed_in("production", ON)):
        assert {called for caller, called in edges if caller == "console"} == SERVICES
        assert {caller for caller, called in edges if called == "console"} == set()
    policy = policy_of("production", ON)
    callers = {
        tuple(sorted(ports_of(rule))): [
            peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"] for peer in rule["from"]
        ]
        for rule in policy["ingress"]
    }
    assert callers == {(HTTP,): ["ingress"], (9464,): ["observability"]}
    reached = [(sorted(ports_of(rule)), rule["to"]) for rule in policy["egress"]]
    assert [ports for ports, to in reached if not component_of(to[0])] == [[53], [4317], [443], [3200]]
    assert reached[-2] == ([443], [{"ipBlock": {"cidr": "203.0.113.0/24"}}]), "the issuer"
    observability = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "observability"}}}
    assert reached[-1] == ([3200], [observability]), "the traces"
    assert {tuple(ports) for ports, to in reached if component_of(to[0])} == {(GRPC,)}


def test_it_reaches_nothing_outside_without_an_identity_provider_and_traces(tmp_path: Path) -> None:
    without = over(tmp_path, console={"oidc": {"issuer": ""}, "traces": {"url": ""}})
    rules = policy_of("minimal", ON, without)["egress"]
    assert {port for rule in rules for port in ports_of(rule)} == {53, GRPC}
    assert not {"console-oidc", "tempo-reader"} & set(secrets_of("minimal", ON, without))
    assert not [name for name in told("minimal", ON, without) if name.startswith(("SIGN_IN", "TRACES"))]


def test_nobody_calls_it_if_nobody_is_named(tmp_path: Path) -> None:
    policy = policy_of("minimal", ON, over(tmp_path, console={"from": [], "parentRefs": []}))
    assert not policy["ingress"]


def test_gateway_of_the_cluster_sends_browsers_here(tmp_path: Path) -> None:
    route = of_kind("HTTPRoute", "production", ON)["console"]["spec"]
    assert route["parentRefs"] == [{"name": "public", "namespace": "ingress"}]
    assert route["hostnames"] == ["console.example.com"]
    (rule,) = route["rules"]
    assert rule["backendRefs"] == [{"name": "console", "port": 80}]
    assert rule["timeouts"] == {"request": "0s"}
    service = of_kind("Service", "production", ON)["console"]["spec"]
    (port,) = service["ports"]
    (container,) = pod_of("production", ON)["containers"]
    named = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert (port["port"], named[port["targetPort"]]) == (80, HTTP)
    assert service["selector"].items() <= (
        of_kind("Deployment", "production", ON)["console"]["spec"]["template"]["metadata"]["labels"].items()
    )
    assert "HTTPRoute" not in {
        one["kind"] for one in objects("minimal", ON, over(tmp_path, console={"parentRefs": []}))
    }


def test_certificate_is_one_to_show_to_the_services() -> None:
    certificate = of_kind("Certificate", "production", ON)["console"]["spec"]
    assert "client auth" in certificate["usages"]
    assert certificate["secretName"] in secrets_of("production", ON)


def test_pods_are_probed_and_replaced_as_those_of_the_services() -> None:
    deployment = of_kind("Deployment", "production", ON)["console"]["spec"]
    assert deployment["replicas"] == 2
    assert deployment["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    pod = deployment["template"]["spec"]
    (container,) = pod["containers"]
    assert container["readinessProbe"]["grpc"] == {"port": 50052}
    assert container["livenessProbe"]["grpc"] == {"port": 50052, "service": "live"}
    pause = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    drain = float(told("production", ON)["DRAIN_GRACE_SECONDS"])
    assert pod["terminationGracePeriodSeconds"] >= pause + drain + 10
    assert of_kind("PodDisruptionBudget", "production", ON)["console"]["spec"]["maxUnavailable"] == 1


def test_its_number_follows_the_load_where_that_is_wanted(tmp_path: Path) -> None:
    scaled = over(tmp_path, console={"autoscaling": {"enabled": True}})
    scaler = of_kind("HorizontalPodAutoscaler", "minimal", ON, scaled)["console"]["spec"]
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (2, 6)
    assert "replicas" not in of_kind("Deployment", "minimal", ON, scaled)["console"]["spec"]
    said = refusal(tmp_path, console_with(autoscaling={"enabled": True, "minReplicas": 9}))
    assert "console.autoscaling.minReplicas is 9, above maxReplicas, which is 6" in said


def test_image_is_one_that_can_be_built_and_is_needed_only_where_it_runs(tmp_path: Path) -> None:
    (image,) = (
        one["image"]
        for name, pod in pods("minimal", ON)
        if name == "Deployment/console"
        for one in containers(pod)
    )
    assert image == f"spawnmesh/console@sha256:{64 * '9'}"
    assert (ROOT / "services/console/spawnmesh_console/__main__.py").exists()
    minimal = yaml.safe_load((CI / "minimal.yaml").read_text())
    del minimal["image"]["digests"]["console"]
    without = over(tmp_path, **minimal)
    assert helm(without).returncode == 0
    assert "image.digests has no console" in helm(without, ON).stderr


# --- cookie keys


@pytest.fixture
def cluster() -> Iterator[tuple[str, dict[str, Object]]]:
    secrets: dict[str, Object] = {}
    with serving_api(secrets) as api:
        yield api, secrets


def installed(api: str, *values: str) -> dict[str, Object]:
    """Return the objects that an installation into the cluster would make, as `Kind/name`."""
    command = [sys.executable, "-m", "tests.support.deploy.dry_install", api, *values]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    made = [one for one in yaml.load_all(done.stdout, yaml.CSafeLoader) if one]
    return {f"{one['kind']}/{one['metadata']['name']}": one for one in made}


def test_cookie_key_is_made_once_and_upgrades_keep_it(
    tmp_path: Path, cluster: tuple[str, dict[str, Object]]
) -> None:
    api, secrets = cluster
    values = [
        str(CI / "trial.yaml"),
        over(tmp_path, console={"enabled": True, "publicUrl": "http://localhost:8700"}),
    ]
    first, again = (installed(api, *values)["Secret/console-cookie-keys"] for _ in range(2))
    assert first["data"] != again["data"], "each cluster has a key of its own"
    (line,) = base64.b64decode(first["data"]["cookie-keys"]).decode().split()
    Fernet(line)
    owner = {"meta.helm.sh/release-name": "mesh", "meta.helm.sh/release-namespace": "mesh"}
    first["metadata"]["annotations"] = owner
    secrets["console-cookie-keys"] = first
    assert installed(api, *values)["Secret/console-cookie-keys"]["data"] == first["data"]


def test_key_that_a_secret_of_the_operator_has_is_taken(tmp_path: Path) -> None:
    named = over(tmp_path, console={"cookieKeySecret": "my-cookie-keys"})
    assert secrets_of("minimal", ON, named)["my-cookie-keys"] == {"cookie-keys": "cookie-keys"}
    assert not [name for name in of_kind("Secret", "minimal", ON, named) if name.startswith("console")]


# --- values


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"publicUrl": ""}, "/console/publicUrl"),
        ({"publicUrl": "http://console.example.com"}, "/console/publicUrl"),
        ({"publicUrl": "http://localhost:8080"}, "console.publicUrl has to start with https://"),
        ({"publicUrl": "https://console.example.com/console"}, "/console/publicUrl"),
        ({"publicUrl": "https://a@console.example.com"}, "/console/publicUrl"),
        ({"replicas": 0}, "/console/replicas"),
        ({"host": "x"}, "host"),
        ({"cookieKeySecret": "Not_A_Name"}, "/console/cookieKeySecret"),
        ({"oidc": {"clientId": ""}}, "/console/oidc/clientId"),
        ({"oidc": {"issuer": "http://login.example.com"}}, "/console/oidc/issuer"),
        ({"oidc": {"issuer": "https://other.example.com"}}, "https://other.example.com is not among tokens.oidcIssuers"),
        ({"oidc": {"token": "refresh"}}, "/console/oidc/token"),
        ({"oidc": {"token": "id"}}, "has the audience spawnmesh-console"),
        ({"oidc": {"scopes": ["profile"]}}, "/console/oidc/scopes"),
        ({"oidc": {"scopes": ["openid", "two words"]}}, "/console/oidc/scopes/1"),
        ({"oidc": {"parameters": {"state": "x"}}}, "invalid propertyName 'state'"),
        ({"oidc": {"clientSecret": "s3cret"}}, "clientSecret"),
        ({"settings": {"PUBLIC_URL": "https://x"}}, "PUBLIC_URL"),
        ({"settings": {"SIGN_IN_TOKEN": "id"}}, "SIGN_IN_TOKEN"),
        ({"settings": {"COOKIE_KEY_FILE": "/x"}}, "COOKIE_KEY_FILE"),
        ({"settings": {"MAX_UPLOAD_BYTES": 1}}, "/console/settings/MAX_UPLOAD_BYTES"),
        ({"pod": {"extraEnv": [{"name": "CONSOLE_LOG_LEVEL", "value": "debug"}]}}, "/console/pod/extraEnv/0/name"),
        ({"from": [{}]}, "/console/from"),
        ({"parentRefs": [{"namespace": "ingress"}]}, "/console/parentRefs/0"),
    ],
    ids=lambda value: value if isinstance(value, str) else str(value)[:50],
)  # fmt: skip
def test_values_that_cannot_work_are_refused(tmp_path: Path, changes: Object, named: str) -> None:
    assert named in refusal(tmp_path, console_with(**changes))


def test_issuer_that_no_policy_leads_to_is_refused(tmp_path: Path) -> None:
    values = console_with(oidc={"issuer": "https://login.example.com:8443"})
    values["tokens"]["oidcIssuers"][0]["issuer"] = "https://login.example.com:8443"
    said = refusal(tmp_path, values)
    assert (
        "console.oidc.issuer is on port 8443, and networkPolicy.jwks.ports lets through [443] alone" in said
    )


def test_plain_http_is_for_a_trial_on_ones_own_machine(tmp_path: Path) -> None:
    local = over(tmp_path, console={"enabled": True, "publicUrl": "http://localhost:8700"})
    assert told("trial", local)["PUBLIC_URL"] == "http://localhost:8700"
    notes = helm("--notes", str(CI / "trial.yaml"), local).stdout
    assert "port-forward service/console 8700:80" in notes
    assert "/console/publicUrl" in refusal(
        tmp_path, {"console": {"enabled": True, "publicUrl": "http://x"}}, "trial"
    )


def test_id_tokens_are_taken_where_their_audience_is_that_of_the_issuer(tmp_path: Path) -> None:
    values = console_with(oidc={"token": "id"})
    values["tokens"]["oidcIssuers"][0]["audience"] = "spawnmesh-console"
    assert told("minimal", over(tmp_path, **values))["SIGN_IN_TOKEN"] == "id"


def test_settings_are_those_that_the_process_reads(tmp_path: Path) -> None:
    assert SCHEMA["properties"]["settings"] == {"$ref": "#/$defs/settingsOf-console"}
    assert SCHEMA["properties"]["oidc"]["properties"]["token"]["enum"] == ["access", "id"]
    larger = over(tmp_path, console={"settings": {"MAX_UPLOAD_BYTES": 134217728, "LOG_LEVEL": "debug"}})
    said = told("minimal", ON, larger)
    assert (said["MAX_UPLOAD_BYTES"], said["LOG_LEVEL"]) == ("134217728", "debug")
    fields = {name.upper() for name in ConsoleSettings.model_fields}
    assert set(said) - {"SECRETS_DIR", "OTEL_RESOURCE_ATTRIBUTES"} <= fields


def test_notes_say_where_the_console_is_and_what_the_provider_has_to_know() -> None:
    notes = helm("--notes", str(CI / "production.yaml"), ON).stdout
    assert "https://console.example.com/sign-in/oidc/callback" in notes
    assert "console" not in helm("--notes", str(CI / "production.yaml")).stdout


async def test_process_starts_with_exactly_what_the_chart_gives_it(
    fork_server: ForkServer, tmp_path: Path
) -> None:
    """The services are not there: the console serves, and says so on its pages."""
    (container,) = pod_of("minimal", ON)["containers"]
    port, health_port = free_ports(2)
    root = tmp_path / "root"
    env = {
        name: value.replace("/run/", f"{root}/run/") if value.startswith("/run/") else value
        for name, value in variables(container).items()
    }
    env |= {
        "CONSOLE_LISTEN": f"127.0.0.1:{port}",
        "CONSOLE_HEALTH_LISTEN": f"127.0.0.1:{health_port}",
        "CONSOLE_SPAN_JOURNAL_DIR": str(tmp_path / "spans"),
        "PATH": "/usr/bin:/bin",
        "OTEL_RESOURCE_ATTRIBUTES": "k8s.pod.name=pod",
    }
    (root / "run/secrets/spawnmesh").mkdir(parents=True)
    (root / "run/secrets/console").mkdir()
    made = of_kind("Secret", "minimal", ON)["console-cookie-keys"]["data"]["cookie-keys"]
    (root / "run/secrets/console/cookie-keys").write_bytes(base64.b64decode(made))
    (root / "run/secrets/console/client-secret").write_text("secret\n")
    (root / "run/secrets/console/traces-headers").write_text("X-Scope-OrgID: mesh\n")
    authority = Authority("mesh")
    Mounted(root / "run/secrets/tls").put(authority.leaf("console"), authority)
    async with forked(fork_server, container, env) as process:
        await until(health_port, SERVING, process)
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as browser:
            page = await browser.get("/sign-in", headers={"host": "console.example.com"})
            assert (page.status_code, "Sign in at login.example.com" in page.text) == (200, True)
            assert re.search(r"max-age=\d+", page.headers["strict-transport-security"])
            assert (await browser.get("/sign-in")).status_code == 421, "it is served under its own name alone"
