"""A signed request to an address that was checked, by the Standard Webhooks specification."""

import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import cache
from pathlib import Path

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from spawnmesh_core.clock import utc_now
from spawnmesh_runtime.telemetry import current_traceparent
from standardwebhooks import Webhook as Signer

from spawnmesh_hook.clients.bounded_responses import BoundedConnector
from spawnmesh_hook.domain.endpoints import Address, Endpoint

# The caller enforces the time-out, which may exceed aiohttp's default of five minutes.
_NO_TIMEOUT = aiohttp.ClientTimeout()
_MAX_DELAY_SECONDS = 7 * 86_400


@cache
def webhook_tls(ca_file: Path | None) -> ssl.SSLContext:
    """Return TLS that trusts the system's authorities and those in the operator's file.

    They are read once: the system's alone take tens of milliseconds.
    """
    context = ssl.create_default_context()
    if ca_file is not None:
        context.load_verify_locations(ca_file)
    return context


@dataclass(frozen=True, slots=True)
class PostedBody:
    """The body of a request, the id of its message, and the secrets that sign it, newest first.

    A plugin is told the trace that calls it. Receivers outside of the mesh are not.
    """

    message_id: str
    secrets: Sequence[str]
    body: bytes
    is_traced: bool = False

    def headers(self) -> dict[str, str]:
        """Return the headers of the request, signed now."""
        now = utc_now()
        text = self.body.decode()
        headers = {
            "Content-Type": "application/json",
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "User-Agent": "Spawnmesh",
            "webhook-id": self.message_id,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": " ".join(
                Signer(secret).sign(self.message_id, now, text) for secret in self.secrets
            ),
        }
        traceparent = current_traceparent() if self.is_traced else ""
        return {**headers, "traceparent": traceparent} if traceparent else headers


@dataclass(frozen=True, slots=True)
class PostAnswer:
    """The status of an answer, its body if it was wanted, and the pause that it asks for."""

    status: int
    body: bytes
    retry_after: timedelta | None


class NoAnswer(Exception):
    """There was no connection, or it ended before the answer."""


class AnswerTooLarge(Exception):
    """The answer is larger than its bound."""


async def post(
    endpoint: Endpoint,
    addresses: tuple[Address, ...],
    tls: ssl.SSLContext,
    posted: PostedBody,
    *,
    max_answer_bytes: int,
    read_status: int | None = None,
) -> PostAnswer:
    """Send the request on a connection of its own, and return the answer. No redirect is followed.

    The body of the answer is read if its status is `read_status`. Raise NoAnswer or AnswerTooLarge.
    """
    connector = BoundedConnector(
        max_answer_bytes,
        resolver=_FixedResolver(addresses),
        ssl=tls,
        use_dns_cache=False,
        force_close=True,
    )
    try:
        return await _post(endpoint, connector, posted, max_answer_bytes, read_status)
    except (aiohttp.ClientError, OSError):
        raise (AnswerTooLarge if connector.is_exceeded else NoAnswer) from None


async def _post(
    endpoint: Endpoint,
    connector: BoundedConnector,
    posted: PostedBody,
    max_answer_bytes: int,
    read_status: int | None,
) -> PostAnswer:
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    async with (
        aiohttp.ClientSession(
            connector=connector,
            timeout=_NO_TIMEOUT,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        ) as http,
        http.post(
            f"{'http' if endpoint.is_plain else 'https'}://{host}:{endpoint.port}{endpoint.path}",
            data=posted.body,
            headers=posted.headers(),
            allow_redirects=False,
        ) as response,
    ):
        read = bytearray()
        if response.status == read_status:
            async for part in response.content.iter_chunked(64 * 1024):
                read += part
                if len(read) > max_answer_bytes:
                    raise AnswerTooLarge
        retry_after = parse_retry_after(response.headers.get("Retry-After", ""), utc_now())
        return PostAnswer(response.status, bytes(read), retry_after)


def parse_retry_after(text: str, now: datetime) -> timedelta | None:
    """Return the pause of a `Retry-After`: seconds or a date, at most a week; None if malformed.

    A date that has passed is no pause.
    """
    if text.isascii() and text.isdigit():
        digits = text.lstrip("0") or "0"
        is_long = len(digits) > len(str(_MAX_DELAY_SECONDS))
        return timedelta(seconds=_MAX_DELAY_SECONDS if is_long else min(int(digits), _MAX_DELAY_SECONDS))
    try:
        until = parsedate_to_datetime(text)
        pause = until.replace(tzinfo=until.tzinfo or UTC) - now
    except (ValueError, OverflowError):
        return None
    return min(max(pause, timedelta(0)), timedelta(seconds=_MAX_DELAY_SECONDS))


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
