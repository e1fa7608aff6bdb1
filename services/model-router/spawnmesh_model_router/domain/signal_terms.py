"""Terms of failed model calls, and the phrases that they form.

A phrase here states a meaning, such as "money that is used up", by two groups of terms in either
order. Providers word the same meaning in many ways, so a phrase also matches wordings that are not
listed. The phrases are written as those of `signals.row`: lower case, and a blank also matches `_`.
"""

from typing import Final

# Words and blanks share no character, and blanks match possessively. Otherwise a long run of `_`
# would backtrack for minutes.
WORD: Final = r"[^\s_]{1,40}"

PERIOD: Final = r"(?:hourly|daily|weekly|monthly|yearly)"
CERTIFICATE_CODES: Final = (
    r"cert_\w+|err_tls_cert\w*|unable_to_verify_leaf_signature|unable_to_get_issuer_cert\w*"
    r"|(?:depth_zero_)?self_signed_cert\w*|sslcertverificationerror|crl_\w+"
)
SOCKET_CODES: Final = (
    r"econn(?:reset|refused|aborted)|e(?:socket)?timedout|enotfound|eai_\w+|epipe|enet(?:unreach|reset|down)"
    r"|ehost(?:unreach|down)|eproto|und_err_\w+|err_(?:stream_premature_close|ssl_\w+|http2_\w+)"
)


def near(terms: str, others: str, words: int) -> str:
    """Return a phrase for a term of each group, in either order, at most `words` words apart."""
    gap = rf"(?:[,.:;]? {WORD}){{0,{words}}}[,.:;]? "
    return rf"(?:{terms}){gap}(?:{others})|(?:{others}){gap}(?:{terms})"


_MONEY: Final = r"credits?|(?:account |wallet |remaining |prepaid )?balance|funds"
_SPENT: Final = (
    r"insufficient|not enough|not sufficient|exhausted|depleted|used up|too low|negative|below"
    r"|no (?:more|remaining|available)|(?:not|don.?t) have (?:enough|sufficient|any)"
)
_QUOTA: Final = r"(?:user |token |account |free |prepaid )?quotas?"
SPENT_MONEY: Final = (
    near(_MONEY, _SPENT, 4),
    rf"(?:insufficient|not enough|no (?:more |remaining )?)(?: {WORD}){{0,2}} {_QUOTA}",
    rf"{_QUOTA} (?:is |are )?(?:insufficient|not enough|not sufficient)",
    r"extra usage,? not (?:your )?plan limits|(?:out of|add|buy|enable|draws? from) (?:your )?extra usage",
    r"(?:invoice|payment|card|billing)(?: method)? (?:is |was |has been )?(?:unpaid|declined|overdue|failed)",
)
"""Money is used up, or a payment failed."""

USAGE_THAT_RESETS: Final = r"out of extra usage.{0,40}resets?"

ALLOWANCE: Final = (
    rf"(?:hit|reached|exceeded|used) (?:all of )?your(?: {WORD}){{0,4}}"
    r" (?:limits?|allowance|allocation|usage)"
)
"""An allowance that renews is used up."""

_FEATURE: Final = (
    r"(?:image|vision|visual|audio|video|pdf|document|file|multimodal)s?(?: inputs?| content| urls?)?"
    r"|(?:parallel )?(?:tools?|functions?)(?: use| calls?| calling| choice)?|thinking|reasoning(?: effort)?"
    r"|(?:assistant )?(?:message )?prefill|(?:system|developer) (?:role|messages?|prompts?|instructions?)"
    r"|streaming|json mode|json schema|response format|structured outputs?|prompt caching|cache control"
)
_UNSUPPORTED: Final = r"(?:does|do|did|can)(?:not| not|n.?t) (?:currently |yet )?support"
MISSING_FEATURE: Final = (
    rf"no endpoints(?: found| available)? (?:that |which )?(?:can )?support(?:s|ing)? {WORD}",
    rf"(?:{_UNSUPPORTED})(?: {WORD}){{0,2}} (?:{_FEATURE})",
    rf"(?:{_FEATURE}) (?:is|are) (?:not supported|unsupported|not available|not enabled)",
    rf"(?:unsupported|cannot read|can.?t read|no support for)(?: {WORD}){{0,2}} (?:{_FEATURE})",
)
"""The model lacks a feature that the request uses. Another model may have it."""

REFUSED_SHAPE: Final = (
    r"(?:must|has to|should|cannot|can not|may not) (?:end|start|begin) with (?:an? )?"
    r"(?:user|assistant|system|tool|model)",
    r"assistant message prefill|prefill(?:ed|ing)? (?:(?:is|are) )?(?:not supported|unsupported|not allowed)",
    r"tool use failed|failed to call a (?:function|tool)|tool call validation failed",
    r"did not match (?:the )?(?:expected )?schema|invalid (?:json )?schema",
    r"schema (?:is|was) (?:invalid|not valid)",
    rf"(?:unexpected|invalid|unknown|expected)(?: {WORD}){{0,2}} roles?|conversation roles?",
    r"(?:number|count|order) of (?:function|tool) (?:calls?|results?|responses?|messages?)",
    r"schema must (?:be|have)|invalid function parameters",
    r"invalid (?:tool|function) (?:call|name|arguments|input)",
)
"""The API does not accept the shape of the conversation or of a tool."""

# A word that ends no sentence: the next sentence may be about something else.
_INNER: Final = r"[^\s_]{0,60}[^\s_.;!?]"
_GONE: Final = (
    r"deprecated|deprecating|retired|decommissioned|discontinued|deactivated|sunset|shut.?down|removed"
    r"|end.of.(?:life|support)|no longer (?:available|supported|served|offered|accessible|exists?|active)"
)
_NOT_HERE: Final = (
    r"not (?:accessible|deployed|running|enabled|activated|allowed|active)|inaccessible|disabled|inactive"
)
_NOT_NOW: Final = r"(?!.{0,80}(?:temporar|overload|try again|busy|capacity))"
GONE_MODEL: Final = (
    rf"models?(?: {_INNER}){{0,6}} (?:{_GONE})",
    rf"(?:{_GONE}).{{0,100}}(?:different|another|newer|other|supported|replacement) models?",
    rf"{_NOT_NOW}models?(?: {_INNER}){{0,3}} (?:is |are |was |has been )(?:currently )?(?:{_NOT_HERE})",
    rf"models? (?:{_NOT_HERE})|model_not_available",
    r"models? (?:\S{1,80} )?(?:is|are) not supported(?! (?:with|when|in|for))",
    rf"(?:unable|not able|not allowed|no permission) to (?:access|use)(?: {WORD}){{0,3}} models?",
    rf"endpoint(?: for)? \S{{1,80}} is not running|dedicated endpoint(?: {WORD}){{0,3}} not running",
)
"""The model is gone, or this account cannot use it."""

STARTING_MODEL: Final = (
    rf"models?(?: {WORD}){{0,3}} (?:loading|warming up|starting up|initiali[sz]ing)",
    rf"models?(?: {WORD}){{0,3}} (?:being|not yet) (?:loaded|ready|started)",
)
"""The model starts: it answers later."""

NO_QUOTA_LEFT: Final = rf"no(?: {WORD}){{0,2}} available (?:with|that have) quota"

_ADVERB: Final = r"was|is|has been|got|has|were|unexpectedly|prematurely|abruptly|remotely|already"
_STREAM: Final = (
    r"(?:event |sse |upstream |response |server |client |peer )?"
    r"(?:stream|connection|socket|transport|websocket)|response body|message body"
    r"|upstream(?: response| request)?|peer"
)
_CLOSED: Final = (
    r"closed|ended|terminated|disconnected|aborted|reset|broken|broke|broke off|interrupted|dropped|lost"
    r"|cut off|truncated|incomplete|hung up|stalled|termination|reset by peer"
)
CLOSED_STREAM: Final = (
    rf"(?:{_STREAM})(?: (?:{_ADVERB})){{0,3}} (?:{_CLOSED})",
    rf"(?:{_CLOSED}) (?:the |by |from )?(?:upstream |remote |server |an? )?(?:stream|connection|socket|peer)",
    r"disconnect/reset before headers|upstream connect error|unexpected end of (?:stream|file|data|json)\w*",
    r"premature(?:ly)? (?:end|close[ds]?)|before (?:receiving )?(?:a |the )?response completed?",
)
"""The connection or the answer broke off."""

_LONG: Final = r"prompt|inputs?|context|messages?|conversation|request|sequence|history"
_NOT_A_RATE: Final = r"(?!.{0,200}(?:per (?:min|sec|hour|day)|rate limit|quota|tpm))"
LONG_CONTEXT: Final = (
    r"exceed(?:s|ed|ing)? (?:the )?n ctx|token limit (?:was |has been |is )?(?:exceeded|reached)",
    rf"{_NOT_A_RATE}(?:{_LONG})(?: {WORD}){{0,4}} exceed(?:s|ed|ing)?(?: {WORD}){{0,6}}"
    r" (?:context|window|n ctx|token limit|maximum (?:length|tokens))",
    rf"{_NOT_A_RATE}(?:{_LONG})(?: {WORD}){{0,6}} \(?\d[\d,]* (?:input |prompt )?tokens?\)?"
    rf"(?: {WORD}){{0,8}} (?:maximum|limit|at most|only|window|exceeds?|>)",
    rf"(?:shorten|provide) (?:your |the |a shorter )(?:{_LONG})|larger context (?:length|window|size)",
    rf"(?:{_LONG}) (?:length|size)(?: is| was)? too (?:long|large)",
    rf"longer than (?:the )?(?:{WORD} )?max(?:imum)?(?: {WORD})? length",
    rf"context(?: {WORD}){{0,2}} overflow(?:s|ed)|n (?:keep|prompt|tokens).{{0,40}}n ctx",
    rf"reduce (?:your |the )?(?:(?:length|size|number) of )?(?:your |the |input |prompt )*(?:{_LONG})"
    r"(?: (?:length|size|tokens))?",
)
"""The request is longer than the context window."""
