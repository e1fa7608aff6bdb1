"""Convert an exception of an SDK to a classified failure, which never contains the
provider's text.
"""

import json
import re
from typing import Any

import aiohttp
import httpx2
from spawnmesh_core.clock import utc_now

from spawnmesh_model_router.clients.providers.idle_timeout import StreamIdleTimeout
from spawnmesh_model_router.clients.providers.provider_request import ProviderRequest
from spawnmesh_model_router.domain.answer import ProviderFailed
from spawnmesh_model_router.domain.audience import is_conclusive
from spawnmesh_model_router.domain.classify import classify, is_about_request, reason_of_status
from spawnmesh_model_router.domain.cooldown import has_same_cooldown, scope_of
from spawnmesh_model_router.domain.evidence import MAX_CAUSES
from spawnmesh_model_router.domain.prompt_echo import PromptEchoFilter
from spawnmesh_model_router.domain.reasons import FailoverReason, ModelFailure
from spawnmesh_model_router.domain.retry import parse_retry_after

_DELAY = re.compile(r"(\d+(?:\.\d+)?)s")


def to_provider_failure(
    error: Exception, provider: str, request: ProviderRequest, *, has_output: bool
) -> ProviderFailed:
    """Return the failure for the exception of a call to `provider` with the request.

    A model that began to answer without output may be thinking, as long as the request makes it
    think: its silence causes no cooldown. A silence after output does, so that the caller's next
    call reaches another model.
    """
    if isinstance(error, ProviderFailed):
        return error
    if isinstance(error, TimeoutError):
        may_think = isinstance(error, StreamIdleTimeout) and not has_output
        detail = "no answer in time"
        return ProviderFailed(FailoverReason.TIMEOUT, detail, is_about_request=may_think, is_silent=True)
    if isinstance(error, ValueError | TypeError | AttributeError | KeyError | IndexError | RecursionError):
        return _unreadable()
    if _is_broken(error):
        return ProviderFailed(FailoverReason.TIMEOUT, "the connection broke")
    try:
        return _judge_answer(error, provider, request)
    except RecursionError:  # An SDK has parsed a body that is too deep to be written again.
        return _unreadable()


def _unreadable() -> ProviderFailed:
    return ProviderFailed(FailoverReason.SERVER_ERROR, "the answer cannot be read")


def _judge_answer(error: Exception, provider: str, request: ProviderRequest) -> ProviderFailed:
    status = _status(error)
    failure = _evidence(error, status, provider)
    reason = classify(failure)
    is_answer = status is not None or bool(getattr(error, "body", None))
    rests = scope_of(reason) is not None and not has_same_cooldown(reason, reason_of_status(status))
    if is_answer and (rests or reason is FailoverReason.NO_FAILOVER):
        # Text that the provider only repeats must not cause a cooldown.
        # Its text is also never about our own machine.
        reason = classify(failure, PromptEchoFilter(request.texts, request.names))
    detail = f"the provider answered HTTP {status}" if status else "the call failed"
    return ProviderFailed(
        reason,
        detail,
        http_status=status or 0,
        retry_after_seconds=_retry_after(error),
        is_about_request=is_about_request(failure, reason),
        is_conclusive=is_conclusive(reason, status or 0, is_answer=is_answer),
    )


def _is_broken(error: BaseException) -> bool:
    """Return whether the HTTP response was incomplete.

    The transport's messages then contain numbers that look like a status.
    """
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return False
    if isinstance(error, httpx2.ReadError | aiohttp.ClientResponseError):
        return True
    cause = error.__cause__ or error.__context__
    return cause is not None and _is_broken(cause)


def _status(error: Exception) -> int | None:
    """Return the status of an error response; None if a response with status 200 broke off."""
    # Google's SDK uses `code`.
    given = (getattr(error, name, None) for name in ("status_code", "code"))
    return next((status for status in given if isinstance(status, int) and 300 <= status <= 599), None)


def _evidence(error: Exception, status: int | None, provider: str) -> ModelFailure:
    body = getattr(error, "body", None)
    if status is not None:
        # The raw text: the message of an SDK has text even if the provider sent none.
        message = _response_text(error)
    elif body:
        message = body if isinstance(body, str) else json.dumps(body, default=str)
    else:
        message = str(error)
    code, kind = getattr(error, "code", None), getattr(error, "type", None)
    return ModelFailure(
        status=status,
        message=message,
        code=code if isinstance(code, str) else "",
        error_type=kind
        if isinstance(kind, str)
        else ("" if status is not None or body else type(error).__name__),
        provider=provider,
        cause_messages=_causes(error) if status is None else (),
    )


def _response_text(error: Exception) -> str:
    if details := getattr(error, "details", None):  # Google's SDK has already read the body.
        return details if isinstance(details, str) else json.dumps(details, default=str)
    response: Any = getattr(error, "response", None)
    try:
        content: bytes = response.content
        try:
            return content.decode()
        except UnicodeDecodeError:
            return str(response.text)  # Decoded as the headers say.
    except Exception:  # noqa: BLE001 - a body that was not read or cannot be decoded is no evidence
        return ""


def _causes(error: BaseException) -> tuple[str, ...]:
    texts: list[str] = []
    cause = error.__cause__ or error.__context__
    while cause is not None and len(texts) < 2 * MAX_CAUSES:
        texts += [str(cause), type(cause).__name__]
        cause = cause.__cause__ or cause.__context__
    return tuple(text for text in texts if text)[:MAX_CAUSES]


def _retry_after(error: Exception) -> float | None:
    headers: Any = getattr(getattr(error, "response", None), "headers", None) or {}
    milliseconds = parse_retry_after(headers.get("retry-after-ms", ""), utc_now())
    if milliseconds is not None:
        return milliseconds / 1000
    seconds = parse_retry_after(headers.get("retry-after", ""), utc_now())
    return _delay_in_details(_response_text(error)) if seconds is None else seconds


def _delay_in_details(text: str) -> float | None:
    """Return the `retryDelay` in the details of Google's error.

    Other places of the body may repeat the request.
    """
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return None
    error = _field(body[0] if isinstance(body, list) and body else body, "error")
    details = _field(error, "details")
    delays = (_field(detail, "retryDelay") for detail in (details if isinstance(details, list) else ()))
    found = (_DELAY.fullmatch(delay) for delay in delays if isinstance(delay, str))
    return next((float(delay[1]) for delay in found if delay), None)


def _field(value: object, name: str) -> object:
    return value.get(name) if isinstance(value, dict) else None
