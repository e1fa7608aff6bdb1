"""What a provider's answer repeats of the request: it quotes what it refuses, and a caller chooses what that is."""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from spawnmesh_model_router.domain.unicode import mended

_MOST_CHECKS: Final = 64  # Each one looks through the whole request.
_TOKEN: Final = re.compile(r"[^\W_]+")
_QUOTATION: Final = re.compile(r"[\"'`]")
_NOT_PLAIN: Final = re.compile(r"[^ -~\s]+")
# Also what nobody sees and some leave out: marks of accents, joiners, variants.
_BLANK_CODES: Final = (*range(0x3100), *range(0xFE00, 0xFE70), 0xFEFF, *range(0xFFF0, 0x10000))
_BLANK: Final = {code: " " for code in _BLANK_CODES if not chr(code).isalnum()}
# As JSON, Python and their like spell characters, in a text that may have been escaped more than once.
_ESCAPE: Final = re.compile(
    r"\\+(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|U((?:000[0-9a-fA-F]|0010)[0-9a-fA-F]{4})|(.))", re.DOTALL
)
_CONTROLS: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "0": "\0"}
# What an escape, an entity of HTML or a part of an address leaves in a text.
_ESCAPED: Final = re.compile(r"\\|&#?\w{1,32};|%[0-9a-f]{2}", re.IGNORECASE)


@dataclass
class Echo:
    """What one request carried, to tell a provider's own words from those that it repeats. Nothing is looked at before it is needed.

    `texts` gives all of them; `names` those that a provider puts into its sentences without marks: ids, names of tools, types of images.
    """

    texts: Callable[[], Iterable[str]]
    names: Callable[[], Iterable[str]]
    checks: int = 0

    def is_own(self, match: str) -> bool:
        """Whether the provider says this itself: no part of it between two quotation marks stands in the request, it neither ends nor begins in
        a name from there, and nothing in it is escaped. An answer that has repeated too much says nothing itself."""
        self.checks += 1
        if self.checks > _MOST_CHECKS or _ESCAPED.search(match):
            return False
        if not self._edges.isdisjoint(_TOKEN.findall(match.lower())):
            return False
        parts = filter(None, map(_words, _QUOTATION.split(match)))
        return not any(part in self._carried for part in parts)

    @cached_property
    def _carried(self) -> str:
        return "\n".join(_words(reading) for text in self.texts() for reading in _readings(text))

    @cached_property
    def _edges(self) -> frozenset[str]:
        tokens = (_TOKEN.findall(name.lower()) for name in self.names())
        return frozenset(edge for found in tokens if found for edge in (found[0], found[-1]))


def spelled_out(text: str) -> str:
    """The text with each character in the place of its escape."""
    return mended(_ESCAPE.sub(_character, text)) if "\\" in text else text


def _character(escape: re.Match[str]) -> str:
    code = escape[1] or escape[2] or escape[3]
    return chr(int(code, 16)) if code else _CONTROLS.get(escape[4], escape[4])


def _readings(text: str) -> Iterator[str]:
    """The text as it is, and as a provider may have it: without its escapes, or without what cannot be seen or is not ASCII."""
    yield text
    if "\\" in text:
        yield spelled_out(text)
    if (plain := _NOT_PLAIN.sub("", text)) != text:
        yield plain


def _words(text: str) -> str:
    """The text as texts are compared: its words, whatever stands between them, and whichever of their forms the characters have."""
    return " ".join(unicodedata.normalize("NFKC", text.lower()).translate(_BLANK).split())
