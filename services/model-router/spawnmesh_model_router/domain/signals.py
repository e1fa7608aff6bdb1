"""The table of text signals: wordings of failed model calls and their reasons, in order of
precedence.

Sources: the error references of Anthropic, OpenAI, Google, Amazon Bedrock, Azure, OpenRouter, xAI,
Zhipu and Qwen, and the error names of Node's and Python's networking. A row matches a wording that
providers use in general, not the sentence of a single incident.
"""

import re
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property
from typing import Final

from spawnmesh_model_router.domain import account_terms as account
from spawnmesh_model_router.domain import request_terms as request
from spawnmesh_model_router.domain import service_terms as service
from spawnmesh_model_router.domain.reasons import FailoverReason as R
from spawnmesh_model_router.domain.vendor_codes import NUMBER, VENDOR_CODES


class Topic(Enum):
    """The subject of a text.

    Several topics may have one reason. Only some topics override a status.
    """

    LOCAL = auto()
    BANNED = auto()
    IMAGE = auto()
    REFUSAL = auto()
    TLS = auto()
    LOGIN = auto()
    TRANSCRIPT = auto()
    SESSION = auto()
    GONE = auto()
    NO_SUCH = auto()
    MODEL = auto()
    NOT_FOUND = auto()
    VENDOR = auto()
    REFILL = auto()
    CONTEXT = auto()
    REPLAY = auto()
    BILLING = auto()
    CREDITS = auto()
    PERIODIC = auto()
    THROTTLED = auto()
    RATE = auto()
    PLAN = auto()
    OVERLOADED = auto()
    OUTAGE = auto()
    CRASH = auto()
    GAVE_UP = auto()
    LIMITED = auto()
    BUSY = auto()
    SERVER = auto()
    INTERNAL = auto()
    TOKEN_REFRESH = auto()
    AUTH_PERMANENT = auto()
    AUTH = auto()
    TIMEOUT = auto()
    SILENCE = auto()
    FAULT = auto()
    INVALID = auto()
    VENDOR_CODE = auto()
    REPLACED = auto()


@dataclass(frozen=True)
class Signal:
    """A row of the table: a lower-case text that matches `pattern` has this topic and reason.

    `provider` limits the row to one provider.
    """

    topic: Topic
    reason: R
    pattern: re.Pattern[str]
    provider: str = ""

    @cached_property
    def is_anchored(self) -> bool:
        """Return whether the pattern matches only at the beginning of a text."""
        return "^" in self.pattern.pattern.replace("[^", "")


def row(topic: Topic, reason: R, *phrases: str, provider: str = "") -> Signal:
    """Return a signal for any of the phrases, in lower case, at word boundaries.

    A blank in a phrase also matches `_`, which is a word boundary, too. Phrases with Chinese,
    Japanese or Korean characters match anywhere, because these scripts have no blanks between
    words.
    """
    spaced = [phrase.replace(" ", r"[\s_]++") for phrase in phrases]
    latin = "|".join(phrase for phrase in spaced if phrase.isascii())
    forms = [phrase for phrase in spaced if not phrase.isascii()]
    if latin:
        forms.insert(0, rf"(?<![a-z0-9])(?:{latin})(?![a-z0-9])")
    return Signal(topic, reason, re.compile("|".join(forms), re.DOTALL), provider)


ZHIPU_CODE: Final = r"(?:code[\"']?:\s*[\"']?|error\s+|^)"
TOO_LARGE_FOR_A_MINUTE: Final = row(Topic.REFILL, R.RATE_LIMIT, account.TOO_LARGE_FOR_A_MINUTE)

SIGNALS: Final[tuple[Signal, ...]] = (
    row(Topic.LOCAL, R.NO_FAILOVER, *service.LOCAL),
    row(Topic.BANNED, R.AUTH_PERMANENT, *account.BANNED),
    row(Topic.IMAGE, R.NO_FAILOVER, *request.IMAGE),
    row(Topic.REFUSAL, R.NO_FAILOVER, *request.REFUSAL),
    # The finish reason alone.
    row(Topic.REFUSAL, R.NO_FAILOVER, r"^(?:(?:image )?safety|recitation)$"),
    row(Topic.TLS, R.TLS_CERTIFICATE, *service.TLS),
    row(Topic.LOGIN, R.AUTH, *account.LOGIN, *account.REGION),
    row(Topic.TRANSCRIPT, R.FORMAT, *request.MISSING_FEATURE, *request.SHAPE),
    row(Topic.SESSION, R.SESSION_EXPIRED, *service.SESSION),
    row(Topic.GONE, R.MODEL_NOT_FOUND, *service.GONE),
    row(Topic.NO_SUCH, R.MODEL_NOT_FOUND, *service.NO_SUCH),
    row(Topic.MODEL, R.MODEL_NOT_FOUND, *service.MODEL),
    row(Topic.NOT_FOUND, R.MODEL_NOT_FOUND, r"^(?:error: )?(?:404 )?(?:page )?not found\.?$"),
    # Zhipu sends its own error numbers with any HTTP status.
    row(Topic.BILLING, R.BILLING, rf"{ZHIPU_CODE}(?:1309|1311)", provider="zai"),
    row(Topic.BILLING, R.BILLING, r"余额不足|欠费", r"in arrears|insufficient balance", provider="zai"),
    row(Topic.VENDOR, R.AUTH, rf"{ZHIPU_CODE}(?:100[0-4]|1113)", provider="zai"),
    row(Topic.VENDOR, R.RATE_LIMIT, rf"{ZHIPU_CODE}(?:130[2-5]|1308|1310)", provider="zai"),
    # OpenRouter limits the spending of single keys.
    row(Topic.BILLING, R.BILLING, r"key limit exceeded", provider="openrouter"),
    row(Topic.VENDOR, R.OVERLOADED, r"modelnotreadyexception", provider="amazon-bedrock"),
    TOO_LARGE_FOR_A_MINUTE,
    row(Topic.REFILL, R.RATE_LIMIT, *account.REFILL),
    row(Topic.CONTEXT, R.CONTEXT_OVERFLOW, *request.LONG_CONTEXT),
    row(Topic.REPLAY, R.FORMAT, *request.REPLAY),
    row(Topic.BILLING, R.BILLING, *account.BILLING),
    row(Topic.CREDITS, R.BILLING, *account.CREDITS),
    row(Topic.PERIODIC, R.RATE_LIMIT, *account.PERIODIC),
    row(Topic.THROTTLED, R.RATE_LIMIT, *account.THROTTLED),
    row(Topic.RATE, R.RATE_LIMIT, *account.RATE),
    row(Topic.PLAN, R.BILLING, *account.PLAN),
    row(Topic.OUTAGE, R.SERVER_ERROR, *service.OUTAGE),
    row(Topic.OVERLOADED, R.OVERLOADED, *service.OVERLOADED),
    row(
        Topic.SERVER,
        R.SERVER_ERROR,
        r"server_error|internalservererror|bad gateway|process exited with an error|(?:finish "
        r"|stop )?reason: error",
    ),
    row(Topic.INTERNAL, R.TIMEOUT, *service.INTERNAL),
    row(Topic.TOKEN_REFRESH, R.AUTH, *account.TOKEN_REFRESH),
    row(Topic.AUTH_PERMANENT, R.AUTH_PERMANENT, *account.AUTH_PERMANENT),
    row(Topic.AUTH, R.AUTH, *account.AUTH),
    row(Topic.TIMEOUT, R.TIMEOUT, *service.TIMEOUT),
    # Complete texts of wrappers that dropped the cause.
    row(
        Topic.TIMEOUT,
        R.TIMEOUT,
        r"^(?:llm )?request failed\.?$",
        r"^(?:sorry, )?your request failed\. please try again\.(?: request id: \S+)?$",
        r"^(?:(?:api |type)?error: )?(?:terminated|eof)$",
    ),
    row(Topic.SILENCE, R.NO_ERROR_DETAILS, r"(?:no|without(?: any)?) error details"),
    row(Topic.SILENCE, R.EMPTY_RESPONSE, *service.EMPTY),
    row(Topic.SILENCE, R.UNKNOWN, r"unknown error"),
    row(Topic.FAULT, R.SERVER_ERROR, *service.FAULT),
    row(Topic.INVALID, R.FORMAT, *request.INVALID),
    *(
        row(Topic.VENDOR_CODE, reason, rf"{NUMBER}(?:{numbers})", provider=provider)
        for provider, codes in VENDOR_CODES.items()
        for reason, numbers in codes.items()
    ),
    # Causes that only a status of another cause needs.
    row(Topic.CRASH, R.SERVER_ERROR, *service.CRASH),
    row(Topic.GAVE_UP, R.TIMEOUT, *service.GAVE_UP),
    row(Topic.LIMITED, R.RATE_LIMIT, *account.LIMITED),
    row(
        Topic.BUSY,
        R.OVERLOADED,
        r"busy|overload\w*|saturated|congest(?:ed|ion)|at capacity",
        r"繁忙|拥挤|排队",
    ),
    # OpenRouter replaces upstream errors by one sentence.
    row(Topic.REPLACED, R.TIMEOUT, r"provider returned error", provider="openrouter"),
)
