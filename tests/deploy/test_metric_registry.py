"""Code and registry have the same metrics, and each metric has a bounded number of series."""

from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from tests.support.deploy.instruments import Instrument, instruments
from tests.support.deploy.registry import FILE, RegisteredMetric, read_registry, registry
from tests.support.deploy.rendering import of_kind

MAX_SERIES = 25_000
"""Of one metric in one process, if every combination of values came. RPCs have most of them."""
MADE = {one.name: one for one in instruments()}


def differences(made: Instrument, registered: RegisteredMetric) -> list[str]:
    """Return what the code has and the registry does not, or the reverse."""
    found = [
        f"{made.name}: {what} is {ours!r} in the code and {theirs!r} in the registry"
        for what, ours, theirs in (
            ("kind", made.kind.removeprefix("observable_"), registered.kind),
            ("unit", made.unit, registered.unit),
            ("description", made.description, registered.description),
            ("set of attributes", sorted(made.labels), sorted(registered.labels)),
        )
        if ours != theirs
    ]
    for label, values in made.labels.items():
        known = registered.labels[label].exact if label in registered.labels else None
        if values is not None and known is not None and values != known:
            found.append(f"{made.name}: {label} has other values in the code: {sorted(values)}")
    return found


def test_every_instrument_of_the_code_is_registered() -> None:
    assert sorted(MADE.keys() - registry().keys()) == []
    assert len(MADE) == len(instruments()) > 45


def test_every_registered_metric_is_made() -> None:
    assert sorted(registry().keys() - MADE.keys()) == []


@pytest.mark.parametrize("name", sorted(MADE.keys() & registry().keys()))
def test_code_and_registry_say_the_same_of_a_metric(name: str) -> None:
    assert differences(MADE[name], registry()[name]) == []


@pytest.mark.parametrize("metric", registry().values(), ids=lambda one: str(one.name))
def test_metric_has_a_bounded_number_of_series(metric: RegisteredMetric) -> None:
    assert 1 <= metric.max_series <= MAX_SERIES
    for values in metric.attributes.values():
        assert values.exact is not None or values.because


@pytest.mark.parametrize("metric", registry().values(), ids=lambda one: str(one.name))
def test_metric_is_described_and_names_workloads_that_there_are(metric: RegisteredMetric) -> None:
    assert metric.description.endswith(".")
    assert metric.unit or metric.name in ("spawnmesh.dependency.up", "spawnmesh.runner.mcp.sandbox")
    assert metric.components
    assert metric.components <= of_kind("Deployment", "production").keys()


def test_no_attribute_names_a_tenant_or_has_an_id() -> None:
    names = {name for one in registry().values() for name in one.attributes}
    assert [name for name in names if name.endswith(".id") or name in ("tenant", "spawnmesh.tenant")] == []


def changed(name: str, **fields: Any) -> Mapping[str, RegisteredMetric]:
    content = yaml.safe_load(FILE.read_text())
    for metric in content["metrics"]:
        if metric["name"] == name:
            metric.update(fields)
    return read_registry(content)


@pytest.mark.parametrize(
    "fields",
    [
        {"unit": "ms"},
        {"kind": "gauge"},
        {"description": "Another."},
        {"attributes": {}},
        {"attributes": {"spawnmesh.session.claim": ["first", "second"]}},
    ],
    ids=["unit", "kind", "description", "attributes", "values"],
)
def test_difference_is_found(fields: dict[str, Any]) -> None:
    name = "spawnmesh.session.claims"
    content = yaml.safe_load(FILE.read_text())
    for metric in content["metrics"]:
        if metric["name"] == name:
            metric.update(fields)
            content["metrics"].append(
                {**metric, "name": "test.kept", "attributes": {"spawnmesh.session.claim": None}}
            )
    assert differences(MADE[name], read_registry(content)[name])


@pytest.mark.parametrize(
    "fields",
    [{"kind": "summary"}, {"attributes": {"tenant": None}}],
    ids=["unknown kind", "unknown attribute"],
)
def test_mistake_in_the_registry_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"spawnmesh\.session\.claims"):
        changed("spawnmesh.session.claims", **fields)
