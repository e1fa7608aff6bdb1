"""A cache of tenants' limits, so that sets can be validated before the database is queried."""

from collections import OrderedDict

from spawnmesh_attachment_blob.domain import AttachmentLimits

_MAX_TENANTS = 4096


class LimitsCache:
    """An LRU cache.

    Entries may be out of date: `stage_set` compares them with the stored limits.
    """

    def __init__(self) -> None:
        self._by_tenant: OrderedDict[str, AttachmentLimits] = OrderedDict()

    def get(self, tenant_id: str) -> AttachmentLimits | None:
        """Return the limits that were put last."""
        return self._by_tenant.get(tenant_id)

    def put(self, tenant_id: str, limits: AttachmentLimits) -> None:
        """Store the tenant's limits."""
        self._by_tenant[tenant_id] = limits
        self._by_tenant.move_to_end(tenant_id)
        if len(self._by_tenant) > _MAX_TENANTS:
            self._by_tenant.popitem(last=False)
