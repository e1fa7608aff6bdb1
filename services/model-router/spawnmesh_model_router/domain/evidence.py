"""Extract the evidence of a failure: its HTTP status, the names of its error, and its texts.

Nested JSON bodies are read as well.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from spawnmesh_model_router.domain.error_names import words_of_name
from spawnmesh_model_router.domain.reasons import ModelFailure
from spawnmesh_model_router.domain.status_text import status_in_text

# The response of a provider must not decide how much work its classification is.
MAX_CAUSES = 25
MAX_TEXT_CHARS = 8192
MAX_CHARS = 32_768  # Of all texts together.
MAX_TEXTS = 512
MAX_BODY_DEPTH = 6
MAX_BODY_ITEMS = 64

_NAME_FIELDS = ("code", "type", "status", "reason", "error")
_TEXT_FIELDS = ("message", "detail", "msg", "error_description", "raw")
_STATUS_FIELDS = ("status", "code", "status_code", "statusCode", "http_status")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.\-]{1,79}")
# `ThrottlingException: …`, `botocore.errorfactory.ValidationException`, `An error occurred
# (InternalFailure) when calling`
_EXCEPTION = re.compile(
    r"\b[A-Za-z]{3,60}(?:Exception|Error)(?:[A-Z][a-z]{2,20})?\b"
    r"|(?<=error occurred \()[A-Z][A-Za-z]{2,60}(?=\))"
)
# A text that is the name of an error, or begins with it: `not_found_error`,
# `RATE_LIMIT_EXCEEDED: …`, `ResourceExhausted`
_SPELLED = re.compile(r"\s*([A-Za-z]+(?:_[A-Za-z]+)+(?=\s*(?::|$))|[A-Z][a-z]+(?:[A-Z][a-z]+)+(?=\s*$))")
# A class that a proxy or an SDK chose by the status, before the provider's own words.
_WRAPPER = re.compile(
    r"(?:\b[a-z]+\.(?:exceptions\.)?)?\b(?:BadRequest|Authentication|PermissionDenied|NotFound|RateLimit"
    r"|UnprocessableEntity|InternalServer|ServiceUnavailable|APIConnection|APIStatus|API|MidStreamFallback)"
    r"Error:\s+(?=\S)"
)
_HTML = re.compile(r"<!doctype\s+html|<html\b", re.IGNORECASE)
_NO_BODY = re.compile(r"\bno (?:response )?body\b", re.IGNORECASE)


@dataclass(frozen=True)
class Evidence:
    """The evidence of a failure.

    - `names` are error codes and types as the response spells them. `texts` contain them, too.
    - `distinct` are the texts without those that occur unchanged in another one. Both are without
      the classes of proxies and SDKs.
    - `given` are the names that the response itself has as its code or type, as spelled and as
      words. Names of objects further inside may be parts of the request.
    - `status_wording` is the text that the status was read from; empty for the status of the
      response itself.
    - `meant` are the texts, with each text and number of a JSON body by itself.
    """

    status: int | None
    status_wording: str
    names: tuple[str, ...]
    texts: tuple[str, ...]
    distinct: tuple[str, ...]
    meant: tuple[str, ...]
    given: frozenset[str]
    provider: str
    has_body: bool
    is_html: bool


def extract_evidence(failure: ModelFailure) -> Evidence:
    """Extract the evidence of the failure.

    The status of the response has precedence over one in a body or a text.
    """
    raw = [failure.message, *failure.details[:MAX_CAUSES], *failure.cause_messages[:MAX_CAUSES]]
    texts = _bounded(text.strip() for text in raw)
    names = [name.strip() for name in (failure.code, failure.error_type) if name.strip()]
    given = set(names)
    status = failure.status or next(
        (found for name in names if (found := _as_status(name)) is not None), None
    )
    wording = ""
    meant: list[str] = []
    for text in tuple(texts):
        body_root, around = _first_object(text)
        meant += [*filter(None, around), *islice(_leaves(body_root), MAX_TEXTS)]
        answer: list[object] = []
        if (
            isinstance(body_root, dict)
            and text.startswith(("{", "["))
            and failure.message.strip().startswith(text)
        ):
            answer = [body_root, body_root.get("error")]
            given.update(_names_in(answer[0]), _names_in(answer[1]))
        for body in _objects(body_root):
            if len(names) + len(texts) < MAX_TEXTS:
                names += _names_in(body)
                texts += [
                    value for field in _TEXT_FIELDS if isinstance(value := body.get(field), str) and value
                ]
            if status is None and (status := _status_in_body(body)) is not None:
                wording = "" if any(body is own for own in answer) else str(status)
        if status is None:
            status, wording = status_in_text(text)
    stated = [without_wrappers(text) for text in texts]
    names += [spelled[1] for text in tuple(texts[:MAX_CAUSES]) if (spelled := _SPELLED.match(text))]
    raised = [found[0] for text in texts[:MAX_CAUSES] for found in _EXCEPTION.finditer(text)][:MAX_CAUSES]
    worded = [*names, *(name for name in raised if not _WRAPPER.search(f"{name}: _"))]
    everything = tuple(dict.fromkeys([*stated, *names, *map(words_of_name, worded)]))
    return Evidence(
        status=status,
        status_wording=wording,
        names=tuple(dict.fromkeys([*names, *raised])),
        texts=everything,
        distinct=_distinct(everything),
        meant=tuple(dict.fromkeys(meant)),
        given=frozenset([*given, *map(words_of_name, given)]),
        provider=failure.provider.strip().lower(),
        has_body=bool(texts or names) and not any(_NO_BODY.search(text) for text in texts),
        is_html=any(_HTML.search(text) for text in texts),
    )


def without_wrappers(text: str) -> str:
    """Return the text without the classes of proxies and SDKs, which say no more than a status."""
    return _WRAPPER.sub("", text)


def _bounded(given: Iterable[str]) -> list[str]:
    """Return the non-empty texts, cut to the bounds of each text and of all texts."""
    texts, left = [], MAX_CHARS
    for text in given:
        if text and left:
            texts.append(text[: min(MAX_TEXT_CHARS, left)])
            left -= len(texts[-1])
    return texts


def _distinct(texts: Collection[str]) -> tuple[str, ...]:
    """Return the texts without those that another one contains between quotation marks."""
    quoted = {piece for text in texts for piece in text.split('"')[1:-1]}
    return tuple(text for text in texts if text not in quoted)


def _names_in(body: object) -> list[str]:
    if not isinstance(body, dict):
        return []
    return [value for field in _NAME_FIELDS if isinstance(value := body.get(field), str) and _is_name(value)]


def _status_in_body(body: dict[str, object]) -> int | None:
    return next(
        (found for field in _STATUS_FIELDS if (found := _as_status(body.get(field))) is not None), None
    )


def _as_status(value: object) -> int | None:
    digits = str(value) if isinstance(value, int | str) else ""
    return int(digits) if re.fullmatch(r"[45]\d\d", digits) else None


def _is_name(value: str) -> bool:
    return _NAME.fullmatch(value) is not None


def _first_object(text: str) -> tuple[object, tuple[str, str]]:
    """Return the first JSON object of the text (None without one), and the text around it."""
    start = text.find("{")
    if start < 0 or text.rfind("}") < start:
        return None, (text, "")
    try:
        body_root, end = json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError):
        return None, (text, "")
    return body_root, (text[:start].strip(), text[end:].strip())


def _objects(body_root: object) -> Iterator[dict[str, object]]:
    """Yield every object inside, outermost first."""
    pending = [(body_root, 0)]
    seen = 0
    while pending and seen < MAX_BODY_ITEMS:
        value, depth = pending.pop(0)
        seen += 1
        if isinstance(value, dict):
            yield value
        if depth < MAX_BODY_DEPTH:
            children = [child for child in _children(value) if isinstance(child, dict | list)]
            pending += [(child, depth + 1) for child in children[:MAX_BODY_ITEMS]]


def _leaves(body_root: object) -> Iterator[str]:
    """Yield every text and number inside."""
    pending = [body_root]
    while pending:
        value = pending.pop()
        pending += reversed(_children(value))
        if isinstance(value, str | int | float):
            yield str(value)


def _children(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []
