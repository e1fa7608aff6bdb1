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


def _start(begun: str = "") -> str:
    """Return the lookbehind for the start of a key: it must not continue base64, an identifier or a
    path.

    `begun` is the part of the key that the pattern has already matched. An escaped line break or
    tab, and the escape sequence of a terminal colour, may precede a key.
    """
    colours = (r"\x1b\[[0-9]m", r"\x1b\[[0-9]{2}m", r"\x1b\[[0-9];[0-9]{2}m")
    return "|".join(
        (rf"(?<![A-Za-z0-9+/_.-]{begun})", *(f"(?<={one}{begun})" for one in (r"\\[nrt]", *colours)))
    )


_START = f"(?:{_start()})"
# A key must not be followed by characters that continue it.
_END = r"(?![A-Za-z0-9+/=_-])"

_PREFIXED = "|".join(
    (
        r"sk-ant-[A-Za-z0-9_-]{16,}",
        r"sk-(?:proj|svcacct|admin|or-v1|lf)-[A-Za-z0-9_-]{20,}",
        r"sk-(?=[A-Za-z0-9_-]*[0-9])[A-Za-z0-9_-]{20,}",
        r"(?:sk|rk)_(?:live|test)_[A-Za-z0-9]{16,}",
        r"AIza[A-Za-z0-9_-]{35}",
        r"(?:AKIA|ASIA)[A-Z0-9]{16}",
        r"gh[pousr]_[A-Za-z0-9]{36,}",
        r"github_pat_[A-Za-z0-9_]{40,}",
        r"glpat-(?=[A-Za-z0-9_-]*[0-9])[A-Za-z0-9_-]{20,}",
        r"xox[abeoprs]-(?:[A-Za-z0-9]+-)*(?=[A-Za-z0-9]*[0-9])[A-Za-z0-9]{10,}",
        r"hf_[A-Za-z0-9]{30,}",
        r"gsk_[A-Za-z0-9]{40,}",
        r"xai-[A-Za-z0-9]{40,}",
        r"pplx-[A-Za-z0-9]{40,}",
        r"nvapi-[A-Za-z0-9_-]{40,}",
        r"r8_[A-Za-z0-9]{36,}",
        r"npm_[A-Za-z0-9]{36}",
        r"pypi-AgE[A-Za-z0-9_-]{50,}",
        r"SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{30,}",
        r"ya29\.[A-Za-z0-9_-]{20,}",
        r"dop_v1_[0-9a-f]{64}",
        r"shp(?:at|ss|ca)_[0-9a-fA-F]{32}",
        r"sk_[0-9a-f]{48}",
        r"csk-(?=[A-Za-z0-9]*[0-9])[A-Za-z0-9]{40,}",
        r"tvly-(?:dev-|prod-)?(?=[A-Za-z0-9]*[0-9])[A-Za-z0-9]{30,}",
        r"jina_(?=[A-Za-z0-9_-]*[0-9])[A-Za-z0-9_-]{50,}",
        r"fw_(?=[A-Za-z0-9]*[0-9])[A-Za-z0-9]{22,}",
        r"GOCSPX-[A-Za-z0-9_-]{28}",
        r"ABSK[A-Za-z0-9+/]{100,}={0,2}",
        r"hvs\.[A-Za-z0-9_-]{24,}",
        r"dapi[0-9a-f]{32}",
        r"whsec_(?=[A-Za-z0-9+/]*[0-9])[A-Za-z0-9+/]{32,}",
    )
)
_PROVIDER_HINTS = (
    *(
        "sk-",
        "sk_",
        "rk_",
        "aiza",
        "akia",
        "asia",
        "ghp_",
        "gho_",
        "ghu_",
        "ghs_",
        "ghr_",
        "github_pat_",
        "glpat-",
    ),
    *(
        "xox",
        "hf_",
        "gsk_",
        "xai-",
        "pplx-",
        "nvapi-",
        "r8_",
        "npm_",
        "pypi-",
        "sg.",
        "ya29.",
        "dop_v1_",
        "shp",
        "csk-",
    ),
    *("tvly-", "jina_", "fw_", "gocspx-", "absk", "hvs.", "dapi", "whsec_"),
)
# The lines of an armoured private key. Three short ones in a row are no words of a text.
_KEY_LINE = r"[A-Za-z0-9+/]{40}"
_SHORT_LINE = r"[A-Za-z0-9+/]{12,}+={0,2}+"
# Capitals close together: a token without digits has three such places, capitalised words hardly
# ever.
_MIXED = r"(?=(?:[A-Za-z._~+/-]*?[A-Z][a-z]?[A-Z]){3})"
# Characters that are in no user name or password of a URL: in source code they end it or mark a
# placeholder.
_NO_PART = r"\"'`<>{}\\"
_JWT = r"eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{16,}"
# Letters and at least three digits: a name of 24 characters in source code rarely has three digits,
# a key has.
_RANDOM = r"(?=(?:[A-Za-z/+_-]*[0-9]){3})(?=[0-9/+_-]*[A-Za-z])[A-Za-z0-9/+_-]{24,}={0,2}"
_KEY_NAMES = r"(?:api[_-]?key|secret[_-]?access[_-]?key|account[_-]?key|client[_-]?secret)"
# A fixed length, both cases, and a character that no name has: one key in twenty has fewer than
# three digits.
_AWS_FORM = r"(?=[A-Z0-9/+]{0,39}[a-z])(?=[a-z0-9/+]{0,39}[A-Z])(?=[A-Za-z]{0,39}[0-9/+])[A-Za-z0-9/+]{40}"
_AWS_NAMES = r"(?:secret[ _-]?(?:access[ _-]?)?key|aws[_-]?secret)"
_TELEGRAM_FORM = (
    r"(?=[A-Z0-9_-]{0,34}[a-z])(?=[a-z0-9_-]{0,34}[A-Z])(?=A|[A-Za-z]{0,34}[0-9_-])[A-Za-z0-9_-]{35}"
)


class Form(NamedTuple):
    """A form of secret. The named group of the pattern that matched is replaced.

    Every match contains one of `hints`, in lower case. If no such text exists, every match contains
    a match of `look`, also within a JSON text.
    """

    kind: Secret
    hints: tuple[str, ...]
    pattern: re.Pattern[str]
    look: re.Pattern[str] | None = None

    def may_be_in(self, text: str, lower: str) -> bool:
        return any(hint in lower for hint in self.hints) or (
            self.look is not None and self.look.search(text) is not None
        )


FORMS = (
    Form(
        Secret.PRIVATE_KEY,
        ("private key",),
        re.compile(
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
        ("private key",),
        re.compile(
            r"(?P<secret>-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----"
            r"(?=(?:(?!-----(?:BEGIN|END) ).){0,400}?"
            rf"(?:{_KEY_LINE}|(?:{_SHORT_LINE}[^A-Za-z0-9+/]{{1,24}}+){{3}}))"
            r"(?:(?!-----(?:BEGIN|END) ).){40,16384}?-----END (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----)",
            re.DOTALL,
        ),
    ),
    Form(
        Secret.URL_CREDENTIALS,
        (),
        # Up to the last @ before the path. A variable, a marker and the tag before an image digest
        # are no passwords.
        re.compile(
            rf"(?<![A-Za-z0-9])[a-zA-Z][a-zA-Z0-9+.-]{{1,20}}:(?:\\?/){{2}}[^\s/?#:{_NO_PART}$]{{0,256}}:(?!(?:\$\w{{1,100}}){{1,4}}@)"
            rf"(?P<secret>(?:[^\s/?#{_NO_PART}$]|\$(?![({{]|redacted:)|(?<=\w)'(?=\w)){{1,512}})@(?=[\w\[])(?!sha(?:256|384|512):)"
        ),
        look=re.compile(r":\\*+/\\*+/"),
    ),
    Form(
        Secret.BEARER_TOKEN,
        ("bearer", "basic"),
        re.compile(
            rf"(?i:\bbearer)[ \t]+(?P<secret>(?:(?=[A-Za-z._~+/-]*[0-9])|(?=[A-Za-z._~+/-]{{20}}){_MIXED})"
            r"[A-Za-z0-9._~+/-]{16,}=*)"
            r"|(?i:authorization)[\"']?\s*[:=]\s*[\"']?(?:(?i:basic)[ \t]+(?P<basic>[A-Za-z0-9+/]{8,}={0,2})"
            r"|(?i:bearer)[ \t]+(?P<header>[A-Za-z0-9._~+/-]{16,}=*))"
        ),
    ),
    Form(Secret.BEARER_TOKEN, (".eyj",), re.compile(f"{_START}(?P<secret>{_JWT}){_END}")),
    Form(
        Secret.PROVIDER_KEY,
        _PROVIDER_HINTS,
        re.compile(rf":(?:\\?/){{2}}(?P<secret>{_PREFIXED})(?=@|:[^\s/@]{{0,512}}@)"),
    ),
    Form(
        Secret.PROVIDER_KEY,
        _PROVIDER_HINTS,
        re.compile(f"{_START}(?P<secret>{_PREFIXED}){_END}"),
    ),
    Form(
        Secret.PROVIDER_KEY,
        ("key", "secret"),
        re.compile(
            rf"(?i:{_KEY_NAMES})[\"'\\]{{0,4}}\s{{0,4}}[:=]\s{{0,4}}[\"'\\]{{0,4}}(?P<secret>{_RANDOM})(?![A-Za-z0-9/+_=.(\[-])"
        ),
    ),
    Form(
        Secret.PROVIDER_KEY,
        ("secret",),
        re.compile(
            rf"(?i:{_AWS_NAMES})[\"'\\]{{0,4}}(?:\s{{0,4}}(?:[:=]>?|>)\s{{0,4}}|[ \t]{{1,4}}(?:is )?)"
            rf"[\"'`\\]{{0,4}}(?P<secret>{_AWS_FORM})"
            r"(?![A-Za-z0-9/+_=.(\[-])"
        ),
    ),
    Form(
        Secret.URL_CREDENTIALS,
        ("hooks.slack",),
        re.compile(
            r"(?i:\bhooks\.slack(?:-gov)?\.com)\\?/(?:services|workflows|triggers)(?:\\?/[A-Z0-9]{6,20}){1,3}\\?/"
            r"(?P<secret>(?=[A-Z0-9]{0,79}[a-z])(?=[a-z]{0,79}[A-Z0-9])[A-Za-z0-9]{16,80})(?![A-Za-z0-9])"
        ),
    ),
    Form(
        Secret.PROVIDER_KEY,
        (),
        # The lookbehind follows the first digit: a search that begins with a small character class
        # is fast.
        re.compile(rf"(?P<secret>[0-9](?:{_start('[0-9]')}|(?<=/bot[0-9]))[0-9]{{7,9}}:{_TELEGRAM_FORM})(?![A-Za-z0-9+=_-])"),
        look=re.compile(r"[0-9]{8}:[A-Za-z0-9_-]{35}"),
    ),
)  # fmt: skip

# For the members of a JSON object: their names, and values that the name alone makes a secret.
KEY_NAME = re.compile(r"(?i)^(?:.*[_-])?(?:x-?)?" + _KEY_NAMES + "$")
RANDOM_VALUE = re.compile(_RANDOM)
AWS_NAME = re.compile(rf"(?i)^.*{_AWS_NAMES}$")
AWS_VALUE = re.compile(_AWS_FORM)
