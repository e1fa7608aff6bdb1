"""Files of cases are replayed through the running services, and differences are reported."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest
from spawnmesh_devstack.conformance.areas import AREAS
from spawnmesh_devstack.conformance.mesh import Deployment, new_run
from spawnmesh_devstack.conformance.replay import Replayed, replay_files
from spawnmesh_devstack.stack import Stack
from spawnmesh_runtime.tokens import TokenMinter

UNIT = Path(__file__).parents[1] / "unit"
FILES = {file.stem: file for file in UNIT.glob("*/cases/*.json") if file.stem in AREAS}
LIMITS = {"max_files": 2, "max_file_bytes": 8, "max_total_bytes": 12}


def quiet(_line: str) -> None:
    """Drop a line of progress."""


async def replayed(stack: Stack, area: str, file: Path) -> Replayed:
    deployment = Deployment(stack.targets, stack.keys)
    return (await replay_files(area, file, deployment=deployment, report=quiet))[area]


async def lines_of(stack: Stack, tmp_path: Path, area: str, *cases: dict[str, Any]) -> list[str]:
    file = tmp_path / f"{area}.json"
    file.write_text(json.dumps([{"id": f"case-{place}", **case} for place, case in enumerate(cases)]))
    return (await replayed(stack, area, file)).lines()


def staging(expect: dict[str, Any], *attachments: dict[str, Any], **limits: Any) -> dict[str, Any]:
    return {"given": {"limits": LIMITS | limits, "attachments": list(attachments)}, "expect": expect}


def file_of(name: str = "a.txt", content: str = "x", encoding: str = "utf8") -> dict[str, str]:
    return {"name": name, "content": content, "encoding": encoding}


def spawning(*must_not_contain: str, **block: Any) -> dict[str, Any]:
    return {"given": {"case": "", "block": block}, "expect": {"must_not_contain": list(must_not_contain)}}


def asking(*ids: str, **more: Any) -> dict[str, Any]:
    blocks = [{"type": "toolCall", "id": call_id, "name": "read", "arguments": {}} for call_id in ids]
    return {"role": "assistant", "content": blocks, **more}


def answering(call_id: str, text: str = "ok", **more: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": text}]
    return {"role": "toolResult", "toolCallId": call_id, "toolName": "read", "content": content, **more}


def made_up(call_id: str) -> dict[str, Any]:
    text = "[x] missing tool result; inserted synthetic error result"
    return answering(call_id, text, isError=True, details={"xSyntheticMissingToolResult": True})


def pairing(given: list[Any], expected: list[Any], **expect: Any) -> dict[str, Any]:
    wanted = {"addedIds": [], "droppedDuplicateCount": 0, "droppedOrphanCount": 0, **expect}
    return {"given": {"given": {"messages": given}, "when": "x"}, "expect": {"messages": expected, **wanted}}


@pytest.fixture(scope="module")
async def examples(stack: Stack) -> dict[str, list[str]]:
    """Replay all example cases; return the lines of each area."""
    return {area: (await replayed(stack, area, file)).lines() for area, file in FILES.items()}


@pytest.mark.parametrize("area", sorted(AREAS))
def test_every_example_case_passes_and_every_one_was_replayed(
    examples: dict[str, list[str]], area: str
) -> None:
    assert examples[area] == [f"{len(json.loads(FILES[area].read_text()))} passed, 0 failed"]


@pytest.mark.parametrize("area", sorted(AREAS))
async def test_case_with_unknown_fields_fails_with_that_reason(
    stack: Stack, tmp_path: Path, area: str
) -> None:
    case = json.loads(FILES[area].read_text())[0]
    lines = await lines_of(
        stack,
        tmp_path,
        area,
        {**case, "given": {**case["given"], "more": 1}},
        {"given": []},
        {"id": "x"},
        {**case, "id": "y", "expected": {}},
    )
    assert "'more'" in lines[0]
    assert lines[1:] == [
        "case-1: not replayed: given is no object",
        "x: not replayed: given is no object",
        "y: not replayed: the case has what the replay does not know: expected",
        "0 passed, 4 failed",
    ]


async def test_reason_may_be_any_of_a_list(stack: Stack, tmp_path: Path) -> None:
    limited = {"given": {"status": 429}}
    assert await lines_of(
        stack,
        tmp_path,
        "failover_classify",
        {**limited, "expect": {"reason_in": ["BILLING", "RATE_LIMIT"]}},
        {**limited, "expect": {"reason_in": ["BILLING", "AUTH"]}},
    ) == ['case-1: came "RATE_LIMIT", expected one of ["BILLING", "AUTH"]', "1 passed, 1 failed"]


async def test_attachments_are_judged_by_the_limits_of_their_case(stack: Stack, tmp_path: Path) -> None:
    assert await lines_of(
        stack,
        tmp_path,
        "attachments_validate",
        staging({"total_bytes": 8}, file_of(content="x" * 8)),
        staging({"reason": "ATTACHMENTS_FILE_BYTES_EXCEEDED"}, file_of(content="x" * 9)),
        staging({"total_bytes": 9}, file_of(content="x" * 9), max_file_bytes=9),
        staging({"reason": "ATTACHMENTS_DISABLED"}, file_of(), enabled=False),
        staging({"reason": "ATTACHMENTS_INVALID_ENCODING"}, file_of(encoding="hex")),
        staging({"reason": "ATTACHMENTS_INVALID_ENCODING"}, {"name": "a", "content": "x"}),
        staging({"reason": "ATTACHMENTS_INVALID_NAME"}, {"content": "x", "encoding": "utf8"}),
    ) == ["7 passed, 0 failed"]


async def test_attachments_outcome_other_than_expected_is_shown(stack: Stack, tmp_path: Path) -> None:
    lines = await lines_of(
        stack,
        tmp_path,
        "attachments_validate",
        staging({"total_bytes": 2}, file_of()),
        staging({"files": [{"name": "a.txt", "bytes": 1, "sha256": "0" * 64}]}, file_of()),
        staging({"reason": "ATTACHMENTS_INVALID_NAME"}, file_of()),
        staging({"total_bytes": 1}, file_of(name="a/b")),
        staging({"total_bytes": 1}, file_of(), max_files=5000),
        staging({"total_bytes": 1}, file_of(), max_files="2"),
    )
    assert [line.partition(":")[0] for line in lines[:-1]] == [f"case-{place}" for place in range(6)]
    assert "came {" in lines[0]
    assert '"reason": "ATTACHMENTS_INVALID_NAME", "accepted": false' in lines[3]
    assert "INVALID_REQUEST" in lines[4]
    assert lines[-1] == "0 passed, 6 failed"


async def test_values_that_no_request_can_carry_are_judged_by_the_same_rule_and_reported(
    stack: Stack, tmp_path: Path
) -> None:
    assert await lines_of(
        stack,
        tmp_path,
        "attachments_validate",
        staging({"reason": "ATTACHMENTS_INVALID_NAME"}, file_of(), file_of(name="\ud800")),
        staging({"reason": "ATTACHMENTS_INVALID_ENCODING"}, file_of(content="\udfff")),
        staging({"files": [], "total_bytes": 0}),
        staging({"total_bytes": 1}, file_of()),
    ) == [
        "judged by the rule alone, since no request can carry them: case-0, case-1, case-2",
        "4 passed, 0 failed",
    ]


async def test_name_is_accepted_or_refused(stack: Stack, tmp_path: Path) -> None:
    lines = await lines_of(
        stack,
        tmp_path,
        "attachments_name",
        {"given": {"name": "日本.txt", "why": "letters"}, "expect": {"accepted": True}},
        {"given": {"name": "a:b"}, "expect": {"accepted": True}},
        {"given": {"name": "a.txt"}, "expect": {"reason": "ATTACHMENTS_INVALID_NAME"}},
        {"given": {"name": "\udc00"}, "expect": {"reason": "ATTACHMENTS_INVALID_NAME"}},
    )
    assert [line.partition(":")[0] for line in lines[:2]] == ["case-1", "case-2"]
    assert lines[-1] == "2 passed, 2 failed"


async def test_text_that_is_stored_is_found_however_deep_it_is(stack: Stack, tmp_path: Path) -> None:
    wrapped = json.dumps(json.dumps({"a": ["é☃"]}))
    lines = await lines_of(
        stack,
        tmp_path,
        "redact_spawn",
        spawning(
            "SECRET", type="toolCall", id="c", name="read", arguments={"attachments": [{"content": "SECRET"}]}
        ),
        spawning("é☃", type="toolCall", id="c", name="read", arguments=wrapped),
        spawning("SECRET", type="toolCall", id="SECRET", name="read", arguments={}),
        spawning("x", type="toolCall", id="c", name="x" * 300, arguments={}),
        spawning(type="toolCall", id="c", name="read"),
    )
    assert [line.partition(": ")[2] for line in lines[:3]] == [
        'came back with ["SECRET"]',
        'came back with ["\\u00e9\\u2603"]',
        'came back with ["SECRET"]',
    ]
    assert "came INVALID_REQUEST" in lines[3]
    assert "names no text" in lines[4]
    assert lines[5] == "0 passed, 5 failed"


async def test_spawn_calls_of_other_shapes_can_be_replayed(stack: Stack, tmp_path: Path) -> None:
    arguments = {"attachments": [{"name": "\ud800", "content": "SECRET\udfff"}]}
    assert await lines_of(
        stack,
        tmp_path,
        "redact_spawn",
        spawning(
            "SECRET", type="function", function={"name": "spawn_session", "arguments": json.dumps(arguments)}
        ),
        spawning("SECRET", "\udfff", type="toolUse", id="\ud800", name="sessions_spawn", input=arguments),
    ) == ["2 passed, 0 failed"]


async def test_pairing_of_every_kind_can_be_replayed(stack: Stack, tmp_path: Path) -> None:
    user = {"role": "user", "content": "u"}
    broken = asking("a", stopReason="error")
    many = [message for number in range(140) for message in (asking(f"i{number}"), answering(f"i{number}"))]
    assert await lines_of(
        stack,
        tmp_path,
        "transcript_pairing",
        pairing([asking("a"), user], [asking("a"), made_up("a"), user], addedIds=["a"]),
        pairing(
            [asking("a"), made_up("a"), user, answering("a")],
            [asking("a"), answering("a"), user],
            droppedDuplicateCount=1,
        ),
        pairing([asking("a"), made_up("a")], [asking("a"), made_up("a")]),
        pairing([broken, user], [broken, user]),
        pairing([broken, answering("a"), user], [broken, answering("a"), user]),
        pairing(
            [answering("a"), asking("a"), answering("a", "2")],
            [asking("a"), answering("a", "2")],
            droppedOrphanCount=1,
        ),
        pairing(
            [asking("a"), answering(""), answering("a")], [asking("a"), answering("a")], droppedOrphanCount=1
        ),
        pairing([], []),
        pairing(many, many),
        {"given": {"messages": [user]}, "expect": {"messages": [user]}},
    ) == ["10 passed, 0 failed"]


async def test_pairing_other_than_expected_is_shown(stack: Stack, tmp_path: Path) -> None:
    call, one, other = asking("a"), answering("a", "1"), answering("a", "2")
    lines = await lines_of(
        stack,
        tmp_path,
        "transcript_pairing",
        pairing([call, one, other], [call, other], droppedDuplicateCount=1),
        pairing([call, one], [one, call]),
        pairing([call, one], [call, {**one, "isError": True}]),
        pairing([call, one], [call, {**one, "toolCallId": "b"}]),
        pairing([call, one], [call, {**one, "toolName": "exec"}]),
        pairing([call, one], [call, made_up("a")]),
        pairing([call], [call, one], addedIds=["a"]),
        pairing([call], [call, made_up("a")]),
        pairing([call, one, other], [call, one]),
        pairing([call, one], [call, one], droppedOrphanCount=1),
        pairing([call, one], [call, one], moved=True),
        pairing([{"role": "narrator", "content": "x"}], []),
    )
    assert [line.partition(":")[0] for line in lines[:-1]] == [f"case-{place}" for place in range(12)]
    assert lines[-1] == "0 passed, 12 failed"


@pytest.mark.usefixtures("examples")
async def test_replay_leaves_neither_files_nor_transcripts(stack: Stack) -> None:
    left = (
        "select (select count(*) from attachment_blob.sets where tenant_id like 'conformance%%' and state <> 'RELEASED'),"
        " (select count(*) from attachment_blob.sets where tenant_id like 'conformance%%'),"
        " (select count(*) from attachment_blob.blobs where tenant_id like 'conformance%%'),"
        " (select count(*) from transcript.entries where tenant_id like 'conformance%%')"
    )
    async with await psycopg.AsyncConnection.connect(stack.superuser_dsn) as connection:
        row = await (await connection.execute(left)).fetchone()
    assert row is not None
    unreleased, staged, blobs, entries = row
    assert staged > 0
    assert (unreleased, blobs, entries) == (0, 0, 0)


async def command(*arguments: str) -> tuple[int | None, list[str], list[str]]:
    """Run the command; return exit code, lines of output and lines of progress."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "spawnmesh_devstack.conformance"),
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await process.communicate()
    return process.returncode, output.decode().splitlines(), errors.decode().splitlines()


async def test_command_without_a_mesh_starts_one_and_reports_it_on_standard_error() -> None:
    status, output, progress = await command("attachments_name", str(FILES["attachments_name"]))
    assert (status, output) == (0, ["6 passed, 0 failed"])
    assert "the mesh is ready" in progress


async def test_command_ends_with_1_where_a_case_differs(stack: Stack, tmp_path: Path) -> None:
    file = tmp_path / "cases.json"
    file.write_text(json.dumps([{"id": "X", "given": {"name": "a/b"}, "expect": {"accepted": True}}]))
    status, output, progress = await command("attachments_name", str(file), "--mesh", str(stack.data_dir))
    assert status == 1
    assert output[0].startswith("X: came ")
    assert output[1:] == ["0 passed, 1 failed"]
    assert progress == []


async def test_command_replays_every_area_at_the_given_targets(stack: Stack, tmp_path: Path) -> None:
    named = {"id": "X", "given": {"name": "a/b"}}
    wrong, right = ["INVALID_REQUEST"], ["INVALID_REQUEST", "ATTACHMENTS_INVALID_NAME"]
    cases = [{**named, "expect": {"reason_in": one}} for one in (right, wrong)]
    (tmp_path / "attachments_name.json").write_text(json.dumps(cases))
    (tmp_path / "redact_spawn.json").write_text(FILES["redact_spawn"].read_text())
    (tmp_path / "images_partial.json").write_text(FILES["images_partial"].read_text())
    targets = [f"--target={name}={stack.targets[name]}" for name in ("attachment-blob", "transcript")]
    status, output, _ = await command("all", str(tmp_path), *targets, "--keys", str(stack.keys))
    assert status == 1
    names = [line for line in output if line.endswith(":")]
    assert names == ["attachments_name:", "images_partial:", "redact_spawn:"]
    assert output[1].startswith("X: came ")
    assert output[2] == "1 passed, 1 failed"
    assert output[4].endswith(": not replayed: no target of model-router was given")
    assert output[-1].startswith("3 areas: ")


async def test_command_makes_all_calls_with_the_given_token(stack: Stack) -> None:
    area = "failover_classify"
    run = new_run("conformance-token")
    session = TokenMinter("session", stack.keys / "session.pem")
    token = session.run_token(run.tenant_id, run.session_id, run.run_id, run.epoch, 600)
    target = f"--target=model-router={stack.targets['model-router']}"
    status, output, _ = await command(area, str(FILES[area]), target, "--token", token)
    assert (status, output) == (0, [f"{len(json.loads(FILES[area].read_text()))} passed, 0 failed"])
    status, output, _ = await command(area, str(FILES[area]), target, "--token", "nobody")
    assert status == 1
    assert "TOKEN_INVALID" in output[0]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--target=session=x:1",),
        ("--token", "t"),
        ("--target=nothing=x:1", "--token", "t"),
        ("--target=session=x:1", "--token", "t", "--mesh", "m"),
    ],
)
async def test_command_refuses_arguments_that_do_not_fit(arguments: tuple[str, ...]) -> None:
    status, output, errors = await command("attachments_name", "cases.json", *arguments)
    assert (status, output) == (2, [])
    assert "--target" in errors[-1] or "no service" in errors[-1]
