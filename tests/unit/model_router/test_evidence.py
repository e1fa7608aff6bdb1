"""Evidence of a failure: where its status and its names come from, and the bounds of the work."""

import json

import pytest
from spawnmesh_model_router.domain.evidence import (
    MAX_CHARS,
    MAX_TEXT_CHARS,
    MAX_TEXTS,
    extract_evidence,
)
from spawnmesh_model_router.domain.reasons import ModelFailure


@pytest.mark.parametrize(
    ("failure", "status", "wording"),
    [
        pytest.param(ModelFailure(status=503, message='{"status": 429}'), 503, "", id="of the response"),
        pytest.param(ModelFailure(code="429"), 429, "", id="of its code"),
        pytest.param(ModelFailure(message='{"status": 429}'), 429, "", id="of its body"),
        pytest.param(ModelFailure(message='{"error": {"code": "429"}}'), 429, "", id="of its body's error"),
        pytest.param(
            ModelFailure(message='{"error": {"metadata": {"status": 429}}}'), 429, "429", id="further inside"
        ),
        pytest.param(ModelFailure(message='said {"status": 429}'), 429, "429", id="of a body in a text"),
        pytest.param(ModelFailure(details=('{"status": 429}',)), 429, "429", id="of a detail"),
        pytest.param(ModelFailure(message="HTTP status 429"), 429, "HTTP status 429", id="of a text"),
        pytest.param(ModelFailure(message="4291 tokens"), None, "", id="of no number"),
        pytest.param(ModelFailure(message='{"status": 4291}'), None, "", id="of no status number"),
    ],
)
def test_status_has_the_text_that_it_was_read_from(
    failure: ModelFailure, status: int | None, wording: str
) -> None:
    evidence = extract_evidence(failure)
    assert (evidence.status, evidence.status_wording) == (status, wording)


def test_names_of_the_response_are_given_and_those_further_inside_are_not() -> None:
    body = {"type": "outer_type", "error": {"code": "inner_code", "metadata": {"reason": "deep_reason"}}}
    evidence = extract_evidence(ModelFailure(message=json.dumps(body), code="own_code"))
    assert {"own_code", "outer_type", "inner_code", "deep_reason"} <= set(evidence.names)
    assert {"own_code", "outer_type", "inner_code"} <= evidence.given
    assert "deep_reason" not in evidence.given


def test_texts_are_cut_to_the_bounds_of_each_and_of_all() -> None:
    details = tuple(str(digit) * 2 * MAX_TEXT_CHARS for digit in range(9))
    texts = extract_evidence(ModelFailure(message="m" * 2 * MAX_TEXT_CHARS, details=details)).texts
    assert [len(text) for text in texts] == [MAX_TEXT_CHARS] * (MAX_CHARS // MAX_TEXT_CHARS)


def test_last_text_is_cut_to_what_is_left_of_all() -> None:
    details = ("a" * (MAX_TEXT_CHARS - 1), *(digit * MAX_TEXT_CHARS for digit in "1234"))
    texts = extract_evidence(ModelFailure(details=details)).texts
    assert [len(text) for text in texts] == [MAX_TEXT_CHARS - 1, *[MAX_TEXT_CHARS] * 3, 1]


def test_names_and_texts_of_bodies_are_bounded_together() -> None:
    bodies = [{"message": f"message {at}", "type": f"type_{at}"} for at in range(40)]
    details = tuple(json.dumps({f"at{detail}": bodies}) for detail in range(20))
    failure = ModelFailure(details=tuple(text.replace("_", f"_{at}x") for at, text in enumerate(details)))
    evidence = extract_evidence(failure)
    assert len([name for name in evidence.names if name.startswith("type_")]) <= MAX_TEXTS // 2


@pytest.mark.parametrize(
    ("failure", "has_body"),
    [
        (ModelFailure(), False),
        (ModelFailure(message="  "), False),
        (ModelFailure(message="status 400 (no body)"), False),
        (ModelFailure(message="bad"), True),
        (ModelFailure(code="bad"), True),
    ],
)
def test_body_is_a_text_or_a_name(failure: ModelFailure, has_body: bool) -> None:
    assert extract_evidence(failure).has_body is has_body


def test_text_that_another_one_quotes_is_not_distinct() -> None:
    evidence = extract_evidence(
        ModelFailure(message='failed with "slow down"', details=("slow down", "other"))
    )
    assert evidence.distinct == ('failed with "slow down"', "other")


@pytest.mark.parametrize("wrapper", ["litellm.BadRequestError: ", "openai.exceptions.APIError: "])
def test_class_that_an_sdk_chose_by_the_status_is_a_name_and_no_text(wrapper: str) -> None:
    evidence = extract_evidence(ModelFailure(message=wrapper + "slow down"))
    assert evidence.distinct == ("slow down",)
    assert wrapper.rstrip(": ").rpartition(".")[2] in evidence.names


def test_class_of_an_sdk_alone_is_a_text() -> None:
    assert extract_evidence(ModelFailure(message="RateLimitError: ")).distinct
