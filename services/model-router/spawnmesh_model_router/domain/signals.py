"""The table of text signals: which wording of a failed model call means what, in order of precedence.

Sources: the error references of Anthropic, OpenAI, Google, Amazon Bedrock, Azure, OpenRouter, xAI, Zhipu, Qwen and the error
names of Node and Python networking. A row is added for a wording that a provider really uses, never for one incident's whole
sentence. Patterns ignore case, and `_` and blank are the same inside a phrase.
"""

import re
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from spawnmesh_model_router.domain.reasons import FailoverReason as R


class Topic(Enum):
    """What a text is about. Several topics may mean one reason; a status lets only some of them speak."""

    LOCAL = auto()
    IMAGE = auto()
    REFUSAL = auto()
    TLS = auto()
    LOGIN = auto()
    TRANSCRIPT = auto()
    SESSION = auto()
    MODEL = auto()
    VENDOR = auto()
    TOKEN_RATE = auto()
    CONTEXT = auto()
    REPLAY = auto()
    BILLING = auto()
    CREDITS = auto()
    PERIODIC = auto()
    RATE = auto()
    OVERLOADED = auto()
    SERVER = auto()
    INTERNAL = auto()
    TOKEN_REFRESH = auto()
    AUTH_PERMANENT = auto()
    AUTH = auto()
    TIMEOUT = auto()
    EMPTY = auto()


@dataclass(frozen=True)
class Signal:
    """One row: a text that matches `pattern` is about `topic` and means `reason`. `provider` limits it to one provider."""

    topic: Topic
    reason: R
    pattern: re.Pattern[str]
    provider: str = ""


def phrase(*alternatives: str) -> re.Pattern[str]:
    """Any of `alternatives` as whole words; `_` ends a word, and a blank stands for blanks or `_`."""
    joined = "|".join(alternative.replace(" ", r"[\s_]+") for alternative in alternatives)
    return re.compile(rf"(?<![a-z0-9])(?:{joined})(?![a-z0-9])", re.IGNORECASE)


def characters(*alternatives: str) -> re.Pattern[str]:
    """Any of `alternatives` anywhere: Chinese has no blanks between words."""
    return re.compile("|".join(alternatives))


_PERIOD: Final = r"(?:hourly|daily|weekly|monthly|yearly)"
_CERT_CODES: Final = r"cert_\w+|err_tls_cert\w*|unable_to_verify_leaf_signature|unable_to_get_issuer_cert\w*|\w*self_signed_cert\w*"
_SOCKET_CODES: Final = (
    r"econn(?:reset|refused|aborted)|e(?:socket)?timedout|enotfound|eai_\w+|epipe|enet(?:unreach|reset|down)|ehost(?:unreach|down)"
)

SIGNALS: Final[tuple[Signal, ...]] = (
    # Our own machine, our own coordination, or the caller's own wish: no provider is to blame.
    Signal(
        Topic.LOCAL,
        R.NO_FAILOVER,
        phrase(
            r"no space left on device", r"disk quota exceeded", r"too many open files", r"read-only file system",
            r"enospc|edquot|erofs|emfile|enfile|enomem", r"writer claim lost|session takeover|server draining",
            r"(?:aborted|cancell?ed) by (?:the )?(?:user|caller|client)",
        ),
    ),
    # Size and count of images: the caller has to send less.
    Signal(
        Topic.IMAGE,
        R.NO_FAILOVER,
        phrase(
            r"images? (?:size |dimensions? )?exceeds?", r"images? (?:is|are|was) too (?:large|big)", r"too many images",
            r"image dimensions? .{0,40}exceed", r"image too (?:large|big|small)", r"max(?:imum)? (?:allowed )?(?:size|number) (?:for|of) (?:\S+ )?images?",
        ),
    ),
    Signal(
        Topic.REFUSAL,
        R.NO_FAILOVER,
        phrase(
            r"content (?:filter(?:ed)?|policy|management policy)\w*", r"(?:stop|finish) reason:? (?:refusal|safety|recitation|prohibited content)",
            r"responsibleaipolicyviolation", r"prohibited content", r"(?:flagged|blocked) by .{0,30}(?:moderation|safety|policy)",
            r"safety system", r"requires moderation", r"data inspection failed", r"model refused",
        ),
    ),
    Signal(
        Topic.TLS,
        R.TLS_CERTIFICATE,
        phrase(
            _CERT_CODES, r"certificate verify failed", r"self[- ]signed certificate", r"unable to (?:get|verify) .{0,30}(?:issuer|certificate)",
            r"certificate (?:has |is )?(?:expired|not trusted|not yet valid|revoked|unknown|invalid)", r"sslcertverificationerror|x509:.*",
            r"hostname.{0,40}(?:does not match|mismatch).{0,40}(?:certificate|altnames)", r"invalid peer certificate.*",
        ),
    ),
    # A vendor's command-line tool that has lost its login.
    Signal(
        Topic.LOGIN,
        R.AUTH,
        phrase(r"(?:please )?run /?login", r"run [`'\"]?\w+ (?:auth )?(?:login|setup-token)", r"not logged in", r"please log ?in(?: again)?"),
    ),
    # The history we sent breaks a rule of the API.
    Signal(
        Topic.TRANSCRIPT,
        R.FORMAT,
        phrase(
            r"roles must alternate", r"incorrect role information", r"tool use id\w*", r"tool use\.id", r"tool call ids?",
            r"without (?:a )?(?:corresponding )?tool result", r"tool results?.{0,80}must (?:match|follow|immediately)", r"function call turn",
            r"preceed?ing message with .?tool calls", r"content blocks? must be non-?empty", r"string should match pattern",
            r"cannot end with trailing whitespace", r"first message must use the user role", r"extra inputs are not permitted",
            r"invalid request format", r"(?:unknown|unsupported) parameter\w*", r"json schema is invalid", r"invalid (?:tool|function) schema",
            r"requested .{1,80} does not support",
        ),
    ),
    Signal(TOPIC_SESSION := Topic.SESSION, R.SESSION_EXPIRED, phrase(
        r"(?:session|conversation|thread)(?: (?:id|with id))?(?: \S{1,64})? (?:was |is |has |could )?(?:not (?:be )?found|does not exist|expired|no longer (?:exists|valid|available))",
        r"no (?:such )?(?:conversation|session|thread) found", r"no such (?:session|conversation)", r"(?:expired|invalid|unknown) (?:session|conversation)(?: id)?",
        r"session (?:expired|not found|invalid)",
    )),
)
