"""The pages that a person is led to: those that read by RPCs which the token opens."""

from collections.abc import Sequence

from spawnmesh_console.web.people import Person

_PAGES = (
    ("/tenants", "Tenants", "spawnmesh.session.v1.TenantService", "ListTenants"),
    ("/sessions", "Sessions", "spawnmesh.session.v1.SessionService", "ListSessions"),
    ("/approvals", "Approvals", "spawnmesh.session.v1.ApprovalService", "ListApprovals"),
    ("/models", "Models", "spawnmesh.model_router.v1.ModelRouterService", "ListModels"),
    ("/spend", "Spend", "spawnmesh.model_router.v1.ModelRouterService", "ListSpend"),
    ("/agents", "Agents", "spawnmesh.session.v1.TenantService", "ListAgents"),
    ("/plugins", "Plugins", "spawnmesh.hook.v1.HookService", "ListPlugins"),
    ("/webhooks", "Webhooks", "spawnmesh.hook.v1.WebhookService", "ListWebhooks"),
    ("/schedules", "Schedules", "spawnmesh.session.v1.ScheduleService", "ListSchedules"),
    ("/storage", "Storage", "spawnmesh.transcript.v1.StorageService", "ListTranscripts"),
    ("/start", "New session", "spawnmesh.session.v1.TenantService", "ListAgents"),
)


def pages_of(person: Person) -> Sequence[tuple[str, str]]:
    """Return the paths and names of the pages in the navigation."""
    return [(path, name) for path, name, *rpc in _PAGES if person.may_call(*rpc)]


def way_back(person: Person | None) -> tuple[str, str]:
    """Return the path and the name of the list to which a page without content leads."""
    if person is not None and person.is_of_no_tenant:
        return "/tenants", "All tenants"
    return "/sessions", "All sessions"
