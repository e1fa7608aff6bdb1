"""The registry of the metrics, `deploy/metrics.yaml`, and the series that its metrics make."""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, fields
from functools import cache
from math import prod
from typing import Any

import grpc
import yaml
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry
from spawnmesh_attachment_blob.domain.garbage import GarbageCounts
from spawnmesh_calls.contracts import mesh_services
from spawnmesh_core.reasons import Reason
from spawnmesh_hook.domain.deliveries import DeliveryDecision
from spawnmesh_hook.domain.plugins import HookKind
from spawnmesh_hook.domain.webhooks import WebhookType
from spawnmesh_model_router.domain.cooldown import Audience, Scope
from spawnmesh_model_router.domain.reasons import FailoverReason
from spawnmesh_runtime.caller import CallerKind
from spawnmesh_runtime.rpc_class import RpcClass
from spawnmesh_session.domain.runs import TERMINAL_RUN_STATES

from tests.support.deploy.rendering import ROOT

FILE = ROOT / "deploy" / "metrics.yaml"
KINDS = {"counter", "up_down_counter", "histogram", "gauge"}
_OPEN_SERVICES = {
    "grpc.health.v1.Health": ("Check", "Watch", "List"),
    "google.longrunning.Operations": (
        "ListOperations",
        "GetOperation",
        "DeleteOperation",
        "CancelOperation",
        "WaitOperation",
    ),
}


def _rpc_methods() -> set[str]:
    ours = {service.full_name: [one.name for one in service.methods] for service in mesh_services()}
    return {f"{name}/{method}" for name, methods in (ours | _OPEN_SERVICES).items() for method in methods}


_SETS: Mapping[str, Callable[[], Set[str]]] = {
    "caller_kinds": lambda: {kind.value for kind in CallerKind},
    "cooldown_audiences": lambda: {audience.lower() for audience in Audience},
    "cooldown_scopes": lambda: {scope.lower() for scope in Scope},
    "failover_reasons": lambda: {reason.value for reason in FailoverReason},
    "garbage_kinds": lambda: {
        field.name.removesuffix("_count")
        for field in fields(GarbageCounts)
        if field.name != "seen_object_count"
    },
    "hook_decisions": lambda: {decision.value for decision in DeliveryDecision},
    "hook_kinds": lambda: {kind.value.lower() for kind in HookKind},
    "reasons": lambda: {reason.value for reason in Reason},
    "reasons_of_runs": lambda: {reason.value for reason in Reason} | {"_OTHER"},
    "rpc_classes": lambda: {rpc_class.value for rpc_class in RpcClass},
    "rpc_methods": _rpc_methods,
    "status_codes": lambda: {code.name for code in grpc.StatusCode},
    "terminal_run_states": lambda: {state.lower() for state in TERMINAL_RUN_STATES},
    "webhook_types": lambda: {kind.value for kind in WebhookType},
}
"""The sets of values that the code has, by the names that the registry uses."""


@dataclass(frozen=True, slots=True)
class Values:
    """The values of an attribute: `exact` ones, or at most `count` that are not known in advance.

    An attribute that is `decided_by` another one has one value, or few, for each value of that.
    """

    exact: frozenset[str] | None
    count: int
    because: str = ""
    decided_by: str = ""


@dataclass(frozen=True, slots=True)
class RegisteredMetric:
    """A metric of the registry. `components` are the workloads that record it."""

    name: str
    kind: str
    unit: str
    components: frozenset[str]
    description: str
    attributes: Mapping[str, Values]

    @property
    def labels(self) -> Mapping[str, Values]:
        """The values of the attributes by the names of their labels in Prometheus."""
        return {name.replace(".", "_"): values for name, values in self.attributes.items()}

    @property
    def max_series(self) -> int:
        """The most series that one process can make of it. The buckets of a histogram are one."""
        free = (one.count for one in self.attributes.values() if one.decided_by not in self.attributes)
        return prod(free)


@cache
def groups() -> Mapping[str, frozenset[str]]:
    """Return the names that the registry has for several workloads."""
    found = yaml.safe_load(FILE.read_text())["groups"]
    return {name: frozenset(members) for name, members in found.items()}


@cache
def registry() -> Mapping[str, RegisteredMetric]:
    """Return every metric by its name. Raises ValueError if the file has a mistake."""
    return read_registry(yaml.safe_load(FILE.read_text()))


def read_registry(content: Mapping[str, Any]) -> Mapping[str, RegisteredMetric]:
    """Return the metrics of the content of a registry. Raises ValueError for a mistake in it."""
    shared = content["attributes"]
    found: dict[str, RegisteredMetric] = {}
    for metric in content["metrics"]:
        name, services = metric["name"], metric["services"]
        if name in found or metric["kind"] not in KINDS:
            raise ValueError(f"{name}: it is there twice, or its kind is none of {sorted(KINDS)}")
        attributes = {}
        for attribute, own in (metric.get("attributes") or {}).items():
            if attribute not in shared:
                raise ValueError(f"{name}: {attribute} is no attribute of the registry")
            attributes[attribute] = _values(own if own is not None else shared[attribute])
        components = content["groups"][services] if isinstance(services, str) else services
        found[name] = RegisteredMetric(
            name,
            metric["kind"],
            metric.get("unit", ""),
            frozenset(components),
            metric["description"],
            attributes,
        )
    if unused := set(shared) - {name for one in found.values() for name in one.attributes}:
        raise ValueError(f"no metric has the attributes {sorted(unused)}")
    return found


def _values(given: Any) -> Values:
    if isinstance(given, list):
        return Values(frozenset(given), len(given))
    decided_by = given.get("decided_by", "")
    if "of" in given:
        exact = frozenset(_SETS[given["of"]]())
        return Values(exact, len(exact), decided_by=decided_by)
    return Values(None, given["at_most"], given["because"], decided_by)


@cache
def series() -> Mapping[str, RegisteredMetric]:
    """Return the metric of each series by the name of the series, which the exporter itself makes."""
    found: dict[str, RegisteredMetric] = {}
    for metric in registry().values():
        own = CollectorRegistry()
        meter = MeterProvider([PrometheusMetricReader(registry=own)]).get_meter("test")
        made = getattr(meter, f"create_{metric.kind}")(metric.name, unit=metric.unit)
        getattr(made, {"histogram": "record", "gauge": "set"}.get(metric.kind, "add"))(1)
        found |= {
            sample.name: metric
            for family in own.collect()
            for sample in family.samples
            if sample.name != "target_info"
        }
    return found
