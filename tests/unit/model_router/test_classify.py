"""Classification of the example failures, and of further real wordings of providers."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_model_router.domain.classify import classify, is_about_request, reason_of_status
from spawnmesh_model_router.domain.error_names import reason_of_name
from spawnmesh_model_router.domain.reasons import FailoverReason, ModelFailure

CASES = Path(__file__).parent / "cases"
EXAMPLES = json.loads((CASES / "failover_classify.json").read_text(encoding="utf-8"))
WORDINGS = json.loads((CASES / "provider_wordings.json").read_text(encoding="utf-8"))


def failure_of(fields: dict[str, Any]) -> ModelFailure:
    lists = {name: tuple(fields.get(name, ())) for name in ("details", "cause_messages")}
    return ModelFailure(**{**fields, **lists})


@pytest.mark.parametrize("case", EXAMPLES, ids=[case["id"] for case in EXAMPLES])
def test_example_failure_has_its_reason(case: dict[str, Any]) -> None:
    expected = case["expect"].get("reason_in") or [case["expect"]["reason"]]
    assert classify(failure_of(case["given"])).value in expected


@pytest.mark.parametrize("case", WORDINGS, ids=range(len(WORDINGS)))
def test_wording_of_a_real_provider_has_its_reason(case: dict[str, Any]) -> None:
    assert classify(failure_of(case["given"])) is FailoverReason(case["expect"]["reason"])


def test_failure_that_says_nothing_at_all_is_named_so() -> None:
    assert classify(ModelFailure()) is FailoverReason.NO_ERROR_DETAILS


def test_status_written_as_a_string_in_a_nested_body_counts() -> None:
    body = json.dumps({"error": {"error": {"status": "529", "note": "x"}}})
    assert classify(ModelFailure(message=body)) is FailoverReason.OVERLOADED


def test_bad_request_with_a_code_but_no_text_has_a_body() -> None:
    assert classify(ModelFailure(status=400, code="unknown_parameter")) is FailoverReason.FORMAT
    assert classify(ModelFailure(status=400)) is FailoverReason.NO_FAILOVER


def test_status_of_the_answer_beats_the_status_in_its_body() -> None:
    body = json.dumps({"error": {"code": 429, "message": "later"}})
    assert classify(ModelFailure(status=500, message=body)) is FailoverReason.SERVER_ERROR


def test_cause_beyond_the_bound_is_not_read() -> None:
    noise = tuple(f"wrapper {index}" for index in range(25))
    cause = "certificate verify failed"
    assert classify(ModelFailure(cause_messages=(*noise[:24], cause))) is FailoverReason.TLS_CERTIFICATE
    assert classify(ModelFailure(cause_messages=(*noise, cause))) is FailoverReason.UNCLASSIFIED


@pytest.mark.parametrize("status", [None, 413, 429])
def test_tokens_per_minute_smaller_than_the_request_is_a_rate_limit(status: int | None) -> None:
    text = "Request too large on tokens per minute (TPM): Limit 10, Requested 11"
    assert classify(ModelFailure(status=status, message=text)) is FailoverReason.RATE_LIMIT


@pytest.mark.parametrize(
    ("status", "text", "reason"),
    [
        (429, "Request too large: requested 30677 tokens > limit 30000 tokens", FailoverReason.RATE_LIMIT),
        (405, "nobody knows this text", FailoverReason.UNCLASSIFIED),
        (451, "nobody knows this text", FailoverReason.UNCLASSIFIED),
        (424, "Error of the tool server: 401 Unauthorized", FailoverReason.UNCLASSIFIED),
        (500, "Incorrect API key provided", FailoverReason.AUTH),
        (502, "Incorrect API key provided", FailoverReason.SERVER_ERROR),
        (500, "Bad gateway", FailoverReason.SERVER_ERROR),
        (503, "Not Found", FailoverReason.SERVER_ERROR),
        (403, "You have reached your weekly usage limit", FailoverReason.RATE_LIMIT),
        (400, "The model has crashed", FailoverReason.SERVER_ERROR),
        (400, '{"error": {"message": "x y", "param": "model"}}', FailoverReason.MODEL_NOT_FOUND),
        (400, "Traceback of the worker", FailoverReason.SERVER_ERROR),
        (None, "Traceback of the worker", FailoverReason.UNCLASSIFIED),
        (400, "The model took too long", FailoverReason.TIMEOUT),
        (403, "quota exhausted", FailoverReason.RATE_LIMIT),
        (403, "Invalid model name x", FailoverReason.MODEL_NOT_FOUND),
        (403, "Streaming is not allowed", FailoverReason.FORMAT),
        (410, "The search is deprecated", FailoverReason.FORMAT),
        (None, "litellm.APIConnectionError: invalid params", FailoverReason.FORMAT),
        (None, "litellm.ServiceUnavailableError: connection closed", FailoverReason.TIMEOUT),
        (None, "ResourceExhausted", FailoverReason.RATE_LIMIT),
    ],
)
def test_text_overrides_a_status_only_where_it_says_more(
    status: int | None, text: str, reason: FailoverReason
) -> None:
    assert classify(ModelFailure(status=status, message=text)) is reason


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("billing_error", FailoverReason.BILLING),
        ("UnrecognizedClientException", FailoverReason.AUTH),
        ("context_overflow", FailoverReason.CONTEXT_OVERFLOW),
        ("timeout", FailoverReason.FORMAT),
        ("server_error", FailoverReason.FORMAT),
    ],
)
def test_code_of_a_refused_request_decides_if_its_text_does_not(code: str, reason: FailoverReason) -> None:
    assert classify(ModelFailure(status=400, message="nobody knows this text", code=code)) is reason


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("content-blocked", FailoverReason.NO_FAILOVER),
        ("unsupported_api_for_model", FailoverReason.FORMAT),
        ("unsupported", FailoverReason.UNCLASSIFIED),
    ],
)
def test_code_says_the_cause_if_the_text_does_not(code: str, reason: FailoverReason) -> None:
    assert classify(ModelFailure(message="nobody knows this text", code=code)) is reason


@pytest.mark.parametrize("code", ["MODEL_NOT_READY", "model_not_ready_error"])
def test_code_that_names_a_cause_beats_a_text_that_only_refuses_a_value(code: str) -> None:
    assert classify(ModelFailure(message="invalid value", code=code)) is FailoverReason.OVERLOADED


@pytest.mark.parametrize(
    ("provider", "text", "reason"),
    [
        ("zai", '{"error": {"code": "1214", "message": "x y"}}', FailoverReason.FORMAT),
        ("openai", '{"error": {"code": "1214", "message": "x y"}}', FailoverReason.UNCLASSIFIED),
        ("zai", '{"error": {"code": "1214", "message": "rate limit reached"}}', FailoverReason.RATE_LIMIT),
        ("minimax", "x y (2049)", FailoverReason.AUTH),
        ("minimax", "x y 2049", FailoverReason.UNCLASSIFIED),
        ("cloudflare", "3040: x y", FailoverReason.OVERLOADED),
    ],
)
def test_number_that_a_provider_documents_decides_if_its_text_does_not(
    provider: str, text: str, reason: FailoverReason
) -> None:
    assert classify(ModelFailure(message=text, provider=provider)) is reason


def test_full_disk_is_our_own_only_without_an_answer_of_a_provider() -> None:
    text = "No space left on device"
    assert classify(ModelFailure(message=text)) is FailoverReason.NO_FAILOVER
    assert classify(ModelFailure(status=500, message=text)) is FailoverReason.SERVER_ERROR
    assert classify(ModelFailure(status=409, message=text)) is FailoverReason.UNCLASSIFIED


def test_reason_of_another_provider_does_not_leak_into_vendor_rules() -> None:
    assert (
        classify(ModelFailure(message="Provider returned error", provider="openai"))
        is FailoverReason.UNCLASSIFIED
    )


@pytest.mark.parametrize("reason", FailoverReason)
def test_router_behind_this_one_may_spell_the_reason_itself(reason: FailoverReason) -> None:
    assert reason_of_name(reason.value.lower()) is reason


@pytest.mark.parametrize("spelling", ["RateLimitError", "rate_limit_error", "RATE_LIMIT"])
def test_spellings_of_a_name_are_one_name(spelling: str) -> None:
    assert reason_of_name(spelling) is FailoverReason.RATE_LIMIT


@pytest.mark.timeout(20)
@pytest.mark.parametrize("piece", ["_", "insufficient ", "a ", "model ", '{"a":', "[{", "key ", "quota "])
def test_hostile_text_is_judged_in_time(piece: str) -> None:
    assert classify(ModelFailure(message="insufficient " + piece * 8000)) in FailoverReason


@given(st.builds(ModelFailure, status=st.none() | st.integers(100, 599), message=st.text(), code=st.text()))
def test_every_failure_gets_some_reason(failure: ModelFailure) -> None:
    assert classify(failure) in FailoverReason


@pytest.mark.parametrize("blanks", [0, 10_000])
def test_a_failure_that_was_judged_before_is_judged_as_it_was_and_by_all_that_it_says(blanks: int) -> None:
    said = json.dumps({"error": {"message": "slow down", "code": "odd"}, "more": " " * blanks})
    unlike = ModelFailure(status=429, message=said.replace("slow down", "your credit balance is too low"))
    for _ in range(2):
        assert classify(ModelFailure(status=429, message=said)) is FailoverReason.RATE_LIMIT
        assert classify(unlike) is FailoverReason.BILLING
        assert classify(ModelFailure(status=503, message=said)) is FailoverReason.SERVER_ERROR


TOO_LARGE = "Request too large for model on tokens per min (TPM): Limit 30000, Requested 40000"


@pytest.mark.parametrize(
    ("message", "reason", "about_request"),
    [
        (TOO_LARGE, FailoverReason.RATE_LIMIT, True),
        (TOO_LARGE, FailoverReason.CONTEXT_OVERFLOW, False),
        ("Rate limit reached on tokens per min (TPM)", FailoverReason.RATE_LIMIT, False),
    ],
)
def test_only_a_request_above_the_tokens_of_a_minute_is_about_itself(
    message: str, reason: FailoverReason, about_request: bool
) -> None:
    assert is_about_request(ModelFailure(message=message), reason) is about_request


@pytest.mark.parametrize("status", [408, 499, 500, 502, 599])
def test_html_page_of_a_gateway_is_judged_by_its_status_alone(status: int) -> None:
    page = ModelFailure(status=status, message="<html>no space left on device</html>")
    assert classify(page) is reason_of_status(status)


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (None, None),
        (200, None),
        (402, FailoverReason.BILLING),
        (418, None),
        (429, FailoverReason.RATE_LIMIT),
        (500, FailoverReason.SERVER_ERROR),
        (599, FailoverReason.SERVER_ERROR),
        (600, None),
    ],
)
def test_status_has_a_reason_without_its_text(status: int | None, reason: FailoverReason | None) -> None:
    assert reason_of_status(status) is reason
