"""Find the text of an error response that only repeats the request.

A provider quotes what it refuses, and the caller chooses that text.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from spawnmesh_model_router.domain.unicode import repair_surrogates

_MAX_CHECKS: Final = 64  # Each check searches the complete request.
_TOKEN: Final = re.compile(r"[^\W_]+")
_QUOTATION: Final = re.compile(r"[\"'`]")
_NOT_PLAIN: Final = re.compile(r"[^ -~\s]+")
# Includes invisible characters that some providers drop: combining marks, joiners, variants.
_BLANK_CODES: Final = (*range(0x3100), *range(0xFE00, 0xFE70), 0xFEFF, *range(0xFFF0, 0x10000))
_BLANK: Final = {code: " " for code in _BLANK_CODES if not chr(code).isalnum()}
# Escapes of JSON, Python and similar languages, possibly escaped more than once.
_ESCAPE: Final = re.compile(
    r"\\+(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|U((?:000[0-9a-fA-F]|0010)[0-9a-fA-F]{4})|(.))", re.DOTALL
)
_CONTROLS: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "0": "\0"}
# Traces of an escape, an HTML entity or a URL encoding.
_ESCAPED: Final = re.compile(r"\\|&#?\w{1,32};|%[0-9a-f]{2}", re.IGNORECASE)


@dataclass
class PromptEchoFilter:
    """Separates a provider's own words from those that repeat one request.

    `texts` returns all texts of the request. `names` returns those that a provider inserts into a
    sentence without quotation marks: ids, names of tools, types of images. Both are called on first
    use.
    """

    texts: Callable[[], Iterable[str]]
    names: Callable[[], Iterable[str]]
    checks: int = 0

    def is_own(self, match: str) -> bool:
        """Return whether the matched text is the provider's own.

        It is not if a part between two quotation marks occurs in the request, if it begins or ends
        inside a name of the request, or if it contains an escape. After 64 checks no text is.
        """
        self.checks += 1
        if self.checks > _MAX_CHECKS or _ESCAPED.search(match):
            return False
        if not self._edges.isdisjoint(_TOKEN.findall(match.lower())):
            return False
        parts = filter(None, map(_words, _QUOTATION.split(match)))
        return not any(part in self._request_words for part in parts)

    @cached_property
    def _request_words(self) -> str:
        return "\n".join(_words(reading) for text in self.texts() for reading in _readings(text))

    @cached_property
    def _edges(self) -> frozenset[str]:
        tokens = (_TOKEN.findall(name.lower()) for name in self.names())
        return frozenset(edge for found in tokens if found for edge in (found[0], found[-1]))


def unescape(text: str) -> str:
    """Replace each escape by its character."""
    return repair_surrogates(_ESCAPE.sub(_character, text)) if "\\" in text else text


def _character(escape: re.Match[str]) -> str:
    code = escape[1] or escape[2] or escape[3]
    return chr(int(code, 16)) if code else _CONTROLS.get(escape[4], escape[4])


def _readings(text: str) -> Iterator[str]:
    """Yield the text, and how a provider may repeat it: unescaped, or only its printable ASCII."""
    yield text
    if "\\" in text:
        yield unescape(text)
    if (plain := _NOT_PLAIN.sub("", text)) != text:
        yield plain


def _words(text: str) -> str:
    """Normalize the text for comparison: lower case, NFKC, words separated by one space."""
    return " ".join(unicodedata.normalize("NFKC", text.lower()).translate(_BLANK).split())
