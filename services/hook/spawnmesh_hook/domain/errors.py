"""The errors of this service."""

from datetime import timedelta

from spawnmesh_core.errors import TRANSIENT_FACT, Fact, FieldViolation, MeshError, transient_fact
from spawnmesh_core.reasons import Reason

from spawnmesh_hook.domain.call_failures import CallFailure
from spawnmesh_hook.domain.plugins import Grant, HookKind, Plugin, PluginCounts, PluginLimits, etag_of


class EndpointNotAllowed(MeshError):
    """The operator's rules do not allow the endpoint of the plugin or webhook."""

    def __init__(self, why: str) -> None:
        super().__init__(
            Reason.ENDPOINT_NOT_ALLOWED,
            f"the endpoint {why}; use another endpoint or ask the operator",
        )


class EndpointNotReached(MeshError):
    """No connection to the endpoint of the plugin or webhook could be made."""

    def __init__(self, why: str) -> None:
        super().__init__(
            Reason.ENDPOINT_NOT_REACHED,
            f"the endpoint cannot be used now: {why};"
            " start what answers there first, or set allow_unreachable",
        )


class GrantMissing(MeshError):
    """The plugin registers for a hook without the grant that the hook needs."""

    def __init__(self, plugin: str, hook: HookKind, grant: Grant) -> None:
        super().__init__(
            Reason.GRANT_MISSING,
            f"a plugin for {hook} needs the grant {grant}; register it with that grant",
            facts={"plugin": plugin, "hook": hook, "grant": grant},
        )


class NameIsBundled(MeshError):
    """The operator runs a bundled plugin of this name."""

    def __init__(self, plugin: str) -> None:
        super().__init__(
            Reason.ALREADY_EXISTS,
            f"the operator runs a plugin {plugin}, which a tenant cannot change; use another name",
            facts={"plugin": plugin},
        )


class PluginFailed(MeshError):
    """A plugin whose failure policy is CLOSED gave no valid answer.

    The fact `is_transient` says whether it may give one later. It is false once the run has waited
    for the plugin's `max_wait`, which is `exceeded` then.
    """

    def __init__(
        self, plugin: str, hook: HookKind, failure: CallFailure, *, exceeded: timedelta | None = None
    ) -> None:
        facts: dict[str, Fact] = {
            "plugin": plugin,
            "hook": hook,
            TRANSIENT_FACT: transient_fact(failure.is_transient and exceeded is None),
        }
        within, advice = "", "call again, or repair the plugin"
        if exceeded is not None:
            seconds = f"{exceeded.total_seconds():g}"
            facts["max_wait_seconds"] = seconds
            within, advice = f" within its max_wait of {seconds} s", "repair the plugin, or pause it"
        super().__init__(
            Reason.PLUGIN_FAILED,
            f"plugin {plugin} gave no valid answer to {hook}{within}: {failure.error}; {advice}",
            retry_after_seconds=1.0 if exceeded is None else None,
            facts=facts,
        )


class DispatchInProgress(MeshError):
    """Another call with the same request_id is still calling the plugins."""

    def __init__(self) -> None:
        super().__init__(
            Reason.CONFLICT,
            "another call is dispatching this draft to the plugins; repeat with the same request_id",
            retry_after_seconds=1.0,
        )


def check_etag(field: str, etag: str, current: Plugin) -> None:
    """Raise ETAG_DIFFERS unless the etag of the field is empty or that of the plugin."""
    if etag not in ("", etag_of(current)):
        raise MeshError(
            Reason.ETAG_DIFFERS,
            f"plugin {current.name} has changed; get it, apply the change to it, and call again with its"
            " etag",
            violations=(FieldViolation(field, "is the etag of another version"),),
            facts={"plugin": current.name, "etag": etag_of(current)},
        )


def check_plugin_count(plugin: Plugin, limits: PluginLimits, counts: PluginCounts) -> None:
    """Raise PLUGIN_COUNT_EXCEEDED or GATE_COUNT_EXCEEDED if the tenant may not have the plugin.

    A plugin that the tenant has can be replaced, and a gate by a gate.
    """
    if not counts.is_known and counts.plugin_count >= limits.max_plugin_count:
        raise MeshError(
            Reason.PLUGIN_COUNT_EXCEEDED,
            f"the tenant has {counts.plugin_count} plugins, and {limits.max_plugin_count} are allowed; delete"
            " one, or ask the operator to raise plugins.max_plugin_count",
            facts={"limit": limits.max_plugin_count, "plugins": counts.plugin_count},
        )
    if plugin.is_gate and not counts.is_known_gate and counts.gate_count >= limits.max_gate_count:
        raise MeshError(
            Reason.GATE_COUNT_EXCEEDED,
            f"the tenant has {counts.gate_count} plugins that something waits for, and"
            f" {limits.max_gate_count} are allowed; delete one, register this one for observers' hooks only,"
            " or ask the operator to raise plugins.max_gate_count",
            facts={"limit": limits.max_gate_count, "gates": counts.gate_count},
        )


class UnknownTenant(MeshError):
    """The tenant was never created, or was deleted."""

    def __init__(self, why: str) -> None:
        super().__init__(Reason.UNKNOWN_TENANT, f"{why}; ask an operator to create it")
