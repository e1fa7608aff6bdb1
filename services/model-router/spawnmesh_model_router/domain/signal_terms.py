"""Terms of failed model calls that several subjects share, and how they form phrases.

A phrase states a meaning, such as "money that is used up", by two groups of terms in either order.
Providers word the same meaning in many ways, so a phrase also matches wordings that are not listed.
The phrases are written as those of `signals.row`: lower case, and a blank also matches `_`.
"""

from typing import Final

# Words and blanks share no character, and blanks match possessively. Otherwise a long run of `_`
# would backtrack for minutes.
WORD: Final = r"[^\s_]{1,40}"
# A word that ends no sentence: the next sentence may be about something else.
INNER: Final = r"[^\s_]{0,60}[^\s_.:;!?]"

PERIOD: Final = r"(?:hourly|daily|weekly|monthly|yearly)"
# Not, and words such as "isn't" and "doesn't".
NOT: Final = r"(?:not|\w{1,6}n[^\w\s]t)"
BE: Final = r"(?:is|are|was|were|be|been|has been|have been|had been|being|got)"
CANNOT: Final = r"(?:could not|couldn.?t|cannot|can.?t|can not|unable to|failed to|failure to|not able to)"
HAVE_NOT: Final = rf"{NOT} (?:currently |yet )?(?:have|include|contain)"


def near(terms: str, others: str, words: int) -> str:
    """Return a phrase for a term of each group, in either order, at most `words` words apart."""
    gap = rf"[^\s\w]{{0,3}}(?: {WORD}){{0,{words}}} [^\s\w]{{0,3}}"
    return rf"(?:{terms}){gap}(?:{others})|(?:{others}){gap}(?:{terms})"


def follows(terms: str, others: str, words: int) -> str:
    """Return a phrase for a term of the first group, then one of the second, within a sentence."""
    return rf"(?:{terms})[^\s\w.;!?]{{0,3}}(?: {INNER}){{0,{words}}} [^\s\w]{{0,3}}(?:{others})"
