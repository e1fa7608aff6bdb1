"""The pools use the connections that PostgreSQL and the number of pods allow. Values that do not
fit are refused.
"""

import re
from pathlib import Path

import pytest
import yaml
from spawnmesh_session.settings import SessionSettings

from tests.support.deploy.connections import LISTENING
from tests.support.deploy.rendering import VALUE_SETS, Object, helm, objects, of_kind, refusal


def pools(*values: str) -> dict[str, int]:
    """Return the pool size of each workload."""
    found = {}
    for name, deployment in of_kind("Deployment", *values).items():
        for one in deployment["spec"]["template"]["spec"]["containers"][0]["env"]:
            if one["name"].endswith("_DATABASE_MAX_CONNECTIONS"):
                found[name] = int(one["value"])
    return found


def most_pods(name: str, *values: str) -> int:
    """Return the highest number of pods while a deployment replaces all pods of a workload.

    Each new pod is ready at once, and each old pod uses its complete grace period. The deployment
    creates the next pod as soon as it has told an old one to stop, and does not count pods that are
    stopping.
    """
    spec = of_kind("Deployment", *values)[name]["spec"]
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    scalers = of_kind("HorizontalPodAutoscaler", *values)
    pods = int(scalers[name]["spec"]["maxReplicas"] if name in scalers else spec["replicas"])
    leave = spec["template"]["spec"]["terminationGracePeriodSeconds"]
    asked = [spec["minReadySeconds"] * (number + 1) for number in range(pods)]
    going = [sum(1 for earlier in asked if earlier <= now < earlier + leave) for now in asked]
    return pods + max([1, *(1 + more for more in going[:-1]), going[-1]])


@pytest.mark.parametrize(("values", "room"), [("minimal", 180), ("trial", 130), ("production", 560)])
def test_all_pods_at_their_most_fit_into_what_postgresql_lets_in(values: str, room: int) -> None:
    sizes = pools(values)
    assert set(sizes) == set(of_kind("Deployment", values)) - {"runner"}
    assert room * 0.7 < taken(sizes, values) <= room


@pytest.mark.parametrize("ttl_seconds", [0, 30, 300])
@pytest.mark.parametrize("drain_seconds", [1, 20, 120])
def test_they_fit_however_long_pods_take_to_go(tmp_path: Path, ttl_seconds: int, drain_seconds: int) -> None:
    times = {"dnsTtlSeconds": ttl_seconds, "drainGraceSeconds": drain_seconds}
    over = overriding(tmp_path, {**times, "postgresql": {"maxConnections": 1020}})
    sizes = pools("production", over)
    assert 700 < taken(sizes, "production", over) <= 1020 - 40


def taken(sizes: dict[str, int], *values: str) -> int:
    """Return the connections of all pods if each workload has its highest number of pods."""
    return sum(most_pods(name, *values) * (size + LISTENING.get(name, 0)) for name, size in sizes.items())


def overriding(tmp_path: Path, values: Object) -> str:
    file = tmp_path / "over.yaml"
    file.write_text(yaml.safe_dump(values))
    return str(file)


def test_pool_of_a_size_of_its_own_leaves_less_for_the_others(tmp_path: Path) -> None:
    own = pools("minimal", overriding(tmp_path, {"services": {"transcript": {"connections": 12}}}))
    assert own.pop("transcript") == 12
    assert max(own.values()) < min(pools("minimal").values())


def test_more_pods_than_postgresql_can_serve_are_refused_with_the_sum(tmp_path: Path) -> None:
    said = refusal(tmp_path, {"services": {"session": {"replicas": 80}}})
    needed, room = map(int, re.findall(r"need (\d+) .* leaves (\d+)", said)[0])
    assert (needed > room, room) == (True, 180)


def test_smallest_pool_is_one_that_the_services_take() -> None:
    assert min(size for values in VALUE_SETS for size in pools(values).values()) >= 2
    assert SessionSettings.model_fields["database_max_connections"].annotation is int


@pytest.mark.parametrize("component", ["session", "transcript-worker", "hook-worker"])
def test_pooler_leaves_a_direct_way_for_what_listens(tmp_path: Path, component: str) -> None:
    over = overriding(tmp_path, {"postgresql": {"pooled": True}})
    assert helm(over).returncode == 1
    (volume,) = [
        volume
        for one in objects("minimal", over)
        if (one["kind"], one["metadata"]["name"]) == ("Deployment", component)
        for volume in one["spec"]["template"]["spec"]["volumes"]
        if volume["name"] == "secrets"
    ]
    paths = [item["path"] for item in volume["projected"]["sources"][0]["secret"]["items"]]
    prefix = component.removesuffix("-worker").upper()
    assert paths == [f"{prefix}_DATABASE_URL", f"{prefix}_DATABASE_DIRECT_URL"]
