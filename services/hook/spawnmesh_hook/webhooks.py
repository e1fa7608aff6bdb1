"""Plugins that are webhooks: one signed HTTPS request for each call."""

import json
import socket
import ssl
from pathlib import Path

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from google.protobuf import json_format
from spawnmesh_core.clock import utc_now
from spawnmesh_core.webhook_signature import DELIVERY_HEADER, SIGNATURE_HEADER, sign
from spawnmesh_runtime.telemetry import current_traceparent

from spawnmesh_hook import answers
from spawnmesh_hook.answers import MAX_ANSWER_BYTES, Failure
from spawnmesh_hook.domain.endpoints import Address, Endpoint, parse_endpoint
from spawnmesh_hook.domain.plugins import Plugin
from spawnmesh_hook.questions import Answer, Question, Request

_OK = 200
# The caller holds a plugin to its time, which may be longer than the five minutes after which the client would give up by itself.
_UNBOUNDED = aiohttp.ClientTimeout()
_SECRET_BYTES = 32


def trust(ca_file: Path | None) -> ssl.SSLContext:
    """The system's authorities, and those in the operator's file."""
    context = ssl.create_default_context()
    if ca_file is not None:
        context.load_verify_locations(ca_file)
    return context


class Webhooks:
    """Each call has a connection of its own, to an address that was checked for it; a redirect is an answer like any other wrong one."""

    def __init__(self, tls: ssl.SSLContext, master_key: bytes | None) -> None:
        self._tls = tls
        self._master_key = master_key

    def secret(self, tenant_id: str, plugin: Plugin) -> str | None:
        """What the calls of the plugin are signed with: always the same, and in no row; that of the operator's own is one for all tenants.

        None where this service has no key of its own.
        """
        if self._master_key is None:
            return None
        return derived_secret(self._master_key, plugin.name, None if plugin.bundled else tenant_id)

    async def call(
        self,
        tenant_id: str,
        plugin: Plugin,
        addresses: tuple[Address, ...],
        delivery_id: str,
        question: Question[Request, Answer],
    ) -> Answer | Failure:
        """The plugin's answer, from one of the addresses, which were checked for this call."""
        endpoint = parse_endpoint(plugin.endpoint)
        secret = self.secret(tenant_id, plugin)
        if secret is None:
            return answers.UNSIGNED
        body = _body(question)
        try:
            text = await self._post(endpoint, addresses, _headers(secret, delivery_id, body), body)
        except (aiohttp.ClientError, OSError):
            return answers.UNREACHED
        if isinstance(text, Failure):
            return text
        answer = question.answer_type()
        try:
            json_format.Parse(text, answer)
        except (json_format.ParseError, UnicodeDecodeError, RecursionError):
            return answers.NOT_JSON
        return answer

    async def _post(
        self, endpoint: Endpoint, addresses: tuple[Address, ...], headers: dict[str, str], body: bytes
    ) -> bytes | Failure:
        connector = aiohttp.TCPConnector(
            resolver=_Checked(addresses), ssl=self._tls, use_dns_cache=False, force_close=True
        )
        host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
        async with (
            aiohttp.ClientSession(
                connector=connector, timeout=_UNBOUNDED, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
            ) as http,
            http.post(
                f"https://{host}:{endpoint.port}{endpoint.path}", data=body, headers=headers, allow_redirects=False
            ) as answer,
        ):
            if answer.status != _OK:
                return answers.wrong_status(answer.status)
            read = bytearray()
            async for part in answer.content.iter_chunked(64 * 1024):
                read += part
                if len(read) > MAX_ANSWER_BYTES:
                    return answers.TOO_LARGE
            return bytes(read)


class _Checked(AbstractResolver):
    """Leads to the addresses that were checked, whatever the name leads to by now."""

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


def derived_secret(master_key: bytes, plugin: str, tenant_id: str | None) -> str:
    """The secret of a tenant's webhook; without a tenant, of one that the operator runs."""
    info = f"bundled webhook {plugin}" if tenant_id is None else f"webhook {tenant_id} {plugin}"
    return f"whsec_{HKDF(hashes.SHA256(), _SECRET_BYTES, salt=None, info=info.encode()).derive(master_key).hex()}"


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


def _body(question: Question[Request, Answer]) -> bytes:
    event = json_format.MessageToDict(question.request, preserving_proto_field_name=True)
    return json.dumps({"hook": question.hook.value, **event}, separators=(",", ":")).encode()
