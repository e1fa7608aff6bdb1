"""The refusals of this service."""

import psycopg
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_hook.domain.plugins import Grant, HookKind

_PURGED = "SM001"  # As the database refuses it; `migrations/0003_purged_tenants.sql`.


class EndpointNotAllowed(MeshError):
    """The plugin's endpoint is not one that this mesh dials."""

    def __init__(self, why: str) -> None:
        super().__init__(Reason.ENDPOINT_NOT_ALLOWED, f"the plugin's endpoint {why}; give another or ask the operator")


class EndpointNotReached(MeshError):
    """Nobody answers at the plugin's endpoint."""

    def __init__(self, why: str) -> None:
        super().__init__(
            Reason.ENDPOINT_NOT_REACHED,
            f"the plugin's endpoint cannot be used now: {why}; start the plugin first, or register it with allow_unreachable",
        )


class GrantMissing(MeshError):
    """The plugin wants a hook without the grant that the hook needs."""

    def __init__(self, plugin: str, hook: HookKind, grant: Grant) -> None:
        super().__init__(
            Reason.GRANT_MISSING,
            f"a plugin for {hook} needs the grant {grant}; register it with that grant",
            facts={"plugin": plugin, "hook": hook, "grant": grant},
        )


class NameIsBundled(MeshError):
    """The operator has a plugin of this name."""

    def __init__(self, plugin: str) -> None:
        super().__init__(
            Reason.ALREADY_EXISTS,
            f"the operator runs a plugin {plugin}, which is not a tenant's to change; give yours another name",
            facts={"plugin": plugin},
        )


class PluginFailed(MeshError):
    """A plugin whose failure policy is CLOSED gave no valid answer; `error` says why, without content."""

    def __init__(self, plugin: str, hook: HookKind, error: str) -> None:
        super().__init__(
            Reason.PLUGIN_FAILED,
            f"plugin {plugin} gave no valid answer to {hook}: {error}; call again, or have the plugin repaired",
            retry_after_seconds=1.0,
            facts={"plugin": plugin, "hook": hook},
        )


class AskingInProgress(MeshError):
    """Another call with the same dispatch key is still asking the plugins."""

    def __init__(self) -> None:
        super().__init__(
            Reason.CONFLICT,
            "the plugins are being asked about this draft by another call; repeat with the same dispatch_key",
            retry_after_seconds=1.0,
        )


def unknown_tenant() -> MeshError:
    """The refusal of a plugin for a tenant that nobody created."""
    return MeshError(Reason.UNKNOWN_TENANT, "there is no such tenant; an operator creates it")


def translate_purged(error: BaseException) -> MeshError | None:
    """The refusal of a tenant that was purged; None for every other failure."""
    if not isinstance(error, psycopg.Error) or error.sqlstate != _PURGED:
        return None
    return MeshError(Reason.UNKNOWN_TENANT, "this tenant was deleted; an operator creates it anew")
