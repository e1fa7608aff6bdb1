"""Collects what a failure says: its HTTP status, the names of its error, and its texts, also from nested bodies."""

import json
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from spawnmesh_model_router.domain.names import words_of_name
from spawnmesh_model_router.domain.reasons import ModelFailure

# Bounds: a provider's answer decides how much work judging it is.
MAX_CAUSES = 25
MAX_TEXT_CHARS = 8192
MAX_CHARS = 32_768  # Of all texts together: whoever names many of them has many of them searched.
MAX_TEXTS = 512
MAX_BODY_DEPTH = 6
MAX_BODY_ITEMS = 64

_NAME_FIELDS = ("code", "type", "status", "reason", "error")
_TEXT_FIELDS = ("message", "detail", "msg", "error_description", "raw")
_STATUS_FIELDS = ("status", "code", "status_code", "statusCode", "http_status")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.\-]{1,79}")
# `ThrottlingException: …`, `botocore.errorfactory.ValidationException`, `An error occurred (InternalFailure) when calling`
_EXCEPTION = re.compile(r"\b[A-Za-z]{3,60}(?:Exception|Error)\b|(?<=error occurred \()[A-Z][A-Za-z]{2,60}(?=\))")
# A text that is, or begins with, the name of an error: `not_found_error`, `RATE_LIMIT_EXCEEDED: …`
_SPELLED = re.compile(r"\s*([A-Za-z]+(?:_[A-Za-z]+)+)\s*(?::|$)")
_HTML = re.compile(r"<!doctype\s+html|<html\b", re.IGNORECASE)
_NO_BODY = re.compile(r"\bno (?:response )?body\b", re.IGNORECASE)

# A number is a status only where the text presents it as one; a number in prose ("4291", "402 records") is not.
_STATUS_FORMS = tuple(
    re.compile(form, re.IGNORECASE)
    for form in (
        r"^\s*(?:error:?\s+)?([45]\d\d)(?=[\s:;,.\-]|$)(?!\s+(?:records?|rows?|items?|files?|tokens?|messages?)\b)",
        r"\bhttp(?:/\d(?:\.\d)?)?(?:\s+(?:status|error|code))*[\s:=]+([45]\d\d)\b",
        r"\bstatus(?:[\s_]?code)?\s*(?:was|is|of|[:=])?\s*([45]\d\d)\b",
        r"\berror code\s*[:=]?\s*([45]\d\d)\b",
        r"\b([45]\d\d) status code\b",
        r"\b(?:got|received|returned|responded with|failed with)\s+(?:an?\s+)?([45]\d\d)"
        r"(?=\s*(?:$|[.,:;)]|response|status|error|from|payment))",
    )
)


@dataclass(frozen=True)
class Evidence:
    """A failure taken apart. `names` are error codes and types as given; `texts` also contain them.

    `distinct` leaves out the texts that stand in another one as they are: whoever searches need not search them twice.
    `given` are the names that the answer itself gives as its code or type, as given and as they read; those of objects further inside
    may be parts of the request. `status_wording` is what the status was read from, empty where it is the answer's own. `meant` are the texts,
    in the place of JSON what it says: its texts and numbers, each for itself.
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


def gather(failure: ModelFailure) -> Evidence:
    """Takes `failure` apart. The status of the answer itself beats one that is only written in a body or a text."""
    raw = [failure.message, *failure.details[:MAX_CAUSES], *failure.cause_messages[:MAX_CAUSES]]
    texts = _bounded(text.strip() for text in raw)
    names = [name.strip() for name in (failure.code, failure.error_type) if name.strip()]
    given = set(names)
    status = failure.status or next((found for name in names if (found := _as_status(name)) is not None), None)
    wording = ""
    meant: list[str] = []
    for text in tuple(texts):
        whole, around = _opened(text)
        meant += [*filter(None, around), *islice(_leaves(whole), MAX_TEXTS)]
        answer: list[object] = []
        if isinstance(whole, dict) and text.startswith(("{", "[")) and failure.message.strip().startswith(text):
            answer = [whole, whole.get("error")]
            given.update(_names_in(answer[0]), _names_in(answer[1]))
        for body in _objects(whole):
            if len(names) + len(texts) < MAX_TEXTS:
                names += _names_in(body)
                texts += [value for field in _TEXT_FIELDS if isinstance(value := body.get(field), str) and value]
            if status is None and (status := _status_in_body(body)) is not None:
                wording = "" if any(body is own for own in answer) else str(status)
        if status is None:
            status, wording = _status_in_text(text)
    names += [spelled[1] for text in tuple(texts[:MAX_CAUSES]) if (spelled := _SPELLED.match(text))]
    raised = [found[0] for text in texts[:MAX_CAUSES] for found in _EXCEPTION.finditer(text)][:MAX_CAUSES]
    everything = tuple(dict.fromkeys([*texts, *names, *map(words_of_name, names)]))
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


def _bounded(given: Iterable[str]) -> list[str]:
    """The texts that say something, each and all together no longer than the bounds."""
    texts, left = [], MAX_CHARS
    for text in given:
        if text and left:
            texts.append(text[: min(MAX_TEXT_CHARS, left)])
            left -= len(texts[-1])
    return texts


def _distinct(texts: Collection[str]) -> tuple[str, ...]:
    """The texts but those that stand between quotation marks in one of the others."""
    quoted = {piece for text in texts for piece in text.split('"')[1:-1]}
    return tuple(text for text in texts if text not in quoted)


def _names_in(body: object) -> list[str]:
    if not isinstance(body, dict):
        return []
    return [value for field in _NAME_FIELDS if isinstance(value := body.get(field), str) and _is_name(value)]


def _status_in_text(text: str) -> tuple[int | None, str]:
    """The status, and the words that present it."""
    return next(((int(found[1]), found[0]) for form in _STATUS_FORMS if (found := form.search(text))), (None, ""))


def _status_in_body(body: dict[str, object]) -> int | None:
    return next((found for field in _STATUS_FIELDS if (found := _as_status(body.get(field))) is not None), None)


def _as_status(value: object) -> int | None:
    digits = str(value) if isinstance(value, int | str) else ""
    return int(digits) if re.fullmatch(r"[45]\d\d", digits) else None


def _is_name(value: str) -> bool:
    return _NAME.fullmatch(value) is not None


def _opened(text: str) -> tuple[object, tuple[str, str]]:
    """The first JSON object of `text`, None without one, and what stands before and behind it."""
    start = text.find("{")
    if start < 0 or text.rfind("}") < start:
        return None, (text, "")
    try:
        whole, end = json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError):
        return None, (text, "")
    return whole, (text[:start].strip(), text[end:].strip())


def _objects(whole: object) -> Iterator[dict[str, object]]:
    """Every object inside, outermost first."""
    pending = [(whole, 0)]
    seen = 0
    while pending and seen < MAX_BODY_ITEMS:
        value, depth = pending.pop(0)
        seen += 1
        if isinstance(value, dict):
            yield value
        if depth < MAX_BODY_DEPTH:
            children = [child for child in _children(value) if isinstance(child, dict | list)]
            pending += [(child, depth + 1) for child in children[:MAX_BODY_ITEMS]]


def _leaves(whole: object) -> Iterator[str]:
    """Every text and number inside."""
    pending = [whole]
    while pending:
        value = pending.pop()
        pending += reversed(_children(value))
        if isinstance(value, str | int | float):
            yield str(value)


def _children(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []
