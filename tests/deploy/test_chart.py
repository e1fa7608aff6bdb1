"""Kubernetes accepts the rendered chart, and two renderings are equal."""

import re
import subprocess
from collections.abc import Iterator
from functools import cache

import kubernetes_validate.utils
import pytest
import yaml

from tests.support.deploy.foreign_kinds import FOREIGN, OPEN
from tests.support.deploy.rendering import CI, ROOT, VALUE_SETS, VARIANTS, helm, objects, of_kind, text_of

OLDEST, NEWEST = "1.29", "1.37"


@pytest.mark.parametrize("values", VARIANTS, ids="+".join)
def test_helm_lint_finds_nothing(values: tuple[str, ...]) -> None:
    done = helm("--lint", *(str(CI / f"{name}.yaml") for name in values))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture(scope="module")
def _schemas_read_once() -> Iterator[None]:
    """Keep the schemas in memory: the library parses megabytes again for each object."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            kubernetes_validate.utils, "schema_contents", cache(kubernetes_validate.utils.schema_contents)
        )
        yield


@pytest.mark.usefixtures("_schemas_read_once")
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("values", VARIANTS, ids="+".join)
def test_every_object_is_one_that_kubernetes_takes(values: tuple[str, ...], version: str) -> None:
    checked = 0
    for one in objects(*values):
        if one["kind"] not in FOREIGN:
            kubernetes_validate.validate(one, version, strict=True)
            checked += 1
    assert checked >= 20


def test_objects_of_other_projects_have_fields_that_there_are() -> None:
    """An API server drops an unknown field, and the schemas of these projects admit it."""
    for kind, known in FOREIGN.items():
        found = [one for values in VARIANTS for one in of_kind(kind, *values).values()]
        assert {field for one in found for field in _fields(one["spec"])} == known, kind


def test_every_kind_is_one_of_kubernetes_or_known() -> None:
    own = re.compile(r"(v1|(apps|batch|autoscaling|policy)/v\d|networking\.k8s\.io/v1)")
    rendered = [one for values in VARIANTS for one in objects(*values)]
    assert {one["kind"] for one in rendered if not own.fullmatch(one["apiVersion"])} == set(FOREIGN)


def _fields(value: object, path: str = "") -> Iterator[str]:
    """Yield the path of each value: the names of the fields that lead to it."""
    if isinstance(value, dict) and path not in OPEN:
        for name, inner in value.items():
            yield from _fields(inner, f"{path}.{name}".lstrip("."))
    elif isinstance(value, list) and any(isinstance(inner, dict) for inner in value):
        for inner in value:
            yield from _fields(inner, path)
    else:
        yield path


def test_monitor_finds_the_metrics_of_every_workload() -> None:
    (monitor,) = of_kind("ServiceMonitor", "production").values()
    (endpoint,) = monitor["spec"]["endpoints"]
    service = of_kind("Service", "production")["metrics"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert {port["name"]: port["targetPort"] for port in service["spec"]["ports"]} == {
        endpoint["port"]: "metrics"
    }
    for name, deployment in of_kind("Deployment", "production").items():
        template = deployment["spec"]["template"]
        assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items(), name
        assert {"name": "metrics", "containerPort": 9464} in template["spec"]["containers"][0]["ports"], name


def test_oldest_version_checked_is_the_oldest_that_the_chart_admits() -> None:
    chart = yaml.safe_load((ROOT / "deploy/helm/spawnmesh/Chart.yaml").read_text())
    assert chart["kubeVersion"] == f">={OLDEST}.0-0"


@pytest.mark.parametrize("values", VALUE_SETS)
def test_rendering_twice_gives_the_same_bytes(values: str) -> None:
    assert text_of(values) == text_of(values)


def test_make_prints_the_production_set() -> None:
    command = ["make", "--silent", "--assume-old=.venv/.ready", "chart"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, text_of("production")), done.stderr


@pytest.mark.parametrize("values", VALUE_SETS)
def test_no_two_objects_have_one_name(values: str) -> None:
    names = [(one["kind"], one["metadata"]["name"]) for one in objects(values)]
    assert len(names) == len(set(names))
    assert {one["metadata"]["namespace"] for one in objects(values)} == {"mesh"}


@pytest.mark.parametrize("values", VALUE_SETS)
def test_selectors_have_nothing_that_an_upgrade_changes(values: str) -> None:
    fixed = {"app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/component"}
    workloads = {**of_kind("Deployment", values), **of_kind("StatefulSet", values)}
    assert len(workloads) >= 8
    for workload in workloads.values():
        labels = workload["spec"]["selector"]["matchLabels"]
        assert set(labels) == fixed
        assert labels.items() <= workload["spec"]["template"]["metadata"]["labels"].items()


@pytest.mark.parametrize("values", VALUE_SETS)
def test_every_service_finds_the_pods_of_one_workload(values: str) -> None:
    workloads = {**of_kind("Deployment", values), **of_kind("StatefulSet", values)}
    for name, service in of_kind("Service", values).items():
        if name == "metrics":  # it serves all workloads
            continue
        labels = workloads[name]["spec"]["template"]["metadata"]["labels"]
        assert service["spec"]["selector"].items() <= labels.items()
    for name in ("session", "attachment-blob", "transcript", "model-router", "hook"):
        assert of_kind("Service", values)[name]["spec"]["clusterIP"] == "None"


@pytest.mark.parametrize("values", VALUE_SETS)
def test_no_secret_stands_in_a_configmap_or_a_variable(values: str) -> None:
    secret = re.compile(r"password|secret[_-]?key|BEGIN .*PRIVATE|postgres(ql)?://|sk-[a-z]", re.IGNORECASE)
    for one in objects(values):
        if one["kind"] == "Secret":
            assert values == "trial"
            continue
        for text in _texts(one.get("data" if one["kind"] == "ConfigMap" else "spec", {})):
            # The names of files and keys may be words for secrets.
            assert not secret.search(text) or re.fullmatch(r"[\w./-]+", text), text


def test_production_has_what_keeps_it_up() -> None:
    deployments = of_kind("Deployment", "production")
    budgets = of_kind("PodDisruptionBudget", "production")
    assert set(budgets) == set(deployments)
    for name, budget in budgets.items():
        assert budget["spec"]["selector"] == deployments[name]["spec"]["selector"], name
        assert budget["spec"]["maxUnavailable"] == 1, name
        assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow", name
    for name, scaler in of_kind("HorizontalPodAutoscaler", "production").items():
        assert scaler["spec"]["scaleTargetRef"] == {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "name": name,
        }
    assert set(of_kind("HorizontalPodAutoscaler", "production")) >= {"session", "transcript", "runner"}
    for name, deployment in deployments.items():
        assert deployment["spec"]["template"]["spec"]["topologySpreadConstraints"], name
        scaled = name in of_kind("HorizontalPodAutoscaler", "production")
        assert ("replicas" in deployment["spec"]) is not scaled, "two would set the replicas in turn"
    assert set(of_kind("ServiceMonitor", "production")) == {"spawnmesh"}
    assert set(of_kind("Certificate", "production")) >= {"session", "runner", "client"}


def test_certificates_are_good_for_the_names_that_are_called() -> None:
    names = {
        name for one in of_kind("Certificate", "production").values() for name in one["spec"]["dnsNames"]
    }
    called = set(re.findall(r"dns:///([\w.-]+):50051", text_of("production")))
    assert len(called) == 5
    assert called <= names


def test_certificates_of_what_is_called_are_good_for_a_forwarded_port() -> None:
    certificates = of_kind("Certificate", "production")
    for name in of_kind("Service", "production"):
        if name != "metrics":
            assert "localhost" in certificates[name]["spec"]["dnsNames"], name
            assert certificates[name]["spec"]["ipAddresses"] == ["127.0.0.1"], name


@pytest.mark.parametrize("values", VALUE_SETS)
def test_notes_tell_how_to_get_a_token_and_make_the_first_call(values: str) -> None:
    notes = helm("--notes", str(CI / f"{values}.yaml")).stdout
    for said in (
        "SPAWNMESH_SIGNING_KEY_FILE",
        "spawnmesh tenant create",
        "spawnmesh spawn",
        "helm test mesh",
        "secret generic spawnmesh-test-token",
    ):
        assert said in notes
    assert ("NOT FOR PRODUCTION" in notes) is (values == "trial")
    for said in (
        "SPAWNMESH_TLS_CERT_FILE",
        "SPAWNMESH_TLS_KEY_FILE",
        "SPAWNMESH_TLS_CA_FILE",
        "secret client-tls",
    ):
        assert (said in notes) is (values != "trial")


def test_trial_says_wherever_it_matters_that_it_is_not_for_production() -> None:
    assert text_of("trial").count("NOT FOR PRODUCTION") == 2
    assert "NOT FOR PRODUCTION" in (CI / "trial.yaml").read_text()


def _texts(value: object) -> list[str]:
    if isinstance(value, dict):
        return [text for one in value.values() for text in _texts(one)]
    if isinstance(value, list):
        return [text for one in value for text in _texts(one)]
    return [value] if isinstance(value, str) else []
