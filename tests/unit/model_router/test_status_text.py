"""A text names a status only if it presents the number as one."""

import pytest
from spawnmesh_model_router.domain.status_text import status_in_text

NAMED = (
    "HTTP/1.1 429 Too Many Requests",
    "http_status=429",
    "statusCode: 429",
    "Response status code does not indicate success: 429",
    "The remote server returned an error: (429) Too Many.",
    "<ClientResponse(https://x) [429 Too Many Requests]>",
    "[429] slow down",
    "Error · 429",
    "Call failed (attempt 1/3): 429",
    "请求失败: 429",
    "Fehler 429: zu viele",
    "{'error': {'code': 429, 'message': 'x'}}",
    'POST "https://api.example.com/v1/chat": 429 Too Many Requests',
    "an HTTP 429 was received",
)
COUNTED = (
    "took 429 ms",
    "error: 500 tokens exceed 400",
    "call failed after 500 attempts",
    "Error: expected 400 items but got 500 items",
    "response: 450 words",
    "found 404 results",
    "limit: 500 requests per day",
    "Error at line 429",
    "request id 429",
    "error 4291",
    "gpt-500 is slow",
    "EncodingError: 400, message='Can not decode content-encoding: br'",
)


@pytest.mark.parametrize("text", NAMED)
def test_status_of_a_text_is_found(text: str) -> None:
    status, wording = status_in_text(text)
    assert status == 429
    assert wording in text


@pytest.mark.parametrize("text", COUNTED)
def test_number_that_counts_something_is_no_status(text: str) -> None:
    assert status_in_text(text) == (None, "")
