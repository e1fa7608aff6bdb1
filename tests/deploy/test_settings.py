"""The chart accepts the settings that a process reads, except those that the chart itself sets."""

import json
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel
from spawnmesh_devstack.call_limits import SHARED_CALL_LIMITS
from spawnmesh_hook.domain.plugins import HookKind
from spawnmesh_hook.store.bundled_plugins import BundledPlugin, read_bundled
from spawnmesh_model_router.domain.images import BlindModelPolicy
from spawnmesh_model_router.domain.router_config import Model, Provider, ProviderKind, RouterConfig
from spawnmesh_model_router.domain.thinking import ThinkingLevel
from spawnmesh_runtime.call_limits import DefaultCallLimits
from spawnmesh_runtime.oidc import OidcIssuer

from tests.support.deploy.rendering import CI, helm, of_kind, pods
from tests.support.deploy.settings_schema import SERVICES, schema, settings_of

SCHEMA = schema()


@pytest.mark.parametrize("service", SERVICES)
def test_settings_that_are_taken_are_those_that_the_process_reads(service: str) -> None:
    """`python -m tests.support.deploy.settings_schema` writes them."""
    assert SCHEMA["$defs"][f"settingsOf-{service}"] == settings_of(service)


@pytest.mark.parametrize("workload", SCHEMA["properties"]["services"]["properties"])
def test_every_workload_takes_settings_of_its_service_alone(workload: str) -> None:
    settings = SCHEMA["properties"]["services"]["properties"][workload]["properties"]["settings"]
    assert settings == {"$ref": f"#/$defs/settingsOf-{workload.removesuffix('-worker')}"}


def test_bundled_plugins_that_are_taken_are_those_that_the_hook_service_reads() -> None:
    taken = SCHEMA["$defs"]["bundledPlugin"]
    assert set(taken["properties"]) == set(BundledPlugin.model_fields)
    assert set(taken["required"]) == {
        name for name, field in BundledPlugin.model_fields.items() if field.is_required()
    }
    assert taken["properties"]["hooks"]["items"]["enum"] == [kind.value for kind in HookKind]


@pytest.mark.parametrize("component", ["hook", "hook-worker"])
def test_bundled_plugins_and_authorities_are_where_the_hook_service_looks(
    tmp_path: Path, component: str
) -> None:
    pod = of_kind("Deployment", "production")[component]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    told = {one["name"].removeprefix("HOOK_"): one.get("value", "") for one in container["env"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert told["BUNDLED_PLUGINS_FILE"] == f"{mounts['hook-config']}/plugins.json"
    assert told["WEBHOOK_CA_FILE"] == f"{mounts['webhook-ca']}/ca.crt"
    file = tmp_path / "plugins.json"
    file.write_text(of_kind("ConfigMap", "production")["hook-config"]["data"]["plugins.json"])
    (plugin,) = read_bundled(file).list_for("acme")
    assert (plugin.name, plugin.endpoint, plugin.priority) == (
        "policy",
        "https://policy.example.com/hooks",
        100,
    )


def test_tokens_are_made_for_the_audience_that_they_are_taken_for(tmp_path: Path) -> None:
    over = tmp_path / "audience.yaml"
    over.write_text("tokens: {audience: other}\n")
    told = {
        name: [env["value"] for env in pod["containers"][0]["env"] if env["name"].endswith("_TOKEN_AUDIENCE")]
        for name, pod in pods("minimal", str(over))
        if name
        not in ("Job/migrate", "CronJob/audit-retention", "Pod/doctor")  # The doctor is given a token.
    }
    assert told == {name: ["other"] for name in told}
    assert "Pod/storage" in told
    assert (
        "export SPAWNMESH_TOKEN_AUDIENCE='other'"
        in helm("--notes", str(CI / "minimal.yaml"), str(over)).stdout
    )


def test_issuers_whose_traces_are_continued_are_those_of_the_values(tmp_path: Path) -> None:
    over = tmp_path / "traces.yaml"
    over.write_text("telemetry: {traceParentIssuers: [gateway]}\n")
    for values, expected in (((), []), ((str(over),), ['["gateway"]'])):
        (container,) = of_kind("Deployment", "minimal", *values)["session"]["spec"]["template"]["spec"][
            "containers"
        ]
        issuers = [one["value"] for one in container["env"] if one["name"] == "SESSION_TRACE_PARENT_ISSUERS"]
        assert issuers == expected


def test_call_limits_of_the_values_are_read_by_every_process(tmp_path: Path) -> None:
    over = tmp_path / "limits.yaml"
    limits = {"read": {"calls_per_second": 200, "bytes_per_second": 1_048_576}, "scan": {}}
    over.write_text(json.dumps({"callLimits": limits}))
    for component, deployment in of_kind("Deployment", "minimal", str(over)).items():
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        (told,) = (one["value"] for one in container["env"] if one["name"].endswith("_CALL_LIMITS"))
        read = DefaultCallLimits.model_validate_json(told)
        assert (read.read.calls_per_second, read.read.bytes_per_second) == (200, 1_048_576), component
        assert read.scan == DefaultCallLimits.model_validate(SHARED_CALL_LIMITS).scan
    over.write_text(json.dumps({"callLimits": {"read": {"calls_per_second": 0}}}))
    assert helm(str(CI / "minimal.yaml"), str(over)).returncode == 1


def test_call_limits_of_the_chart_are_those_of_a_mesh_on_one_machine() -> None:
    for component, deployment in of_kind("Deployment", "minimal").items():
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        (told,) = (one["value"] for one in container["env"] if one["name"].endswith("_CALL_LIMITS"))
        assert json.loads(told) == SHARED_CALL_LIMITS, component


def test_ceiling_and_identity_providers_are_those_of_the_values(tmp_path: Path) -> None:
    over, issuer = (
        tmp_path / "issuers.yaml",
        {
            "issuer": "https://login.example.com",
            "audience": "spawnmesh",
            "jwks_url": "https://login.example.com:8443/keys",
        },
    )
    tokens = {"maxLifetimeSeconds": 1_000_000, "oidcIssuers": [issuer]}
    to = [{"ipBlock": {"cidr": "203.0.113.7/32"}}]
    over.write_text(json.dumps({"tokens": tokens, "networkPolicy": {"jwks": {"to": to, "ports": [8443]}}}))
    for component, deployment in of_kind("Deployment", "minimal", str(over)).items():
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        told = {one["name"].partition("_")[2]: one.get("value") for one in container["env"]}
        told |= {name.removeprefix("ROUTER_").removeprefix("BLOB_"): value for name, value in told.items()}
        assert told["MAX_TOKEN_LIFETIME_SECONDS"] == "1000000", component
        assert [OidcIssuer(**one) for one in json.loads(told["OIDC_ISSUERS"])] == [OidcIssuer(**issuer)]
    rule = {"ports": [{"port": 8443, "protocol": "TCP"}], "to": to}
    assert rule in of_kind("NetworkPolicy", "minimal", str(over))["hook"]["spec"]["egress"]


def test_identity_provider_that_no_policy_leads_to_is_refused(tmp_path: Path) -> None:
    over = tmp_path / "issuers.yaml"
    issuer = {"issuer": "https://a.example.com", "audience": "x", "jwks_url": "https://a.example.com:8443/"}
    over.write_text(json.dumps({"tokens": {"oidcIssuers": [issuer]}}))
    done = helm(str(CI / "minimal.yaml"), str(over))
    assert done.returncode == 1
    assert "jwks_url of tokens.oidcIssuers https://a.example.com is on port 8443" in done.stderr


def test_identity_provider_is_told_as_the_process_reads_it() -> None:
    taken = SCHEMA["properties"]["tokens"]["properties"]["oidcIssuers"]["items"]
    assert set(taken["properties"]) == set(OidcIssuer.model_fields)
    assert set(taken["required"]) == {
        name for name, field in OidcIssuer.model_fields.items() if field.is_required()
    }


CONFIG = SCHEMA["properties"]["modelRouter"]["properties"]["config"]


@pytest.mark.parametrize(
    ("taken", "read"),
    [(CONFIG, RouterConfig), (SCHEMA["$defs"]["provider"], Provider), (SCHEMA["$defs"]["model"], Model)],
    ids=["config", "provider", "model"],
)
def test_configuration_that_is_taken_is_what_the_router_reads(
    taken: dict[str, Any], read: type[BaseModel]
) -> None:
    assert taken["additionalProperties"] is False, "a key that is pasted into it would stand in a ConfigMap"
    assert set(taken["properties"]) == set(read.model_fields)
    assert set(taken["required"]) == {
        name for name, field in read.model_fields.items() if field.is_required()
    }


def test_words_of_the_configuration_are_those_of_the_router() -> None:
    assert CONFIG["properties"]["blind_model_policy"]["enum"] == [policy.value for policy in BlindModelPolicy]
    assert tuple(SCHEMA["$defs"]["provider"]["properties"]["kind"]["enum"]) == get_args(ProviderKind)
    levels = SCHEMA["$defs"]["model"]["properties"]["thinking"]["propertyNames"]["enum"]
    assert levels == [level.value for level in ThinkingLevel]


def test_numbers_are_told_as_the_process_reads_them(tmp_path: Path) -> None:
    wanted = {
        "MAX_MESSAGE_BYTES": 33554432,
        "FORK_TOKEN_COUNT": 1000000,
        "LEASE_TTL_SECONDS": 10.5,
        "DRAIN_GRACE_SECONDS": 0,
    }
    over = tmp_path / "over.yaml"
    over.write_text(json.dumps({"services": {"session": {"settings": wanted}}}))
    (container,) = of_kind("Deployment", "minimal", str(over))["session"]["spec"]["template"]["spec"][
        "containers"
    ]
    told = {one["name"].removeprefix("SESSION_"): one.get("value") for one in container["env"]}
    assert {name: told[name] for name in wanted} == {name: str(value) for name, value in wanted.items()}


def test_unsent_spans_are_kept_on_a_volume_that_outlives_the_container() -> None:
    kept_on = {}
    for name, deployment in of_kind("Deployment", "production").items():
        pod = deployment["spec"]["template"]["spec"]
        volatile = {volume["name"] for volume in pod["volumes"] if "emptyDir" in volume}
        [container] = pod["containers"]
        [folder] = [item["value"] for item in container["env"] if item["name"].endswith("_SPAN_JOURNAL_DIR")]
        kept_on[name] = [
            mount["name"]
            for mount in container["volumeMounts"]
            if folder.startswith(f"{mount['mountPath']}/") and mount["name"] in volatile
        ]
    assert len(kept_on) >= len(SERVICES)
    assert set(map(tuple, kept_on.values())) == {("tmp",)}


def test_the_sample_ratio_of_the_values_is_that_of_every_process(tmp_path: Path) -> None:
    over = tmp_path / "traces.yaml"
    over.write_text("telemetry: {traceSampleRatio: 0.05}\n")
    for component, deployment in of_kind("Deployment", "minimal", str(over)).items():
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        ratios = [one["value"] for one in container["env"] if one["name"].endswith("_TRACE_SAMPLE_RATIO")]
        assert ratios == ["0.05"], component
    over.write_text("telemetry: {traceSampleRatio: 1.5}\n")
    assert "traceSampleRatio" in helm(str(CI / "minimal.yaml"), str(over)).stderr


def test_the_bound_of_content_in_traces_is_that_of_the_processes_that_have_content(tmp_path: Path) -> None:
    over = tmp_path / "traces.yaml"
    over.write_text("telemetry: {traceContentMaxBytes: 65536}\n")
    assert _content_bounds(str(over)) == {"model-router": "65536", "runner": "65536"}
    assert _content_bounds() == {}
    over.write_text("telemetry: {traceContentMaxBytes: 1.5}\n")
    assert "traceContentMaxBytes" in helm(str(CI / "minimal.yaml"), str(over)).stderr


def _content_bounds(*over: str) -> dict[str, str]:
    """Return the bound of each Deployment that has one."""
    return {
        component: variable["value"]
        for component, deployment in of_kind("Deployment", "minimal", *over).items()
        for container in deployment["spec"]["template"]["spec"]["containers"]
        for variable in container["env"]
        if variable["name"].endswith("_TRACE_CONTENT_MAX_BYTES")
    }
