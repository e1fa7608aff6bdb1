"""What this process remembers of tenants' limits, so that a set can be judged before the database is asked."""

from collections import OrderedDict
from dataclasses import dataclass

from spawnmesh_attachment_blob.domain import AttachmentLimits
from spawnmesh_attachment_blob.store import TenantRow

_MAX_TENANTS = 4096


@dataclass(frozen=True, slots=True)
class KnownPolicy:
    """Limits, and the version of the tenant's settings that they are of."""

    settings_version: int
    limits: AttachmentLimits


class KnownPolicies:
    """Those of the most recent tenants. They may be out of date: whoever uses one has its version compared in the database."""

    def __init__(self) -> None:
        self._by_tenant: OrderedDict[str, KnownPolicy] = OrderedDict()

    def get(self, tenant_id: str) -> KnownPolicy | None:
        """The policy as it was last seen."""
        return self._by_tenant.get(tenant_id)

    def remember(self, tenant_id: str, tenant: TenantRow) -> KnownPolicy:
        """The policy that a row says."""
        known = self._by_tenant[tenant_id] = KnownPolicy(tenant.settings_version, tenant.policy.limits)
        self._by_tenant.move_to_end(tenant_id)
        if len(self._by_tenant) > _MAX_TENANTS:
            self._by_tenant.popitem(last=False)
        return known
