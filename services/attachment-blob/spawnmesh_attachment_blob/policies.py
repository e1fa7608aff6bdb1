"""What this process remembers of tenants' limits, so that a set can be judged before the database is asked."""

from collections import OrderedDict

from spawnmesh_attachment_blob.domain import AttachmentLimits

_MAX_TENANTS = 4096


class KnownLimits:
    """Those of the most recent tenants. They may be out of date: whoever uses them has them compared in the database."""

    def __init__(self) -> None:
        self._by_tenant: OrderedDict[str, AttachmentLimits] = OrderedDict()

    def get(self, tenant_id: str) -> AttachmentLimits | None:
        """The limits as they were last seen."""
        return self._by_tenant.get(tenant_id)

    def remember(self, tenant_id: str, limits: AttachmentLimits) -> None:
        """These are what holds for the tenant."""
        self._by_tenant[tenant_id] = limits
        self._by_tenant.move_to_end(tenant_id)
        if len(self._by_tenant) > _MAX_TENANTS:
            self._by_tenant.popitem(last=False)
