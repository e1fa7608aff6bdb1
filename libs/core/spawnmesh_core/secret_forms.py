"""The forms of secrets, as patterns.

A form must not match ids, cursors, hashes, images, source code or text that merely looks random.
"""

import re
from enum import StrEnum, auto
from typing import NamedTuple


class Secret(StrEnum):
    """The kinds of secret; the value is part of the marker."""

    PROVIDER_KEY = auto()
    BEARER_TOKEN = auto()
    PRIVATE_KEY = auto()
    URL_CREDENTIALS = auto()


def marker(kind: Secret) -> str:
    """Return the text that replaces a secret. It needs no escape in JSON, YAML or shell quotes."""
    return f"[$redacted:{kind}]"


def _start(begun: str) -> str:
    """Return the lookbehind for the start of a key: it must not continue base64, an identifier or a
    path.

    `begun` is the part of the key that the pattern has already matched. An escaped line break or
    tab, and the escape sequence of a terminal colour, may precede a key.
    """
    colours = (r"\x1b\[[0-9]m", r"\x1b\[[0-9]{2}m", r"\x1b\[[0-9];[0-9]{2}m")
    return "|".join(
        (rf"(?<![A-Za-z0-9+/_.-]{begun})", *(f"(?<={one}{begun})" for one in (r"\\[nrt]", *colours)))
    )


# A key must not be followed by characters that continue it.
_END = r"(?![A-Za-z0-9+/=_-])"

# Keys by the text that they begin with, and the pattern of the rest.
_PREFIXED = {
    "sk-": (
        r"(?:ant-[A-Za-z0-9_-]{16,}"
        r"|(?:proj|svcacct|admin|or-v1|lf)-[A-Za-z0-9_-]{20,}"
        r"|(?=[A-Za-z0-9_-]*[0-9])[A-Za-z0-9_-]{20,})"
    ),
    "sk_": r"(?:(?:live|test)_[A-Za-z0-9]{16,}|[0-9a-f]{48})",
    "rk_": r"(?:live|test)_[A-Za-z0-9]{16,}",
    "AIza": r"[A-Za-z0-9_-]{35}",
    "AKIA": r"[A-Z0-9]{16}",
    "ASIA": r"[A-Z0-9]{16}",
    **{f"gh{kind}_": r"[A-Za-z0-9]{36,}" for kind in "pousr"},
    "github_pat_": r"[A-Za-z0-9_]{40,}",
    "glpat-": r"(?=[A-Za-z0-9_-]*[0-9])[A-Za-z0-9_-]{20,}",
    "xox": r"[abeoprs]-(?:[A-Za-z0-9]+-)*(?=[A-Za-z0-9]*[0-9])[A-Za-z0-9]{10,}",
    "hf_": r"[A-Za-z0-9]{30,}",
    "gsk_": r"[A-Za-z0-9]{40,}",
    "xai-": r"[A-Za-z0-9]{40,}",
    "pplx-": r"[A-Za-z0-9]{40,}",
    "nvapi-": r"[A-Za-z0-9_-]{40,}",
    "r8_": r"[A-Za-z0-9]{36,}",
    "npm_": r"[A-Za-z0-9]{36}",
    "pypi-AgE": r"[A-Za-z0-9_-]{50,}",
    "SG.": r"[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{30,}",
    "ya29.": r"[A-Za-z0-9_-]{20,}",
    "dop_v1_": r"[0-9a-f]{64}",
    "shp": r"(?:at|ss|ca)_[0-9a-fA-F]{32}",
    "csk-": r"(?=[A-Za-z0-9]*[0-9])[A-Za-z0-9]{40,}",
    "tvly-": r"(?:dev-|prod-)?(?=[A-Za-z0-9]*[0-9])[A-Za-z0-9]{30,}",
    "jina_": r"(?=[A-Za-z0-9_-]*[0-9])[A-Za-z0-9_-]{50,}",
    "fw_": r"(?=[A-Za-z0-9]*[0-9])[A-Za-z0-9]{22,}",
    "GOCSPX-": r"[A-Za-z0-9_-]{28}",
    "ABSK": r"[A-Za-z0-9+/]{100,}={0,2}",
    "hvs.": r"[A-Za-z0-9_-]{24,}",
    "dapi": r"[0-9a-f]{32}",
    "whsec_": r"(?=[A-Za-z0-9+/]*[0-9])[A-Za-z0-9+/]{32,}",
}
_ANY_PREFIXED = "|".join(re.escape(prefix) + rest for prefix, rest in _PREFIXED.items())
_PROVIDER_HINTS = tuple(prefix.lower() for prefix in _PREFIXED)
# The lines of an armoured private key. Three short ones in a row are no words of a text.
_KEY_LINE = r"[A-Za-z0-9+/]{40}"
_SHORT_LINE = r"[A-Za-z0-9+/]{12,}+={0,2}+"
# Capitals close together: a token without digits has three such places, capitalised words hardly
# ever.
_MIXED = r"(?=(?:[A-Za-z._~+/-]*?[A-Z][a-z]?[A-Z]){3})"
# Characters that are in no user name or password of a URL: in source code they end it or mark a
# placeholder.
_NO_PART = r"\"'`<>{}\\"
# Letters and at least three digits: a name of 24 characters in source code rarely has three digits,
# a key has.
_RANDOM = r"(?=(?:[A-Za-z/+_-]*[0-9]){3})(?=[0-9/+_-]*[A-Za-z])[A-Za-z0-9/+_-]{24,}={0,2}"
# The characters between such a name and its value.
_KEY_IS = r"[\"'\\]{0,4}\s{0,4}[:=]\s{0,4}[\"'\\]{0,4}"
# A fixed length, both cases, and a character that no name has: one key in twenty has fewer than
# three digits.
_AWS_FORM = r"(?=[A-Z0-9/+]{0,39}[a-z])(?=[a-z0-9/+]{0,39}[A-Z])(?=[A-Za-z]{0,39}[0-9/+])[A-Za-z0-9/+]{40}"
_AWS_IS = r"[\"'\\]{0,4}(?:\s{0,4}(?:[:=]>?|>)\s{0,4}|[ \t]{1,4}(?:is )?)[\"'`\\]{0,4}"
# Behind a value that a name makes a secret.
_VALUE_END = r"(?![A-Za-z0-9/+_=.(\[-])"
_TELEGRAM_FORM = (
    r"(?=[A-Z0-9_-]{0,34}[a-z])(?=[a-z0-9_-]{0,34}[A-Z])(?=A|[A-Za-z]{0,34}[0-9_-])[A-Za-z0-9_-]{35}"
)


def _behind(ending: str, *starts: str) -> str:
    """Return the lookbehind for one of these words, in any case, behind their common ending.

    A search for a rare letter is many times as fast as one for the start of a word in any case.
    """
    return "(?:" + "|".join(f"(?<=(?i:{start}{ending}))" for start in starts) + ")"


# "key" and "secret" in any case: the letters k and s have a third one.
_KEY = r"[kK\u212a][eE][yY]"
_S = r"[sS\u017f]"
# The words before "key" and "secret" in the names of keys. Each pattern has a fixed length.
_ACCESS = ("secretaccess", "secret[_-]access", "secretaccess[_-]", "secret[_-]access[_-]")
_BEFORE_KEY = ("api", "api[_-]", *_ACCESS, "account", "account[_-]")
_BEFORE_SECRET = ("client", "client[_-]")
_BEFORE_AWS_KEY = ("secret", "secret[ _-]", *(start.replace("[_-]", "[ _-]") for start in _ACCESS))
_BEFORE_AWS_SECRET = ("aws", "aws[_-]")


class Part(NamedTuple):
    """A pattern of a form. Every match contains the text `anchor`, in this case."""

    anchor: str
    pattern: re.Pattern[str]


def _parts(*patterns: str, flags: re.RegexFlag = re.NOFLAG) -> tuple[Part, ...]:
    return tuple(Part("", re.compile(pattern, flags)) for pattern in patterns)


def _prefixed(prefix: str, rest: str) -> Part:
    # The lookbehind follows the prefix: a search that begins with a fixed text is fast.
    start = _start(re.escape(prefix))
    return Part(prefix, re.compile(f"(?P<secret>{re.escape(prefix)}(?:{start}){rest}){_END}"))


class Form(NamedTuple):
    """A form of secret. The named group of the part that matched is replaced.

    Every match contains one of `hints`, in lower case. If no such text exists, every match contains
    a match of `look`, also within a JSON text.
    """

    kind: Secret
    hints: tuple[str, ...]
    parts: tuple[Part, ...]
    look: re.Pattern[str] | None = None

    def may_be_in(self, text: str, lower: str) -> bool:
        for hint in self.hints:  # A document has very many short texts, and `any` takes thrice as long.
            if hint in lower:
                return True
        return self.look is not None and self.look.search(text) is not None


FORMS = (
    Form(
        Secret.PRIVATE_KEY,
        ("private key",),
        _parts(
            r"(?P<secret>-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----"
            r"(?=(?:(?!-----BEGIN )[\s\\nrA-Za-z0-9:, .()-]){0,400}?"
            rf"(?:{_KEY_LINE}|(?:{_SHORT_LINE}[ \t]*+(?:[\r\n]|\\[rn])++\s*+){{3}}))"
            r"[A-Za-z0-9+/=\s\\:,.()-]{40,}?"
            r"(?:-----END (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----|(?=[^A-Za-z0-9+/=\s\\:,.()-])|\Z))"
        ),
    ),
    # Lines with a line number, a quotation mark or quotes around them: both ends must be present.
    Form(
        Secret.PRIVATE_KEY,
        ("-----end ",),
        _parts(
            r"(?P<secret>-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----"
            r"(?=(?:(?!-----(?:BEGIN|END) ).){0,400}?"
            rf"(?:{_KEY_LINE}|(?:{_SHORT_LINE}[^A-Za-z0-9+/]{{1,24}}+){{3}}))"
            r"(?:(?!-----(?:BEGIN|END) ).){40,16384}?-----END (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----)",
            flags=re.DOTALL,
        ),
    ),
    Form(
        Secret.URL_CREDENTIALS,
        (),
        # Up to the last @ before the path. A variable, a marker and the tag before an image digest
        # are no passwords.
        _parts(
            rf"(?<![A-Za-z0-9])[a-zA-Z][a-zA-Z0-9+.-]{{1,20}}:(?:\\?/){{2}}[^\s/?#:{_NO_PART}$]{{0,256}}:(?!(?:\$\w{{1,100}}){{1,4}}@)"
            rf"(?P<secret>(?:[^\s/?#{_NO_PART}$]|\$(?![({{]|redacted:)|(?<=\w)'(?=\w)){{1,512}})@(?=[\w\[])(?!sha(?:256|384|512):)"
        ),
        look=re.compile(r":\\*+/\\*+/[^\s/?#@]*+@"),
    ),
    Form(
        Secret.BEARER_TOKEN,
        ("authorization", "basic"),  # The name of a JSON member may have punctuation in it.
        _parts(
            rf"[zZ]{_behind('z', 'authori')}(?i:ation)[\"']?\s*[:=]\s*[\"']?"
            r"(?:(?i:basic)[ \t]+(?P<basic>[A-Za-z0-9+/]{8,}={0,2})"
            r"|(?i:bearer)[ \t]+(?P<header>[A-Za-z0-9._~+/-]{16,}=*))"
        ),
    ),
    Form(
        Secret.BEARER_TOKEN,
        ("bearer",),
        _parts(
            r"[bB](?<!\w[bB])(?i:earer)[ \t]+(?P<secret>"
            rf"(?:(?=[A-Za-z._~+/-]*[0-9])|(?=[A-Za-z._~+/-]{{20}}){_MIXED})[A-Za-z0-9._~+/-]{{16,}}=*)"
        ),
    ),
    Form(
        Secret.BEARER_TOKEN,
        (".eyj",),
        _parts(
            rf"(?P<secret>eyJ(?:{_start('eyJ')})[A-Za-z0-9_-]{{10,}}"
            rf"\.eyJ[A-Za-z0-9_-]{{10,}}\.[A-Za-z0-9_-]{{16,}}){_END}"
        ),
    ),
    Form(
        Secret.PROVIDER_KEY,
        _PROVIDER_HINTS,
        (
            *_parts(rf":(?:\\?/){{2}}(?P<secret>{_ANY_PREFIXED})(?=@|:[^\s/@]{{0,512}}@)"),
            *(_prefixed(prefix, rest) for prefix, rest in _PREFIXED.items()),
        ),
    ),
    Form(
        Secret.PROVIDER_KEY,
        ("key", "secret"),
        _parts(
            rf"{_KEY}{_behind('key', *_BEFORE_KEY)}{_KEY_IS}(?P<secret>{_RANDOM}){_VALUE_END}",
            rf"{_S}{_behind('s', *_BEFORE_SECRET)}(?i:ecret){_KEY_IS}(?P<secret>{_RANDOM}){_VALUE_END}",
        ),
    ),
    Form(
        Secret.PROVIDER_KEY,
        ("secret",),
        _parts(
            rf"{_KEY}{_behind('key', *_BEFORE_AWS_KEY)}{_AWS_IS}(?P<secret>{_AWS_FORM}){_VALUE_END}",
            rf"{_S}{_behind('s', *_BEFORE_AWS_SECRET)}(?i:ecret){_AWS_IS}(?P<secret>{_AWS_FORM}){_VALUE_END}",
        ),
    ),
    Form(
        Secret.URL_CREDENTIALS,
        ("hooks.slack",),
        _parts(
            r"[hH](?<!\w[hH])(?i:ooks\.slack(?:-gov)?\.com)\\?/(?:services|workflows|triggers)(?:\\?/[A-Z0-9]{6,20}){1,3}\\?/"
            r"(?P<secret>(?=[A-Z0-9]{0,79}[a-z])(?=[a-z]{0,79}[A-Z0-9])[A-Za-z0-9]{16,80})(?![A-Za-z0-9])"
        ),
    ),
    Form(
        Secret.PROVIDER_KEY,
        (),
        _parts(rf"(?P<secret>[0-9](?:{_start('[0-9]')}|(?<=/bot[0-9]))[0-9]{{7,9}}:{_TELEGRAM_FORM})(?![A-Za-z0-9+=_-])"),
        look=re.compile(r":(?<=[0-9]{8}:)[A-Za-z0-9_-]{35}"),
    ),
)  # fmt: skip

# For the members of a JSON object: their names, and values that the name alone makes a secret.
_KEY_NAMES = f"(?:(?:{'|'.join(_BEFORE_KEY)})key|(?:{'|'.join(_BEFORE_SECRET)})secret)"
_AWS_NAMES = f"(?:(?:{'|'.join(_BEFORE_AWS_KEY)})key|(?:{'|'.join(_BEFORE_AWS_SECRET)})secret)"
KEY_NAME = re.compile(r"(?i)^(?:.*[_-])?(?:x-?)?" + _KEY_NAMES + "$")
RANDOM_VALUE = re.compile(_RANDOM)
AWS_NAME = re.compile(rf"(?i)^.*{_AWS_NAMES}$")
AWS_VALUE = re.compile(_AWS_FORM)
