"""The restricted pod-security profile admits every pod of the chart, also those of jobs and hooks."""

import re
from pathlib import Path

import pytest
from spawnmesh_calls.channel_options import peer_options
from spawnmesh_runtime.settings import ProcessSettings

from tests.support.deploy.rendering import ROOT, VALUE_SETS, Object, containers, objects, of_kind, pods

HELM_WAITS_SECONDS = 300  # The time for a hook, unless --timeout gives another one.

ALLOWED_VOLUMES = {"configMap", "downwardAPI", "emptyDir", "persistentVolumeClaim", "projected", "secret"}


@pytest.mark.parametrize("values", VALUE_SETS)
def test_pods_are_those_that_were_thought_of(values: str) -> None:
    found = {name for name, _ in pods(values)}
    services = (
        "session",
        "session-worker",
        "attachment-blob",
        "attachment-blob-worker",
        "transcript",
        "transcript-worker",
    )
    assert {
        f"Deployment/{name}" for name in (*services, "model-router", "hook", "hook-worker", "runner")
    } <= found
    assert {"Pod/doctor", "Pod/storage"} <= found
    assert any(name.startswith("Job/migrate") for name in found)


def test_every_mode_of_a_service_has_its_pods() -> None:
    modes = {
        (file.parent.name, mode)
        for file in ROOT.glob("services/*/spawnmesh_*/__main__.py")
        for mode in re.findall(r'^        case \[?"(serve|worker)"', file.read_text(), re.MULTILINE)
    } | {("spawnmesh_runner", "serve")}
    deployments = of_kind("Deployment", "minimal").values()
    given = {tuple(one["spec"]["template"]["spec"]["containers"][0]["args"]) for one in deployments}
    assert given == modes


def test_every_worker_leaves_signs_and_its_service_looks_for_them() -> None:
    """`spawnmesh doctor` then reports a worker that is missing."""
    for name, one in of_kind("Deployment", "minimal").items():
        package, mode = one["spec"]["template"]["spec"]["containers"][0]["args"]
        if mode == "worker":
            sources = "".join(file.read_text() for file in ROOT.glob(f"services/*/{package}/**/*.py"))
            assert re.search(rf'send_heartbeats\([\w.]+, "{name}"\)', sources), name
            assert re.search(rf'add_deployment\([^)]*workers=\["{name}"\]', sources), name


@pytest.mark.parametrize("values", VALUE_SETS)
def test_pods_are_restricted(values: str) -> None:
    for name, pod in pods(values):
        security = pod["securityContext"]
        assert security["runAsNonRoot"] is True, name
        assert security["runAsUser"] > 0, name
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod), name
        for volume in pod["volumes"]:
            assert set(volume) - {"name"} <= ALLOWED_VOLUMES, name
        for container in containers(pod):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "runAsNonRoot": True,
                "capabilities": {"drop": ["ALL"]},
            }, name
            assert not any("hostPort" in port for port in container.get("ports", [])), name


@pytest.mark.parametrize("values", VALUE_SETS)
def test_no_pod_gets_a_token_for_the_cluster(values: str) -> None:
    accounts = of_kind("ServiceAccount", values)
    for name, pod in pods(values):
        assert pod["automountServiceAccountToken"] is False, name
    assert all(account["automountServiceAccountToken"] is False for account in accounts.values())
    assert len(accounts) >= 9


@pytest.mark.parametrize("values", VALUE_SETS)
def test_containers_say_what_they_need_and_which_image_they_are(values: str) -> None:
    for name, pod in pods(values):
        for container in containers(pod):
            assert {"cpu", "memory"} <= set(container["resources"]["requests"]), name
            assert "memory" in container["resources"]["limits"], name
            version = re.search(r"(@sha256:[0-9a-f]{64}|:[^:/@]+)$", container["image"])
            assert version is not None, name
            assert version[1] != ":latest", name


@pytest.mark.parametrize("values", VALUE_SETS)
def test_mesh_is_probed_over_grpc(values: str) -> None:
    for name, deployment in of_kind("Deployment", values).items():
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        assert container["readinessProbe"]["grpc"] == {"port": 50052}, name
        for probe in ("startupProbe", "livenessProbe"):
            assert container[probe]["grpc"] == {"port": 50052, "service": "live"}, name


@pytest.mark.parametrize("values", VALUE_SETS)
def test_pods_are_given_longer_than_they_take_to_leave(values: str) -> None:
    for name, deployment in of_kind("Deployment", values).items():
        pod = deployment["spec"]["template"]["spec"]
        env = {one["name"]: one.get("value", "") for one in pod["containers"][0]["env"]}
        (grace,) = [float(value) for key, value in env.items() if key.endswith("_DRAIN_GRACE_SECONDS")]
        assert pod["terminationGracePeriodSeconds"] >= grace + pause_of(pod) + 10, name


def test_pod_of_a_workload_with_a_grace_of_its_own_is_given_that(tmp_path: Path) -> None:
    over = tmp_path / "grace.yaml"
    over.write_text(
        "services: {runner: {settings: {DRAIN_GRACE_SECONDS: 300}}, hook: {settings: {DRAIN_GRACE_SECONDS: 0}}}\n"
    )
    usual, own = of_kind("Deployment", "minimal"), of_kind("Deployment", "minimal", str(over))
    given = {
        name: (own[name]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        - usual[name]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"])
        for name in own
    }  # fmt: skip
    assert {name: more for name, more in given.items() if more} == {"runner": 280, "hook": -20}


def pause_of(pod: Object) -> float:
    """Return the seconds for which a pod continues before its process is told to stop."""
    if "lifecycle" not in pod["containers"][0]:
        return 0.0
    command, seconds = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert command == "sleep"
    return float(seconds)


@pytest.mark.parametrize("ttl_seconds", [0, 30, 120])
def test_pods_that_are_called_come_and_go_more_slowly_than_names_are_forgotten(
    tmp_path: Path, ttl_seconds: int
) -> None:
    over = tmp_path / "ttl.yaml"
    over.write_text(f"dnsTtlSeconds: {ttl_seconds}\n")
    options = dict(peer_options(ProcessSettings().max_message_bytes))
    settled = ttl_seconds + int(options["grpc.dns_min_time_between_resolutions_ms"]) / 1000
    called = set()
    for name, deployment in of_kind("Deployment", "minimal", str(over)).items():
        if "lifecycle" in deployment["spec"]["template"]["spec"]["containers"][0]:
            called.add(name)
            assert deployment["spec"]["minReadySeconds"] > settled, name
            assert pause_of(deployment["spec"]["template"]["spec"]) > settled, name
    assert called == set(of_kind("Service", "minimal")), "who is found by name"


def test_names_are_taken_to_be_remembered_for_as_long_as_the_clusters_default_has_it() -> None:
    assert of_kind("Deployment", "minimal")["session"]["spec"]["minReadySeconds"] == 40


@pytest.mark.parametrize("values", VALUE_SETS)
def test_pods_of_helm_test_have_one_container(values: str) -> None:
    for one in objects(values):
        if one["kind"] == "Pod":
            assert len(containers(one["spec"])) == 1, "older versions of `helm test --logs` read no other"


@pytest.mark.parametrize("values", VALUE_SETS)
def test_migration_that_failed_leaves_its_pods_to_be_read(values: str) -> None:
    (job,) = of_kind("Job", values).values()
    assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never"
    assert job["spec"]["backoffLimit"] <= 6
    annotations = job["metadata"].get("annotations", {})
    assert "hook-failed" not in annotations.get("helm.sh/hook-delete-policy", "")
    if annotations:
        assert job["spec"]["activeDeadlineSeconds"] < HELM_WAITS_SECONDS


@pytest.mark.parametrize("values", VALUE_SETS)
def test_every_mount_has_its_volume_and_every_volume_its_mount(values: str) -> None:
    for name, pod in pods(values):
        mounted = {mount["name"] for container in containers(pod) for mount in container["volumeMounts"]}
        claimed = {"data"} if name.startswith("StatefulSet") else set()
        assert mounted == {volume["name"] for volume in pod["volumes"]} | claimed, name


@pytest.mark.parametrize("values", ["minimal", "production"])
def test_migration_job_runs_before_the_release_like_the_pods_it_is_for(values: str) -> None:
    job = of_kind("Job", values)["migrate"]
    pod = job["spec"]["template"]["spec"]
    serving = of_kind("Deployment", values)["session"]["spec"]["template"]["spec"]
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    for shared in ("securityContext", "imagePullSecrets", "automountServiceAccountToken"):
        assert pod.get(shared) == serving.get(shared)
    images = {container["name"]: container["image"] for container in pod["containers"]}
    assert set(images) == {"session", "attachment-blob", "transcript", "model-router", "hook"}
    assert images["session"] == serving["containers"][0]["image"]


def test_trial_migrates_beside_its_database_and_anew_in_each_revision() -> None:
    (job,) = of_kind("Job", "trial").values()
    assert job["metadata"]["name"] == "migrate-1"
    assert "annotations" not in job["metadata"]
    (prepare,) = job["spec"]["template"]["spec"]["initContainers"]
    assert prepare["args"] == ["spawnmesh_postgres.roles", "/run/secrets/postgresql"]


def test_cluster_is_prepared_by_a_flag(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text("postgresql: {prepare: true, citus: true}\n")
    job = of_kind("Job", "minimal", str(file))["migrate"]
    (prepare,) = job["spec"]["template"]["spec"]["initContainers"]
    assert prepare["args"] == ["spawnmesh_postgres.roles", "--citus", "/run/secrets/postgresql"]


@pytest.mark.parametrize("values", VALUE_SETS)
def test_only_one_service_holds_s3_keys_and_one_the_providers(values: str) -> None:
    holders: dict[str, set[str]] = {"S3": set(), "providers": set(), "owner": set()}
    for name, pod in pods(values):
        if name.startswith(("Deployment", "Pod")):
            text = str(pod["volumes"])
            for what, sign in (
                ("S3", "secret-key"),
                ("providers", "spawnmesh-providers"),
                ("owner", "owner-url"),
            ):
                if sign in text:
                    holders[what].add(name.partition("/")[2])
    assert holders == {
        "S3": {"attachment-blob", "attachment-blob-worker", "storage"},
        "providers": {"model-router"},
        "owner": set(),
    }
