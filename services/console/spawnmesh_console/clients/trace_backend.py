"""The backend of traces, such as Jaeger or Tempo: the spans of a trace by its id."""

import asyncio
import re
import ssl
from dataclasses import dataclass
from pathlib import Path

import httpx2
import structlog
from spawnmesh_core.spans import Span
from spawnmesh_runtime.otlp_json import traces_of_json
from spawnmesh_runtime.otlp_spans import spans_of

from spawnmesh_console.clients.bounded_answer import AnswerTooLong, bounded_answer
from spawnmesh_console.domain.trace_problems import TraceProblem
from spawnmesh_console.settings import ConsoleSettings

_SECONDS = 10.0
_MAX_BYTES = 8 * 1024 * 1024  # Some 10,000 spans of a mesh.
_AT_ONCE = 2  # A large trace takes some 100 MiB while it is read.
_TRACE_ID = re.compile(r"[0-9a-f]{32}")
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x20-\x7e\t]*)")

log = structlog.get_logger()


class TraceUnavailable(Exception):
    """The trace cannot be read."""

    def __init__(self, problem: TraceProblem) -> None:
        super().__init__(problem)
        self.problem = problem


@dataclass(frozen=True, slots=True)
class FetchedTrace:
    """The spans of a trace, of all tenants. If not `is_whole`, the backend left some out."""

    spans: list[Span]
    is_whole: bool


class TraceBackend:
    """The backend that the settings name. It has the traces of all tenants."""

    def __init__(self, settings: ConsoleSettings, *, seconds: float = _SECONDS) -> None:
        self._seconds = seconds
        self._url = settings.traces_url
        self._headers_file = settings.traces_headers_file
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._trusted: ssl.SSLContext = httpx2.create_ssl_context()
        try:
            _headers_in(self._headers_file)
        except (OSError, ValueError):
            raise SystemExit(
                "console: CONSOLE_TRACES_HEADERS_FILE cannot be read as headers, each a line `Name: value`"
            ) from None

    async def fetch(self, trace_id: str) -> FetchedTrace:
        """Return the trace. Raises TraceUnavailable."""
        if not _TRACE_ID.fullmatch(trace_id):
            raise TraceUnavailable(TraceProblem.NO_TRACE)
        try:
            async with asyncio.timeout(self._seconds), self._turns:
                body = await self._get(trace_id)
                return await asyncio.to_thread(_read, body)
        except AnswerTooLong:
            raise TraceUnavailable(TraceProblem.TOO_LARGE) from None
        except (TimeoutError, httpx2.TimeoutException):
            raise _failed(TraceProblem.TOO_SLOW, f"no answer in {self._seconds:g} s") from None
        except httpx2.HTTPError as error:
            raise _failed(TraceProblem.UNREACHABLE, f"{type(error).__name__}: {error}") from None
        except OSError as error:
            raise _failed(TraceProblem.FAILED, f"the headers cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise _failed(TraceProblem.UNREADABLE, str(error)) from None

    async def _get(self, trace_id: str) -> bytes:
        async with httpx2.AsyncClient(
            verify=self._trusted,
            timeout=self._seconds,
            follow_redirects=False,
            event_hooks={"response": [bounded_answer(_MAX_BYTES)]},
        ) as client:
            headers = [("accept", "application/json"), ("accept-encoding", "identity")]
            headers += await asyncio.to_thread(_headers_in, self._headers_file)
            answer = await client.get(self._url.replace("{trace_id}", trace_id), headers=headers)
        if answer.status_code == httpx2.codes.OK:
            return answer.content
        if answer.status_code == httpx2.codes.NOT_FOUND:
            raise TraceUnavailable(TraceProblem.NO_SPANS)
        is_refusal = answer.status_code in (httpx2.codes.UNAUTHORIZED, httpx2.codes.FORBIDDEN)
        problem = TraceProblem.REFUSED if is_refusal else TraceProblem.FAILED
        raise _failed(problem, f"status {answer.status_code}")


def _read(body: bytes) -> FetchedTrace:
    traces, is_whole = traces_of_json(body)
    return FetchedTrace([*spans_of(traces.resource_spans)], is_whole)


def _headers_in(file: Path | None) -> list[tuple[str, str]]:
    """Return the headers of the file. Raises OSError and ValueError."""
    if file is None:
        return []
    found = [_HEADER.fullmatch(line) for line in file.read_text().splitlines() if line.strip()]
    if None in found:
        raise ValueError("a line is no header")
    return [(header[1], header[2].strip()) for header in found if header is not None]


def _failed(problem: TraceProblem, why: str) -> TraceUnavailable:
    """Return the exception, and log why: the page does not say it."""
    log.warning("trace_unreadable", problem=problem.value, why=why[:200])
    return TraceUnavailable(problem)
