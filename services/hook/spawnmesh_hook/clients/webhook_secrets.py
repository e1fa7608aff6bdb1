"""The secrets that sign calls of webhooks. They are derived from a key, and stored nowhere."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from spawnmesh_hook.domain.plugins import Plugin
from spawnmesh_hook.domain.webhooks import Webhook

_SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class WebhookSecrets:
    """Derives secrets from the file with the signing key of this service."""

    master_key: bytes

    def of_plugin(self, tenant_id: str, plugin: Plugin) -> str:
        """Return the secret of a plugin that is a webhook.

        A bundled plugin has one secret for all tenants.
        """
        return secret_of_plugin(self.master_key, plugin.name, None if plugin.bundled else tenant_id)

    def of_webhook(self, tenant_id: str, webhook: Webhook, now: datetime) -> Sequence[str]:
        """Return the secrets that sign a message now, the newest first."""
        return [
            _derive(self.master_key, f"outgoing webhook {tenant_id} {webhook.webhook_id} {number}")
            for number in webhook.secret_numbers(now)
        ]


def secret_of_plugin(master_key: bytes, plugin: str, tenant_id: str | None) -> str:
    """Return the secret of a tenant's plugin, or without a tenant that of a bundled one."""
    info = f"bundled webhook {plugin}" if tenant_id is None else f"webhook {tenant_id} {plugin}"
    return _derive(master_key, info)


def _derive(master_key: bytes, info: str) -> str:
    derived = HKDF(hashes.SHA256(), _SECRET_BYTES, salt=None, info=info.encode()).derive(master_key)
    return f"whsec_{base64.b64encode(derived).decode()}"
