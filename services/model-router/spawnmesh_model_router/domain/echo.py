"""What a provider's answer repeats of the request: it quotes what it refuses, and a caller chooses what that is."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

_MOST_CHECKS: Final = 64  # Each one looks through the whole request.
_TOKEN: Final = re.compile(r"[^\W_]+")
_QUOTATION: Final = re.compile(r"[\"'`]")
_BLANK: Final = {code: " " for code in range(128) if not chr(code).isalnum()}


@dataclass
class Echo:
    """What one request carried, to tell a provider's own words from those that it repeats. Nothing is looked at before it is needed.

    `texts` gives all of them; `names` those that a provider puts into its sentences without marks: ids, names of tools, types of images.
    """

    texts: Callable[[], Iterable[str]]
    names: Callable[[], Iterable[str]]
    checks: int = 0

    def is_own(self, match: str) -> bool:
        """Whether the provider says this itself: no part of it between two quotation marks stands in the request, and it neither ends nor
        begins in a name from there. An answer that has repeated too much says nothing itself."""
        self.checks += 1
        if self.checks > _MOST_CHECKS or not self._edges.isdisjoint(_TOKEN.findall(match.lower())):
            return False
        parts = filter(None, map(_words, _QUOTATION.split(match)))
        return not any(part in self._carried for part in parts)

    @cached_property
    def _carried(self) -> str:
        return "\n".join(map(_words, self.texts()))

    @cached_property
    def _edges(self) -> frozenset[str]:
        tokens = (_TOKEN.findall(name.lower()) for name in self.names())
        return frozenset(edge for found in tokens if found for edge in (found[0], found[-1]))


def _words(text: str) -> str:
    """The text as texts are compared: its words, whatever stands between them."""
    return " ".join(text.lower().translate(_BLANK).split())
