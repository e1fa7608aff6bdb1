"""Find secrets by their form and replace each with a typed marker.

The marker lets a reader of the masked text see that a secret was there. The same rules mask
transcripts and the events that plugins receive.
"""

import re
from collections.abc import Callable, Collection
from typing import NamedTuple

from spawnmesh_core.json_text import (
    MAX_NODES,
    Edit,
    List,
    Node,
    NodeBudget,
    NotJson,
    Object,
    String,
    TooManyNodes,
    apply_edits,
    parse_json,
    quoted,
)
from spawnmesh_core.secret_forms import (
    AWS_NAME,
    AWS_VALUE,
    FORMS,
    KEY_NAME,
    RANDOM_VALUE,
    Secret,
    marker,
)

# Members whose value another party issued and expects back unchanged, or whose value is no text.
_KEPT_KEYS = frozenset(
    {"id", "toolcallid", "tooluseid", "callid", "parentid", "sessionid", "runid", "entryid", "targetid"}
    | {"fromid", "messageid", "requestid", "responseid", "thinking", "thinkingsignature", "signature"}
    | {"thoughtsignature", "encryptedcontent", "sha256", "etag"}
)  # fmt: skip
_KEPT_ENDINGS = ("cursor", "pagetoken", "nexttoken", "continuationtoken", "synctoken")
_AUTHORIZATION_NAMES = ("authorization", "proxyauthorization")
_AUTHORIZATION_VALUE = re.compile(
    r"\s*(?:(?i:basic)[ \t]+(?P<basic>[A-Za-z0-9+/]{8,}={0,2})"
    r"|(?i:bearer)[ \t]+(?P<bearer>[A-Za-z0-9._~+/-]{16,}=*))\s*"
)
# One run or long lines: words and armoured private keys consist of the same characters. Never
# backtracks.
_BASE64 = re.compile(
    r"(?:data:[\w/+.;=-]++,)?"
    r"(?:[A-Za-z0-9+/_-]{256,}+|\s*+(?:[A-Za-z0-9+/]{60,}+\s++){3,}+[A-Za-z0-9+/]*+)={0,2}+\s*+"
)
_PUNCTUATION = re.compile(r"[\W_]+")


_SHORTEST = 8  # The shortest match of any form, with the text that identifies it.


class MaskedValue(NamedTuple):
    """A value that a marker replaced.

    `depth` is the number of JSON strings around the string of the value; within them it may be
    escaped.
    """

    kind: Secret
    value: str
    depth: int


class _Member(NamedTuple):
    """Properties that the name of a member implies for its value, or for each item of a list."""

    is_kept: bool = False
    is_key: bool = False
    is_aws: bool = False
    is_authorization: bool = False


_NO_MEMBER = _Member()


class _Found(list[MaskedValue]):
    """The values replaced so far, and the budget of values that may still be read.

    Values of JSON texts in strings count too. `texts` has the start positions of the strings that
    are not searched for JSON.
    """

    def __init__(self, max_values: int = MAX_NODES, texts: Collection[int] = ()) -> None:
        super().__init__()
        self.budget = NodeBudget(max_values)
        self.texts = texts


def mask_text(text: str) -> str:
    """Return the text with each secret replaced; the same text if there is none."""
    return _mask_text(text, 0, _Found())


def mask_document(text: str, *, max_values: int = MAX_NODES, texts: Collection[int] = ()) -> str:
    """Return a JSON text with the secrets in its strings and keys replaced, and every other byte
    kept.

    JSON in a string is searched as JSON, except in the strings that start at the positions `texts`:
    these are masked as `mask_text` does. Raises NotJson and TooManyNodes.
    """
    return _mask_document(text, 0, _Found(max_values, texts))


def mask_with_findings(text: str) -> tuple[str, list[MaskedValue]]:
    """Return the result of `mask_document` and the values it replaced, in order.

    Raises NotJson and TooManyNodes.
    """
    found = _Found()
    return _mask_document(text, 0, found), list(found)


def may_hold_secret(text: str) -> bool:
    """Return False only if the text has no secret.

    The check is cheap and may return True for a text without secrets: in JSON, escapes may hide any
    of them.
    """
    lower = text.casefold()
    return "\\u" in lower or any(form.may_be_in(text, lower) for form in FORMS)


def _mask_text(text: str, depth: int, hidden: _Found) -> str:
    if len(text) < _SHORTEST:
        return text
    lower = text.casefold()
    for form in FORMS:
        if form.may_be_in(text, lower):
            for anchor, pattern in form.parts:
                if anchor in text:
                    text = pattern.sub(_replacement(form.kind, depth, hidden), text)
    return text


def _mask_document(text: str, depth: int, hidden: _Found) -> str:
    if not may_hold_secret(text):
        return text
    edits: list[Edit] = []
    _mask(_NO_MEMBER, parse_json(text, hidden.budget), edits, depth, hidden)
    return apply_edits(text, edits)


def _replacement(kind: Secret, depth: int, hidden: _Found) -> Callable[[re.Match[str]], str]:
    def replaced(found: re.Match[str]) -> str:
        group = found.lastgroup or "secret"
        whole, start = found.group(), found.start()
        hidden.append(MaskedValue(kind, found[group], depth))
        return whole[: found.start(group) - start] + marker(kind) + whole[found.end(group) - start :]

    return replaced


def _member(name: str) -> _Member:
    plain = _PUNCTUATION.sub("", name.casefold())
    may_be_key = "key" in plain or "secret" in plain
    return _Member(
        is_kept=plain in _KEPT_KEYS or plain.endswith(_KEPT_ENDINGS),
        is_key=may_be_key and KEY_NAME.match(name) is not None,
        is_aws=may_be_key and AWS_NAME.match(name) is not None,
        is_authorization=plain in _AUTHORIZATION_NAMES,
    )


def _mask(member: _Member, node: Node, edits: list[Edit], depth: int, hidden: _Found) -> None:
    if isinstance(node, Object):
        for (name, child), (start, end) in zip(node.members, node.keys, strict=True):
            shown = _mask_text(name, depth, hidden)
            if shown != name:
                edits.append(Edit(start, end, quoted(shown)))
            _mask(_member(name), child, edits, depth, hidden)
    elif isinstance(node, List):
        for item in node.items:
            _mask(member, item, edits, depth, hidden)
    elif isinstance(node, String):
        is_text = depth == 0 and node.start in hidden.texts
        masked = _masked_value(member, node.value, depth, hidden, is_text=is_text)
        if masked != node.value:
            edits.append(Edit(node.start, node.end, quoted(masked)))


def _masked_value(member: _Member, value: str, depth: int, hidden: _Found, *, is_text: bool) -> str:
    if member.is_kept or _BASE64.fullmatch(value):
        return value
    if (member.is_key and RANDOM_VALUE.fullmatch(value)) or (member.is_aws and AWS_VALUE.fullmatch(value)):
        hidden.append(MaskedValue(Secret.PROVIDER_KEY, value, depth))
        return marker(Secret.PROVIDER_KEY)
    if member.is_authorization and (given := _AUTHORIZATION_VALUE.fullmatch(value)):
        group = given.lastgroup or ""
        hidden.append(MaskedValue(Secret.BEARER_TOKEN, given[group], depth))
        return value[: given.start(group)] + marker(Secret.BEARER_TOKEN) + value[given.end(group) :]
    masked = _mask_text(value, depth, hidden)
    if not is_text and "\\" in masked and masked.lstrip()[:1] in ("{", "["):
        try:
            # An escape of the JSON text may hide a secret.
            return _mask_document(masked, depth + 1, hidden)
        except TooManyNodes:
            raise  # A text that was searched only in part must not pass as masked.
        except NotJson:
            return masked
    return masked
