"""The classes of tenants, which the operator names."""

from typing import Annotated

from pydantic import Field
from spawnmesh_core.errors import invalid

TenantClasses = Annotated[
    tuple[Annotated[str, Field(pattern="^[a-z][a-z0-9_-]{0,30}$")], ...], Field(max_length=8)
]
"""The names of all classes. Each has series of its own in the metrics, so there are few."""


def check_tenant_class(name: str, classes: TenantClasses) -> None:
    """Raise INVALID_REQUEST unless the name is one of the classes or empty."""
    if name and name not in classes:
        raise invalid(
            "settings.tenant_class", f"must be one of the operator's classes: {', '.join(classes) or 'none'}"
        )
