"""The pictures of the console: each page by its route, and the pages in it that are pictured."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.screenshots.story import SMALL, STANDARD, TENANT, PicturedTenant

FOLDER = Path(__file__).parents[2] / "docs" / "images" / "console"
WIDTHS = {"wide": 1280, "narrow": 360}
SCHEMES = ("light", "dark")

NOT_PAGES = {
    "/",
    "/sessions/{session_id}/live",
    "/sessions/{session_id}/files/{place:int}",
    "/sessions/{session_id}/published/{set_id}/files/{place:int}",
    "/sessions/{session_id}/entries/{seq:int}/text",
    "/sessions/{session_id}/entries/{seq:int}/images/{place:int}",
    "/sign-in/oidc",
    "/sign-in/oidc/callback",
}
"""The routes that lead elsewhere, or that are streams and bytes."""


@dataclass(frozen=True)
class Picture:
    """A page to picture. `title` and `caption` stand above its pictures in the gallery.

    `opens` are selectors of what is unfolded before, and `begins` is that of the element at the
    top. An operator of the mesh looks at the page if `of_mesh`, and a person without a token if
    `is_public`.
    """

    name: str
    route: str
    address: Callable[[PicturedTenant], str]
    title: str
    caption: str
    opens: tuple[str, ...] = ()
    begins: str = ""
    of_mesh: bool = False
    is_public: bool = False

    def file(self, width: str, scheme: str) -> Path:
        """Return the file of the picture."""
        return FOLDER / f"{self.name}-{width}-{scheme}.png"


def _at(path: str) -> Callable[[PicturedTenant], str]:
    return lambda _: path


_SESSION = "/sessions/{session_id}"
PICTURES = (
    Picture(
        "sign-in", "/sign-in", _at("/sign-in"), "Sign in",
        "A token opens the console. With an identity provider, the page has its button too.", is_public=True,
    ),
    Picture(
        "sessions", "/sessions", _at("/sessions"), "Sessions",
        "The newest sessions of the tenant, with filters. The list stays up to date.",
    ),
    Picture(
        "start", "/start", _at("/start"), "New session",
        "The form that spawns a session, and the same call for programs.",
    ),
    Picture(
        "session", _SESSION, lambda one: f"/sessions/{one.answered}", "A session",
        "A session with attached and published files. Its first model was over its limit, and the next one "
        "took over.",
    ),
    Picture(
        "session-family", _SESSION, lambda one: f"/sessions/{one.survey}", "A session with children",
        "Three children that worked at the same time, and a budget that is nearly used.",
    ),
    Picture(
        "session-running", _SESSION, lambda one: f"/sessions/{one.running}", "A session that runs",
        "The thinking and the answer appear while the model gives them.",
    ),
    Picture(
        "session-budget", _SESSION, lambda one: f"/sessions/{one.budgeted}",
        "A session that waits for its budget", "The run goes on when a person raises the limit.",
    ),
    Picture(
        "session-failed", _SESSION, lambda one: f"/sessions/{one.failed}", "A session that failed",
        "The third attempt failed, after two runners were lost.",
    ),
    Picture(
        "context", f"{_SESSION}/context", lambda one: f"/sessions/{one.tiered}/context?budget=4000",
        "What the model sees", "The context of the next call, and what of it is whole or stubbed.",
    ),
    Picture(
        "trace", f"{_SESSION}/trace", lambda one: f"/sessions/{one.family}/trace", "The trace of a session",
        "The job of `make demo`: every span of three sessions, and the critical path through them.",
    ),
    Picture(
        "published", f"{_SESSION}/published", lambda one: f"/sessions/{one.answered}/published",
        "Published files", "The files that the runs of a session have kept for others.",
    ),
    Picture(
        "published-set", f"{_SESSION}/published/{{set_id}}",
        lambda one: f"/sessions/{one.answered}/published/{one.published_set}",
        "One set of published files", "The page of a set, which large sets need.",
    ),
    Picture(
        "approvals", "/approvals", _at("/approvals"), "Approvals",
        "A call of a tool and a question with choices wait for a person.",
    ),
    Picture(
        "approval", "/approvals/{approval_id}", lambda one: f"/approvals/{one.call}", "One approval",
        "A person can change the arguments before the call is made.", ("details.edit > summary",),
    ),
    Picture(
        "approvals-decided", "/approvals", _at("/approvals?show=decided"), "Decided approvals",
        "The decisions, with their persons and reasons.",
    ),
    Picture(
        "models", "/models", _at("/models"), "Models", "The models, their providers and the cooldowns of both.",
    ),
    Picture(
        "models-route", "/models", _at(f"/models?explain={STANDARD}&fallbacks={SMALL}"), "Why this model?",
        "The models that a request would be given to, in order, and the reasons.", begins="#why",
    ),
    Picture(
        "spend", "/spend", _at("/spend"), "Spend",
        "The budget of the day, and the cost by day, agent and model.",
    ),
    Picture("agents", "/agents", _at("/agents"), "Agents", "The agents of the tenant."),
    Picture(
        "agent", "/agents/{agent_id}", _at("/agents/support"), "One agent", "Its models, tools, limits and prompt.",
    ),
    Picture("plugins", "/plugins", _at("/plugins"), "Plugins", "The plugins in the order of their calls."),
    Picture(
        "plugin", "/plugins/{name}", _at("/plugins/demo-plugin"), "One plugin", "Its hooks, its rights and its calls.",
    ),
    Picture(
        "webhooks", "/webhooks", _at("/webhooks"), "Webhooks",
        "One is sent messages, one does not answer, and one is paused.",
    ),
    Picture(
        "webhook", "/webhooks/{name}", _at("/webhooks/status-page"), "One webhook",
        "The log of messages, with the answers of the receiver.",
    ),
    Picture(
        "schedules", "/schedules", _at("/schedules"), "Schedules", "The due times in words, and the last firings.",
    ),
    Picture(
        "schedule", "/schedules/{name}", _at("/schedules/inbox-triage"), "One schedule",
        "Its next due times and its history.",
    ),
    Picture(
        "storage", "/storage", _at("/storage"), "Storage",
        "The bytes of each transcript in PostgreSQL and in the blob store.",
    ),
    Picture("storage-files", "/storage/files", _at("/storage/files"), "Stored files", "All attachment sets."),
    Picture(
        "operations", "/storage/operations", _at("/storage/operations"), "Operations",
        "Dry runs, tiering and recounts of the last week.",
    ),
    Picture(
        "operation", "/storage/operations/{operation_id}", lambda one: f"/storage/operations/{one.operation}",
        "One operation", "A dry run says what would move, before anything does.",
    ),
    Picture(
        "tenants", "/tenants", _at("/tenants"), "Tenants", "An operator of the mesh sees the tenants alone.",
        of_mesh=True,
    ),
    Picture(
        "tenant", "/tenants/{tenant_id}", _at(f"/tenants/{TENANT}"), "One tenant",
        "What each service knows and stores of it, and its settings.", of_mesh=True,
    ),
)  # fmt: skip
"""Every page, in the order of the gallery."""


def all_files() -> Iterator[Path]:
    """Yield the file of each picture."""
    for picture in PICTURES:
        for width in WIDTHS:
            for scheme in SCHEMES:
                yield picture.file(width, scheme)
