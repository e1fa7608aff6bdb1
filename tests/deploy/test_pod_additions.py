"""Additions of operators to pods: to all workloads by `pod`, to one by `services.<name>.pod`."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.deploy.rendering import CI, Object, of_kind, pods, refusal, text_of

PLACEMENT: Object = {
    "annotations": {"example.com/team": "mesh"},
    "labels": {"example.com/cost": "agents"},
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "spot", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
    "priorityClassName": "agents",
}
ADDED: Object = {
    "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
    "extraVolumes": [{"name": "extra-ca", "configMap": {"name": "corporate-ca"}}],
    "extraVolumeMounts": [{"name": "extra-ca", "mountPath": "/etc/corporate", "readOnly": True}],
}


def deployments(tmp_path: Path, values: Object) -> dict[str, Object]:
    over = tmp_path / "over.yaml"
    over.write_text(json.dumps(values))
    return {
        name: one["spec"]["template"]
        for name, one in of_kind("Deployment", "production", str(over)).items()
        if name != "gateway"
    }


def additions(template: Object) -> dict[str, Any]:
    """Return what the template has of all that can be added."""
    spec, meta = template["spec"], template["metadata"]
    (container,) = spec["containers"]
    return {
        "annotations": {key: value for key, value in meta["annotations"].items() if "example.com" in key},
        "labels": {key: value for key, value in meta["labels"].items() if "example.com" in key},
        **{
            field: spec.get(field)
            for field in ("nodeSelector", "tolerations", "affinity", "priorityClassName")
        },
        "extraEnv": [one for one in container["env"] if one["name"] in ("HTTPS_PROXY", "OWN")],
        "extraVolumes": [one for one in spec["volumes"] if one["name"].startswith("extra-")],
        "extraVolumeMounts": [one for one in container["volumeMounts"] if one["name"].startswith("extra-")],
    }


def test_every_workload_has_what_all_are_given(tmp_path: Path) -> None:
    found = deployments(tmp_path, {"pod": PLACEMENT | ADDED})
    assert len(found) == 10
    assert {name: additions(one) for name, one in found.items()} == dict.fromkeys(found, PLACEMENT | ADDED)


def test_one_workload_has_its_own_beside_and_instead(tmp_path: Path) -> None:
    """Maps have both; lists, the affinity and the class are those of the workload."""
    own: Object = {
        "labels": {"example.com/tier": "batch"},
        "nodeSelector": {"disk": "nvme"},
        "tolerations": [],
        "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
        "priorityClassName": "low",
        "extraEnv": [{"name": "OWN", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
    }
    found = deployments(tmp_path, {"pod": PLACEMENT | ADDED, "services": {"runner": {"pod": own}}})
    expected = {
        **PLACEMENT,
        **ADDED,
        **own,
        "labels": PLACEMENT["labels"] | own["labels"],
        "tolerations": None,
    }
    assert additions(found["runner"]) == expected
    assert additions(found["session"]) == PLACEMENT | ADDED


def test_jobs_and_the_gateway_are_placed_too(tmp_path: Path) -> None:
    over = tmp_path / "over.yaml"
    over.write_text(json.dumps({"pod": PLACEMENT | ADDED}))
    values = ("production", str(CI / "gateway.yaml"), str(over))
    found = dict(pods(*values))
    for kind, name in (("Job", "migrate"), ("Deployment", "gateway")):
        template = of_kind(kind, *values)[name]["spec"]["template"]
        assert template["metadata"]["labels"].items() >= PLACEMENT["labels"].items(), name
    job = of_kind("CronJob", *values)["audit-retention"]["spec"]["jobTemplate"]["spec"]["template"]
    assert job["metadata"]["labels"].items() >= PLACEMENT["labels"].items()
    assert job["spec"]["priorityClassName"] == "agents"
    for name in ("Job/migrate", "Deployment/gateway", "Pod/doctor", "Pod/storage"):
        spec = found[name]
        assert spec["nodeSelector"] == PLACEMENT["nodeSelector"], name
        assert spec["priorityClassName"] == "agents", name
        assert not [one for one in spec["volumes"] if one["name"].startswith("extra-")], name


def test_jobs_and_the_gateway_have_places_of_their_own(tmp_path: Path) -> None:
    own = {
        "nodeSelector": {"disk": "nvme"},
        "labels": {"example.com/tier": "jobs"},
        "priorityClassName": "low",
    }
    over = tmp_path / "over.yaml"
    over.write_text(
        json.dumps(
            {
                "pod": PLACEMENT,
                "jobs": {"pod": own, "serviceAccountAnnotations": {"example.com/identity": "owner"}},
                "gateway": {"pod": own, "serviceAccountAnnotations": {"example.com/identity": "edge"}},
            }
        )
    )
    values = ("production", "gateway", str(over))
    found = dict(pods(*values))
    placed = ("Job/migrate", "CronJob/audit-retention", "Deployment/gateway", "Pod/doctor", "Pod/storage")
    for name in placed:
        assert found[name]["nodeSelector"] == own["nodeSelector"], name
        assert found[name]["priorityClassName"] == "low", name
    template = of_kind("Deployment", *values)["gateway"]["spec"]["template"]
    assert (
        template["metadata"]["labels"].items()
        >= {"example.com/tier": "jobs", "example.com/cost": "agents"}.items()
    )
    accounts = of_kind("ServiceAccount", *values)
    assert accounts["gateway"]["metadata"]["annotations"] == {"example.com/identity": "edge"}
    assert accounts["migrate"]["metadata"]["annotations"].items() >= {"example.com/identity": "owner"}.items()
    assert found["Deployment/session"]["priorityClassName"] == "agents"


def test_deployments_have_labels_and_annotations_that_their_pods_have_not(tmp_path: Path) -> None:
    over = tmp_path / "over.yaml"
    every: Object = {"labels": {"example.com/owner": "mesh"}, "annotations": {"example.com/reload": "true"}}
    own: Object = {"annotations": {"example.com/reload": "false", "example.com/more": "yes"}}
    over.write_text(
        json.dumps({"workload": every, "services": {"hook": {"workload": own}}, "gateway": {"workload": own}})
    )
    for name, one in of_kind("Deployment", "production", "gateway", "console", str(over)).items():
        assert one["metadata"]["labels"].items() >= every["labels"].items(), name
        changed = name in ("hook", "gateway")
        assert one["metadata"]["annotations"] == (own if changed else every)["annotations"], name
        template = one["spec"]["template"]["metadata"]
        assert not [key for key in {**template["labels"], **template["annotations"]} if "example.com" in key]


def test_pods_are_spread_over_zones_and_nodes(tmp_path: Path) -> None:
    over = tmp_path / "over.yaml"
    over.write_text(
        json.dumps({"topologySpread": {"topologyKeys": ["rack"], "whenUnsatisfiable": "DoNotSchedule"}})
    )
    for values, keys in (
        (("minimal", "gateway"), ["topology.kubernetes.io/zone", "kubernetes.io/hostname"]),
        (("minimal", "gateway", str(over)), ["rack"]),
    ):
        for name, one in of_kind("Deployment", *values).items():
            spread = one["spec"]["template"]["spec"]["topologySpreadConstraints"]
            assert [each["topologyKey"] for each in spread] == keys, name
            for each in spread:
                assert each["labelSelector"] == one["spec"]["selector"], name
                assert each["matchLabelKeys"] == ["pod-template-hash"], (
                    "pods of the version before do not count"
                )
                assert each["whenUnsatisfiable"] == (
                    "DoNotSchedule" if keys == ["rack"] else "ScheduleAnyway"
                )
    over.write_text("topologySpread: {enabled: false}")
    assert "topologySpreadConstraints" not in text_of("minimal", "gateway", str(over))


def test_account_of_a_workload_has_its_annotations(tmp_path: Path) -> None:
    role = {"eks.amazonaws.com/role-arn": "arn:aws:iam::123456789012:role/spawnmesh-blobs"}
    over = tmp_path / "over.yaml"
    over.write_text(json.dumps({"services": {"attachment-blob": {"serviceAccountAnnotations": role}}}))
    accounts = of_kind("ServiceAccount", "production", str(over))
    assert accounts["attachment-blob"]["metadata"]["annotations"] == role
    assert "annotations" not in accounts["session"]["metadata"]


def test_disruptions_are_bounded_unless_they_are_allowed(tmp_path: Path) -> None:
    assert set(of_kind("PodDisruptionBudget", "minimal")) >= set(deployments(tmp_path, {}))
    off = tmp_path / "off.yaml"
    off.write_text("podDisruptionBudget: {enabled: false}")
    assert not of_kind("PodDisruptionBudget", "minimal", str(off))


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"pod": {"labels": {"app.kubernetes.io/name": "x"}}}, "app.kubernetes.io/name"),
        ({"pod": {"extraEnv": [{"name": "SESSION_LOG_LEVEL", "value": "debug"}]}}, "/pod/extraEnv/0/name"),
        ({"pod": {"extraEnv": [{"name": "PGSSLMODE", "value": "disable"}]}}, "/pod/extraEnv/0/name"),
        ({"pod": {"extraEnv": [{"name": "A"}]}}, "/pod/extraEnv/0"),
        ({"pod": {"extraVolumes": [{"name": "tokens", "emptyDir": {}}]}}, "/pod/extraVolumes/0/name"),
        ({"pod": {"extraVolumes": [{"name": "extra-ca"}]}}, "/pod/extraVolumes/0"),
        ({"pod": {"affinity": {"nodeAffinty": {}}}}, "nodeAffinty"),
        ({"services": {"runner": {"pod": {"priority": 3}}}}, "priority"),
        ({"telemetry": {"metrics": {"enabled": True}}}, "networkPolicy.monitoring"),
        ({"networkPolicy": {"monitoring": [{"podSelector": {}}]}}, "telemetry.metrics.enabled is false"),
    ],
    ids=[
        "label of the chart",
        "setting",
        "variable of the chart",
        "no value",
        "volume of the chart",
        "no source",
        "typing error",
        "unknown key",
        "metrics that nobody can fetch",
        "peers without metrics",
    ],
)
def test_what_would_break_a_pod_is_refused(tmp_path: Path, values: Object, named: str) -> None:
    assert named in refusal(tmp_path, values)
