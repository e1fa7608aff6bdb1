"""Vocabularies: how a model counts tokens, and how counts are estimated.

Counts are stored by one of the two vocabularies that can be counted here. A model of a family that
uses one of them is counted by it. The vocabularies of all other models are not published or not
available: their counts are estimated from the stored ones with the factors below, which are meant
to be too high for prose and for code. Text in scripts that a vocabulary hardly knows, such as
those of South Asia in cl100k_base, can take several times as many tokens: there an estimate may be
too low.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum


class Vocabulary(StrEnum):
    """Spelled as in settings, in the table and as tokenizers name them."""

    O200K = "o200k_base"
    CL100K = "cl100k_base"


@dataclass(frozen=True, slots=True)
class Measure:
    """Tokens as a model counts them: those of `vocabulary`, times `percent` for a model that only
    resembles it.
    """

    vocabulary: Vocabulary = Vocabulary.O200K
    percent: int = 100

    @property
    def is_exact(self) -> bool:
        """Return whether text counted by the vocabulary needs no estimate."""
        return self.percent == 100

    @property
    def own(self) -> str:
        """Return the vocabulary whose counts are the model's own, empty if there is none."""
        return self.vocabulary.value if self.is_exact else ""

    def takes(self, counted_by: str) -> bool:
        """Return whether a count by that vocabulary is the model's own."""
        return self.is_exact and counted_by == self.vocabulary

    def of(self, token_count: int, counted_by: str) -> int:
        """Return a count by a vocabulary in the model's tokens, rounded up."""
        if self.takes(counted_by):
            return token_count
        return -(-token_count * self._factor(counted_by) // 10_000)

    def within(self, token_count: int, counted_by: str) -> int:
        """Return the most tokens by a vocabulary that are at most so many of the model's."""
        if self.takes(counted_by):
            return token_count
        return token_count * 10_000 // self._factor(counted_by)

    def _factor(self, counted_by: str) -> int:
        """Return the model's tokens for 10,000 tokens by the vocabulary."""
        return (100 if counted_by == self.vocabulary else _ACROSS[self.vocabulary]) * self.percent


@dataclass(frozen=True, slots=True)
class CountBasis:
    """The vocabulary that counts are based on, and whether they are estimates."""

    is_estimate: bool
    vocabulary: str


def count_basis(measure: Measure, counted_by: Collection[str]) -> CountBasis:
    """Return the basis of counts in this measure, of entries counted by these vocabularies."""
    if all(map(measure.takes, counted_by)):
        return CountBasis(not measure.is_exact, measure.vocabulary)
    return CountBasis(True, next(iter(counted_by)) if len(set(counted_by)) == 1 else measure.vocabulary)


def measure_of(model: str) -> Measure:
    """Return the measure of a model, named `provider/model` or as a cloud names it."""
    name = _plain(model)
    return next((measure for pattern, measure in _FAMILIES if pattern.match(name)), _UNKNOWN)


_ACROSS = {Vocabulary.O200K: 110, Vocabulary.CL100K: 150}
"""Tokens by this vocabulary, as a percentage of those by the other.

Prose and code take 95 to 125, Chinese and Japanese up to 150 by cl100k_base.
"""

_O200K, _CL100K = Measure(Vocabulary.O200K), Measure(Vocabulary.CL100K)
_UNKNOWN = Measure(Vocabulary.O200K, 150)

_FAMILIES = tuple(
    (re.compile(pattern), measure)
    for pattern, measure in (
        (r"(chatgpt-4o|gpt-4o|gpt-4\.[15]|gpt-5|gpt-oss|codex)(?![0-9])", _O200K),
        (r"o[1-9](?![^-:@])", _O200K),
        (r"(gpt-4|gpt-3\.5|gpt-35)(?![0-9])", _CL100K),
        # Newer Claude models take up to 147 % of the tokens of the older ones for the same text.
        (r"claude-(?:[a-z]+-)?(?:4[-.][7-9]|[5-9])(?![0-9])", Measure(Vocabulary.O200K, 200)),
        # Answers report 110 to 150 % for code and prose, and more for a short message, which has a
        # dozen tokens around it.
        (r"(claude|anthropic)", Measure(Vocabulary.O200K, 150)),
        (r"(gemini|gemma)", Measure(Vocabulary.O200K, 130)),
        (r"(llama|meta-llama)", Measure(Vocabulary.O200K, 130)),
        (r"(qwen|qwq|deepseek)", Measure(Vocabulary.O200K, 130)),
        (r"(mistral|ministral|mixtral|magistral|codestral|devstral|pixtral)", Measure(Vocabulary.O200K, 150)),
    )
)

_CLOUD_PREFIX = re.compile(
    r"(?:[a-z]{2,6}\.)?(?:openai|anthropic|meta|mistral|deepseek|qwen|google|cohere|amazon)\."
)
_FINE_TUNED = re.compile(r"ft:")


def _plain(model: str) -> str:
    """Return the name without provider, region, letter case and the prefix of a fine-tuned model.

    For example, `us.anthropic.claude-…-v1:0` becomes `claude-…-v1:0`.
    """
    name = model.strip().lower().rsplit("/", 1)[-1]
    return _CLOUD_PREFIX.sub("", _FINE_TUNED.sub("", name, count=1), count=1)
