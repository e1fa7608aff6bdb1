"""The settings of the model router, from `MODEL_ROUTER_…` variables, and its configuration file.

Provider keys are no settings: the configuration refers to them.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field, ValidationError
from pydantic_settings import SettingsConfigDict
from spawnmesh_postgres.database_url import DatabaseUrl
from spawnmesh_runtime.settings import ProcessSettings

from spawnmesh_model_router.domain.router_config import RouterConfig


class ModelRouterSettings(ProcessSettings):
    """Settings of the model router."""

    model_config = SettingsConfigDict(
        env_prefix="MODEL_ROUTER_", frozen=True, extra="ignore", protected_namespaces=()
    )

    database_url: DatabaseUrl
    """URL of PostgreSQL, as the role of the service."""
    database_owner_url: DatabaseUrl = ""
    """Only for `migrate`."""
    database_direct_url: DatabaseUrl = ""
    """For the listener, if `database_url` leads through a pooler in transaction mode."""
    database_max_connections: int = Field(default=4, ge=1, le=1000)
    """The largest number of connections of the pool."""
    database_timeout_seconds: float = Field(default=0.5, ge=0.01, le=60)
    """The longest wait of a model call for the database to count it.

    After it, this replica counts by itself, from what it knew last. So a longer time keeps budgets
    more exactly if the database is slow, and delays more calls if it is away.
    """
    session_target: str | None = None
    """`host:port` of the session service, from which this service learns which tokens are revoked.

    It also counts the model calls of runs in their budgets. Without it, this service accepts the
    tokens of ended runs, and revoked ones, until they expire, and refuses the calls that count in
    budgets.
    """
    config_file: Path
    """JSON: the providers, their models, the primary and the aliases."""
    attempt_timeout_seconds: float = Field(default=120.0, gt=0)
    """Until a provider begins to answer, and from then until the first event of its answer."""
    idle_timeout_seconds: float = Field(default=60.0, gt=0)
    """Between two events of an answer. Pings count as events."""
    connect_timeout_seconds: float = Field(default=5.0, gt=0)
    """Time to connect to a provider."""
    tries_before_failover: int = Field(default=2, ge=1, le=10)
    """Calls of a candidate in total, while another candidate of the chain could take over."""
    tries_at_last_candidate: int = Field(default=8, ge=1, le=10)
    """Calls of a candidate in total, if no other candidate could take over."""
    trace_content_max_bytes: int = Field(default=0, ge=0, le=1024 * 1024)
    """The largest size of the messages of a model call in its span, in bytes of each attribute.

    0 records none. Otherwise the calls of the tenants that have `routing.trace_content` have their
    messages and answers in the trace, with secrets masked.
    """


def load_config(file: Path) -> RouterConfig:
    """Read the configuration.

    Ends the process with one line if the file cannot be read or is wrong. The line repeats no
    values.
    """
    try:
        return RouterConfig.model_validate_json(file.read_bytes())
    except OSError:
        raise SystemExit("model-router: config_file cannot be read") from None
    except ValidationError as error:
        problems = [_problem(".".join(map(str, item["loc"])), item["msg"]) for item in error.errors()]
    raise SystemExit("model-router: config_file is wrong: " + "; ".join(problems))


def read_environment() -> Mapping[str, str]:
    """Return the environment of the process, which does not change."""
    return dict(os.environ)


def _problem(path: str, message: str) -> str:
    text = message.removeprefix("Value error, ")
    return f"{path}: {text}" if path else text
