"""Pools are as large as PostgreSQL and the number of pods allow, and what cannot fit is refused."""

import re
from pathlib import Path

import pytest
import yaml
from spawnmesh_session.settings import SessionSettings

from tests.deploy.rendering import VALUE_SETS, Object, helm, objects, of_kind, refusal

LISTENING = {"session": 1, "session-worker": 5, "transcript": 1, "model-router": 1, "hook": 1, "hook-worker": 1}


def pools(*values: str) -> dict[str, int]:
    """The size of each workload's pool."""
    found = {}
    for name, deployment in of_kind("Deployment", *values).items():
        for one in deployment["spec"]["template"]["spec"]["containers"][0]["env"]:
            if one["name"].endswith("_DATABASE_MAX_CONNECTIONS"):
                found[name] = int(one["value"])
    return found


def most_pods(name: str, *values: str) -> int:
    """While it is replaced, a workload has a pod more, and one that is called has another that serves on for a while."""
    scalers = of_kind("HorizontalPodAutoscaler", *values)
    more = 2 if name in of_kind("Service", *values) else 1
    if name in scalers:
        return int(scalers[name]["spec"]["maxReplicas"]) + more
    return int(of_kind("Deployment", *values)[name]["spec"]["replicas"]) + more


@pytest.mark.parametrize(("values", "room"), [("minimal", 180), ("trial", 130), ("production", 560)])
def test_all_pods_at_their_most_fit_into_what_postgresql_lets_in(values: str, room: int) -> None:
    sizes = pools(values)
    assert len(sizes) == 8
    taken = sum(most_pods(name, values) * (size + LISTENING.get(name, 0)) for name, size in sizes.items())
    assert room * 0.7 < taken <= room


def overriding(tmp_path: Path, values: Object) -> str:
    file = tmp_path / "over.yaml"
    file.write_text(yaml.safe_dump(values))
    return str(file)


def test_pool_of_a_size_of_its_own_leaves_less_for_the_others(tmp_path: Path) -> None:
    own = pools("minimal", overriding(tmp_path, {"services": {"transcript": {"connections": 20}}}))
    assert own.pop("transcript") == 20
    assert max(own.values()) < min(pools("minimal").values())


def test_more_pods_than_postgresql_can_serve_are_refused_with_the_sum(tmp_path: Path) -> None:
    said = refusal(tmp_path, {"services": {"session": {"replicas": 80}}})
    needed, room = map(int, re.findall(r"need (\d+) .* leaves (\d+)", said)[0])
    assert (needed > room, room) == (True, 180)


def test_smallest_pool_is_one_that_the_services_take() -> None:
    assert min(size for values in VALUE_SETS for size in pools(values).values()) >= 2
    assert SessionSettings.model_fields["database_max_connections"].annotation is int


def test_pooler_leaves_a_direct_way_for_what_listens(tmp_path: Path) -> None:
    over = overriding(tmp_path, {"postgresql": {"pooled": True}})
    assert helm(over).returncode == 1
    (volume,) = [
        volume
        for one in objects("minimal", over)
        if (one["kind"], one["metadata"]["name"]) == ("Deployment", "session")
        for volume in one["spec"]["template"]["spec"]["volumes"]
        if volume["name"] == "secrets"
    ]
    paths = [item["path"] for item in volume["projected"]["sources"][0]["secret"]["items"]]
    assert paths == ["SESSION_DATABASE_URL", "SESSION_DATABASE_DIRECT_URL"]
