"""The requests equal those of the SDK, and the errors have the fields of the SDK's exceptions."""

import json
from typing import Any

import httpx2
import openai
import pytest
from spawnmesh_model_router.clients.providers.openai_http import OpenAiHttpError, OpenAiTransport

BODY = {"model": "m", "messages": [{"role": "user", "content": "Grüße, 世界"}], "temperature": 0.5}
_OF_RETRIES = "x-stainless-retry-count"  # The SDK counts its own, which are off.


@pytest.mark.parametrize(
    "base_url", ["http://one.invalid", "http://one.invalid/v1", "http://one.invalid/deep/v1/"]
)
async def test_a_line_sends_what_the_sdk_would(base_url: str) -> None:
    sent: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        sent.append(request)
        return httpx2.Response(200, text="data: [DONE]\n\n")

    async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as http:
        client = _client(http, base_url)
        line = OpenAiTransport(client, http)
        for body in (BODY, {**BODY, "model": "a longer name"}, BODY):
            await (await line.post("/chat/completions", body)).aclose()
        stream = await client.post(
            "/chat/completions",
            body={**BODY, "stream": True},
            cast_to=object,
            stream=True,
            stream_cls=openai.AsyncStream[object],
        )
        await stream.close()
    first, longer, last, by_sdk = sent
    assert (
        {**by_sdk.headers, _OF_RETRIES: ""}
        == {**first.headers, _OF_RETRIES: ""}
        == {**last.headers, _OF_RETRIES: ""}
    )
    assert (by_sdk.method, by_sdk.url, by_sdk.content) == (first.method, first.url, first.content)
    assert by_sdk.extensions == first.extensions
    assert int(longer.headers["content-length"]) == len(longer.content) > len(first.content)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (
            429,
            json.dumps(
                {"error": {"message": "slow down", "type": "requests", "code": "rate_limit_exceeded"}}
            ),
        ),
        (400, json.dumps({"message": "no", "code": "flat"})),
        (502, "<html>Bad Gateway</html>"),
        (500, ""),
        (401, json.dumps(["odd"])),
    ],
)
async def test_what_a_line_raises_says_what_the_sdks_would(status: int, body: str) -> None:
    async with httpx2.AsyncClient(
        transport=httpx2.MockTransport(
            lambda _: httpx2.Response(status, text=body, headers={"retry-after": "7"})
        )
    ) as http:
        client = _client(http, "http://one.invalid/v1")
        with pytest.raises(OpenAiHttpError) as own:
            await OpenAiTransport(client, http).post("/responses", BODY)
        with pytest.raises(openai.APIStatusError) as theirs:
            await client.post("/responses", body=BODY, cast_to=object)
    assert _facts(own.value) == _facts(theirs.value)


def _facts(error: OpenAiHttpError | openai.APIStatusError) -> tuple[Any, ...]:
    return (
        error.status_code,
        error.code,
        error.type,
        error.response.text,
        error.response.headers["retry-after"],
    )


def _client(http: httpx2.AsyncClient, base_url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        api_key="sk-any",
        organization="org-1",
        base_url=base_url,
        timeout=openai.Timeout(None, connect=5.0),
        max_retries=0,
        http_client=http,
    )
