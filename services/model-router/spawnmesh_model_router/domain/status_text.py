"""Find the HTTP status that a text names.

A number is a status only if the text presents it as one. "4291" and "402 records" are none.
"""

import re
from typing import Final

_STATUS: Final = r"([45]\d\d)\b"
_OPEN: Final = r"[\[(<\"']?"
# Behind a status stands neither a further digit nor the thing that is counted.
_NO_COUNT: Final = (
    r"(?!\.?\d|\s*%|\s+(?:\w+\s+)?(?:records?|rows?|items?|files?|tokens?|messages?|results?|entries|lines?"
    r"|pages?|documents?|chunks?|characters?|words?|bytes|[kmg]b|images?|requests?|calls?|times?|m?s|seconds?"
    r"|minutes?|attempts?)\b)"
)
_PHRASE: Final = (
    r"bad request|unauthorized|payment required|forbidden|not found|method not allowed|request timeout"
    r"|conflict|payload too large|unprocessable|too many requests|internal server error|bad gateway"
    r"|service unavailable|gateway time-?out|(?:client |server |status )?(?:error|code)"
)
# aiohttp reports an answer that it cannot read as a 400 of its own.
_OWN_ERROR: Final = r"(?<!encodingerror: )"

_FORMS: Final = tuple(
    re.compile(form, re.IGNORECASE)
    for form in (
        rf"^\s*(?:error:?\s+)?{_OPEN}{_STATUS}(?=[\s:;,.\-\])>]|$){_NO_COUNT}",
        # `HTTP/1.1 429`, `http status code: 429`, `statusCode=429`, `status [404]`
        rf"\bhttp(?:/\d(?:\.\d)?)?(?:[\s_]*(?:status|error|code|状态码))*[\s:=：]+{_OPEN}{_STATUS}",
        rf"\bstatus(?:[\s_]?code)?\s*(?:was|is|of|[:=])?\s*{_OPEN}{_STATUS}|indicate success:\s*{_STATUS}",
        rf"(?:状态码|错误码|失败|错误|エラー|ошибка|fehler|erreur)\s*[:：]?\s*{_STATUS}{_NO_COUNT}",
        rf"\b(?:error code\s*[:=]?|code\s?=)\s*{_STATUS}"
        rf"|[\"'](?:code|status|status_code)[\"']:\s*[\"']?{_STATUS}",
        # `429 Too Many Requests`, `429, message='…'`, `https://…: 429 …`, `<429>`
        rf"(?<![\w.\-]){_STATUS}\s+(?:{_PHRASE})\b|{_OWN_ERROR}\b{_STATUS}, message=",
        rf"https?://\S+:\s+{_STATUS}|<{_STATUS}>",
        # `API error 429`, `error '529 '`, `Invalid request (404)`, `Call failed (attempt 1/3): 400`
        rf"(?:\b|_)error[\s:·–—-]+{_OPEN}{_STATUS}{_NO_COUNT}",
        r"\b(?:fail\w*|error|exception|request|response|call|denied|rejected)\s?[\[(]"
        rf"(?:http |code |status )?{_STATUS}",
        r"(?:error|exception|\bfail\w*|\bcall|\brequest|\bresponse)\b[^:\n{]{0,30}(?<!code):\s*"
        rf"{_OWN_ERROR}{_OPEN}{_STATUS}{_NO_COUNT}",
        r"\b(?:got|received|returned|responded with|replied with|answered(?: with)?|fail(?:ed|ing) with)\s+"
        rf"(?:an?\s+)?(?:(?:http|status|error|code)\s+)*{_STATUS}{_NO_COUNT}"
        rf"|[\[(](?:http|code)[\s:=]*{_STATUS}",
    )
)


def status_in_text(text: str) -> tuple[int | None, str]:
    """Return the first status that the text names, and the words that present it."""
    found = (form.search(text) for form in _FORMS)
    return next(((int(next(filter(None, hit.groups()))), hit[0]) for hit in found if hit), (None, ""))
