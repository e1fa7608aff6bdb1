"""A gateway lets through what callers outside of the mesh may call, and nothing else."""

import json
from typing import Any

import pytest
from spawnmesh_calls.contracts import mesh_services
from spawnmesh_gateway.bootstrap import bootstrap
from spawnmesh_gateway.rpcs import gateway_rpcs
from spawnmesh_gateway.settings import SERVICES, GatewaySettings, HostPort, SettingsUnusable
from spawnmesh_runtime.caller import CallerKind
from spawnmesh_runtime.methods import policy_of

TARGETS = {service: f"127.0.0.1:{50_000 + place}" for place, service in enumerate(SERVICES)}
SETTINGS = GatewaySettings(HostPort("127.0.0.1", 8080), TARGETS)


def routes_of(settings: GatewaySettings) -> list[dict[str, Any]]:
    """Return the routes of calls."""
    (listener, *_) = bootstrap(settings)["static_resources"]["listeners"]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    (host,) = manager["route_config"]["virtual_hosts"]
    routes: list[dict[str, Any]] = host["routes"]
    return routes


def services_by_path(settings: GatewaySettings) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for route in routes_of(settings):
        if "route" in route and "path" in route["match"]:
            found.setdefault(route["match"]["path"], set()).add(route["route"]["cluster"])
    return found


def test_every_rpc_for_others_than_services_has_a_route_and_no_other_one_has() -> None:
    wanted = {
        f"/{service.full_name}/{method.name}"
        for service in mesh_services()
        for method in service.methods
        if policy_of(method).callers != {CallerKind.SERVICE}
    }
    assert set(services_by_path(SETTINGS)) == wanted
    for internal in ("BlobService/PutBlob", "AttachmentBlobService/StageSet", "HookHandlerService/"):
        assert not any(internal in path for path in wanted), internal


def test_shared_contracts_lead_to_each_service_and_all_others_to_their_own() -> None:
    for path, services in services_by_path(SETTINGS).items():
        package = path.split(".")[1]
        if package in ("audit", "jobs", "deployment", "operations"):
            assert services == set(SERVICES), path
        else:
            assert services == {package.replace("_", "-")}, path


def test_call_that_is_not_safe_to_repeat_is_repeated_only_before_a_service_saw_it() -> None:
    retries = {
        route["match"]["path"]: set(route["route"]["retry_policy"]["retry_on"].split(","))
        for route in routes_of(SETTINGS)
        if "route" in route and "path" in route["match"]
    }
    unseen = {"connect-failure", "refused-stream", "reset-before-request"}
    once = {rpc.path for rpc in gateway_rpcs() if not rpc.is_repeatable}
    assert {path.rpartition("/")[2] for path in once} >= {"UploadFile", "Generate", "ClaimRuns", "TestPlugin"}
    assert {path for path, causes in retries.items() if causes == unseen} == once
    assert all(causes > unseen for path, causes in retries.items() if path not in once)


def test_no_time_out_cuts_a_stream_or_a_long_call() -> None:
    for route in routes_of(SETTINGS):
        if "route" not in route:
            continue
        assert route["route"]["timeout"] == "0s"
    idle = {
        route["match"]["path"]: int(route["route"]["idle_timeout"].removesuffix("s"))
        for route in routes_of(SETTINGS)
        if "route" in route and "path" in route["match"]
    }
    hour = 3600
    for rpc in gateway_rpcs():
        if rpc.is_stream or rpc.method.name in (
            "WaitSession",
            "WaitOperation",
            "CompactAsWriter",
            "ClaimRuns",
        ):
            assert idle[rpc.path] > hour, rpc.path
    tries = [
        route["route"].get("retry_policy", {}).get("per_try_timeout")
        for route in routes_of(SETTINGS)
        if "route" in route
    ]
    assert set(tries) == {None, "15s"}


def test_administration_is_a_socket_of_the_file_system_or_does_not_exist(tmp_path: Any) -> None:
    assert "admin" not in bootstrap(SETTINGS)
    with_socket = GatewaySettings(HostPort("0.0.0.0", 8080), TARGETS, admin_socket=tmp_path / "admin.sock")
    assert bootstrap(with_socket)["admin"] == {
        "address": {"pipe": {"path": str(tmp_path / "admin.sock"), "mode": 0o600}}
    }


def test_log_has_no_header_of_the_caller() -> None:
    (listener,) = bootstrap(SETTINGS)["static_resources"]["listeners"]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    line = json.dumps(manager["access_log"])
    assert "%PATH(NQ)%" in line
    assert line.count("%REQ(") == 1  # The method.


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"targets": {}}, "the target of session, attachment-blob, transcript, model-router, hook is missing"),
        ({"targets": {**TARGETS, "other": "a:1"}}, "no service is called other"),
        ({"targets": {**TARGETS, "hook": "hook"}}, "'hook' is not host:port"),
        ({"allowed_origins": ("*",)}, "'\\*' is no origin"),
        ({"allowed_origins": ("https://a.example/path",)}, "is no origin"),
        ({"metrics_listen": HostPort("127.0.0.1", 1)}, "metrics need the socket"),
    ],
    ids=["no-target", "unknown-service", "no-port", "any-origin", "origin-with-path", "metrics"],
)  # fmt: skip
def test_settings_that_cannot_work_are_refused(changes: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"listen": HostPort("127.0.0.1", 8080), "targets": TARGETS, **changes}
    with pytest.raises(SettingsUnusable, match=message):
        GatewaySettings(**given)
