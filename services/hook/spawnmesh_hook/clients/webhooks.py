"""Calls plugins that are webhooks, with one signed HTTPS request for each call."""

import json
import socket
import ssl
from functools import cache
from pathlib import Path

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from google.protobuf import json_format
from spawnmesh_core.clock import utc_now
from spawnmesh_core.webhook_signature import DELIVERY_HEADER, SIGNATURE_HEADER, sign
from spawnmesh_runtime.telemetry import current_traceparent

from spawnmesh_hook.clients.bounded_responses import BoundedConnector
from spawnmesh_hook.clients.handler_answer import Answer, AnswerBytes
from spawnmesh_hook.clients.handler_request import HandlerRequest, Request
from spawnmesh_hook.domain import call_failures
from spawnmesh_hook.domain.call_failures import MAX_ANSWER_BYTES, CallFailure
from spawnmesh_hook.domain.endpoints import Address, Endpoint, parse_endpoint
from spawnmesh_hook.domain.plugins import Plugin

_OK = 200
# The caller enforces the plugin's timeout, which may exceed aiohttp's default of five minutes.
_NO_TIMEOUT = aiohttp.ClientTimeout()
_SECRET_BYTES = 32


@cache
def webhook_tls(ca_file: Path | None) -> ssl.SSLContext:
    """Return TLS that trusts the system's authorities and those in the operator's file.

    They are read once: the system's alone take tens of milliseconds.
    """
    context = ssl.create_default_context()
    if ca_file is not None:
        context.load_verify_locations(ca_file)
    return context


class WebhookClient:
    """Opens a connection for each call, to an address that was checked for it.

    Follows no redirect.
    """

    def __init__(self, tls: ssl.SSLContext, master_key: bytes | None) -> None:
        self._tls = tls
        self._master_key = master_key

    def secret_of(self, tenant_id: str, plugin: Plugin) -> str | None:
        """Return the secret that signs the plugin's calls, or None if this service has no key.

        The secret is derived from the key and stored nowhere. A bundled plugin has one secret for
        all tenants.
        """
        if self._master_key is None:
            return None
        return derive_secret(self._master_key, plugin.name, None if plugin.bundled else tenant_id)

    async def call(
        self,
        tenant_id: str,
        plugin: Plugin,
        addresses: tuple[Address, ...],
        delivery_id: str,
        handler_request: HandlerRequest[Request, Answer],
    ) -> AnswerBytes | CallFailure:
        """Return the plugin's answer from one of the addresses, which were checked before."""
        endpoint = parse_endpoint(plugin.endpoint)
        secret = self.secret_of(tenant_id, plugin)
        if secret is None:
            return call_failures.NO_SIGNING_KEY
        body = _body(handler_request)
        connector = BoundedConnector(
            MAX_ANSWER_BYTES,
            resolver=_FixedResolver(addresses),
            ssl=self._tls,
            use_dns_cache=False,
            force_close=True,
        )
        try:
            return await self._post(endpoint, connector, _headers(secret, delivery_id, body), body)
        except (aiohttp.ClientError, OSError):
            return call_failures.ANSWER_TOO_LARGE if connector.is_exceeded else call_failures.NO_CONNECTION

    async def _post(
        self, endpoint: Endpoint, connector: BoundedConnector, headers: dict[str, str], body: bytes
    ) -> AnswerBytes | CallFailure:
        host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
        async with (
            aiohttp.ClientSession(
                connector=connector,
                timeout=_NO_TIMEOUT,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
            ) as http,
            http.post(
                f"https://{host}:{endpoint.port}{endpoint.path}",
                data=body,
                headers=headers,
                allow_redirects=False,
            ) as response,
        ):
            if response.status != _OK:
                return call_failures.wrong_status(response.status)
            read = bytearray()
            async for part in response.content.iter_chunked(64 * 1024):
                read += part
                if len(read) > MAX_ANSWER_BYTES:
                    return call_failures.ANSWER_TOO_LARGE
            return AnswerBytes(bytes(read), is_json=True)


class _FixedResolver(AbstractResolver):
    """Resolves every name to the addresses that were checked."""

    def __init__(self, addresses: tuple[Address, ...]) -> None:
        self._addresses = addresses

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host,
                host=str(address),
                port=port,
                family=socket.AF_INET if address.version == 4 else socket.AF_INET6,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in self._addresses
        ]

    async def close(self) -> None:
        return


def derive_secret(master_key: bytes, plugin: str, tenant_id: str | None) -> str:
    """Return the secret of a tenant's webhook, or without a tenant that of a bundled one."""
    info = f"bundled webhook {plugin}" if tenant_id is None else f"webhook {tenant_id} {plugin}"
    derived = HKDF(hashes.SHA256(), _SECRET_BYTES, salt=None, info=info.encode()).derive(master_key)
    return f"whsec_{derived.hex()}"


def _headers(secret: str, delivery_id: str, body: bytes) -> dict[str, str]:
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json",
        "Accept-Encoding": "identity",
        DELIVERY_HEADER: delivery_id,
        SIGNATURE_HEADER: sign(secret, delivery_id, body, int(utc_now().timestamp())),
    }
    traceparent = current_traceparent()
    return {**headers, "traceparent": traceparent} if traceparent else headers


def _body(handler_request: HandlerRequest[Request, Answer]) -> bytes:
    event = json_format.MessageToDict(handler_request.request, preserving_proto_field_name=True)
    return json.dumps({"hook": handler_request.hook.value, **event}, separators=(",", ":")).encode()
