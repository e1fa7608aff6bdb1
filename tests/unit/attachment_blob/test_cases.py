import json
from pathlib import Path
from typing import Any

import pytest
from spawnmesh_attachment_blob.domain import (
    AttachmentLimits,
    AttachmentRefused,
    Encoding,
    InlineItem,
    validate,
)

CASES = Path(__file__).parent / "cases"


def load(file_name: str) -> list[Any]:
    return [pytest.param(case, id=case["id"]) for case in json.loads((CASES / file_name).read_text("utf-8"))]


def outcome(items: list[InlineItem], limits: AttachmentLimits) -> dict[str, Any]:
    try:
        files = validate(items, limits)
    except AttachmentRefused as refused:
        return {"reason": refused.reason.value}
    listed = [{"name": file.name, "bytes": len(file.data), "sha256": file.sha256} for file in files]
    return {"files": listed, "total_bytes": sum(len(file.data) for file in files)}


@pytest.mark.parametrize("case", load("attachments_validate.json"))
def test_list_is_validated_as_its_case_expects(case: dict[str, Any]) -> None:
    given = case["given"]
    items = [
        InlineItem(item["name"], item["content"], Encoding.from_text(item["encoding"]))
        for item in given["attachments"]
    ]
    assert outcome(items, AttachmentLimits(**given["limits"])) == case["expect"]


@pytest.mark.parametrize("case", load("attachments_name.json"))
def test_name_is_validated_as_its_case_expects(case: dict[str, Any]) -> None:
    judged = outcome([InlineItem(case["given"]["name"], "x", Encoding.UTF8)], AttachmentLimits())
    assert judged.get("reason", "accepted") == case["expect"].get("reason", "accepted")
