"""The parts that pages use."""

from collections.abc import Mapping
from dataclasses import dataclass

from jinja2 import Environment
from spawnmesh_calls.connection import Connection

from spawnmesh_console.clients.oidc import OidcProvider
from spawnmesh_console.clients.trace_backend import TraceBackend
from spawnmesh_console.settings import ConsoleSettings
from spawnmesh_console.web.attempt_cookie import AttemptCookie
from spawnmesh_console.web.session_cookie import SessionCookie


@dataclass(frozen=True, slots=True)
class Dependencies:
    """The parts that pages use. `connections` are by the kebab ids of the services.

    `attempts` are for the sign-in at the `provider`, if there is one. `traces` is None if no
    backend of traces is configured.
    """

    settings: ConsoleSettings
    connections: Mapping[str, Connection]
    cookie: SessionCookie
    templates: Environment
    attempts: AttemptCookie
    provider: OidcProvider | None
    traces: TraceBackend | None
