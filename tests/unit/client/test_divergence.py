"""Two transcripts go apart at the first entries that say something else."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh.content.v1.message_pb2 import ROLE_BASH_EXECUTION, BashExecution, ContentBlock, Image, Message
from spawnmesh.transcript.v1.entry_pb2 import Compaction, Custom, Entry, EntryBody, Mirror
from spawnmesh_client.divergence import CopiedBeginning, Divergence, find_divergence
from spawnmesh_client.entry_fingerprints import Fingerprints, call_arguments
from spawnmesh_core.ids import IdKind, new_id

from tests.support.client.diff_entries import (
    answer,
    calls,
    final,
    header,
    model_change,
    note,
    reading,
    result,
    seqs_of,
    superseded,
    transcript,
    user,
)


def apart(
    a: Sequence[Entry], b: Sequence[Entry], *, copied: CopiedBeginning | None = None, max_entries: int = 1000
) -> Divergence:
    return asyncio.run(find_divergence(reading(a), reading(b), copied=copied, max_entries=max_entries))


def same(one: EntryBody, other: EntryBody) -> bool:
    return Fingerprints().of(Entry(body=one)) == Fingerprints().of(Entry(body=other))


WORDS = st.sampled_from(["x", "y"])
BODIES = st.lists(st.one_of(st.builds(user, WORDS), st.builds(answer, WORDS), st.builds(note, WORDS)))


def said(entries: Sequence[Entry]) -> list[str]:
    """Return what each entry of BODIES says, for the comparison by the tests themselves."""
    return [
        entry.body.system_note.text or f"{entry.body.message.role} {entry.body.message.content[0].text.text}"
        for entry in entries
        if not entry.body.HasField("header")
    ]


@given(BODIES)
def test_transcript_is_the_same_as_itself_with_other_ids_and_times(bodies: list[EntryBody]) -> None:
    a, b = transcript(header(), *bodies), transcript(header(), *bodies, begin=7)
    found = apart(a, b)
    assert (found.common_count, found.only_a, found.only_b) == (len(bodies), (), ())
    assert found.common_message_count == sum(body.HasField("message") for body in bodies)


@given(BODIES, BODIES, BODIES)
def test_common_beginning_is_as_long_as_possible(
    begin: list[EntryBody], one: list[EntryBody], other: list[EntryBody]
) -> None:
    a, b = transcript(header(), *begin, *one), transcript(header(), *begin, *other)
    found = apart(a, b)
    count, says_a, says_b = found.common_count, said(a), said(b)
    assert count >= len(begin)
    assert says_a[:count] == says_b[:count]
    assert says_a[count : count + 1] != says_b[count : count + 1] or len(says_a) == len(says_b) == count
    assert (said(found.only_a), said(found.only_b)) == (says_a[count:], says_b[count:])
    assert (found.common_seq_a, found.common_seq_b) == ((count + 1, count + 1) if count else (0, 0))


@given(BODIES, BODIES)
def test_comparison_is_symmetric(one: list[EntryBody], other: list[EntryBody]) -> None:
    a, b = transcript(header(), *one), transcript(header(), *other)
    found, mirrored = apart(a, b), apart(b, a)
    assert (found.only_a, found.only_b) == (mirrored.only_b, mirrored.only_a)
    assert found.common_count == mirrored.common_count


@given(BODIES, st.data())
def test_fork_has_what_it_copied_and_its_own_task(bodies: list[EntryBody], data: st.DataObject) -> None:
    """The copy is of the newest messages up to the seq, as many as fit, and without notes."""
    a = transcript(header(), *bodies)
    seq = data.draw(st.integers(1, len(a)))
    messages = [entry.body for entry in a[:seq] if entry.body.HasField("message")]
    kept = data.draw(st.integers(0, len(messages)))
    b = transcript(header("x"), *messages[len(messages) - kept :], user("only here"))
    found = apart(a, b, copied=CopiedBeginning(True, seq))
    mirrored = apart(b, a, copied=CopiedBeginning(False, seq))
    assert [entry.body for entry in found.only_b] == [user("only here")]
    assert (mirrored.only_a, mirrored.only_b) == (found.only_b, found.only_a)
    assert (mirrored.common_seq_b, mirrored.left_out_count) == (found.common_seq_a, found.left_out_count)
    if kept:
        assert (found.common_count, found.left_out_count) == (kept, len(messages) - kept)
        assert (found.common_seq_a, seqs_of(found.only_a)) == (seq, seqs_of(a[seq:]))
    else:
        assert (found.common_count, len(found.only_a)) == (0, len(bodies))


def test_fork_without_a_known_entry_ends_where_the_copy_does() -> None:
    a = transcript(header(), note("files"), user("q"), answer("1"), user("more"), answer("2"))
    b = transcript(header("x"), user("q"), answer("1"), note("other files"), user("another"))
    found = apart(a, b, copied=CopiedBeginning(True))
    assert (found.common_count, found.common_seq_a, found.common_seq_b) == (2, 4, 3)
    assert (seqs_of(found.only_a), seqs_of(found.only_b)) == ([5, 6], [4, 5])


def test_drafts_that_were_superseded_are_not_expected_in_a_copy() -> None:
    a = transcript(header(), user("q"), answer("no"), superseded(), note("again"), answer("yes"), final())
    b = transcript(header("x"), user("q"), answer("yes"), user("go on"))
    copied = CopiedBeginning(True, 7, frozenset({a[2].entry_id}))
    found = apart(a, b, copied=copied)
    assert (found.common_count, found.only_a, seqs_of(found.only_b)) == (2, (), [4])
    assert apart(a, b).common_count == 1


def test_repeated_texts_are_matched_with_their_newest_place() -> None:
    again = [user("x"), answer("y"), user("x"), answer("x")]
    a = transcript(header(), *again, *again)
    b = transcript(header("x"), *again[2:], user("own"))
    found = apart(a, b, copied=CopiedBeginning(True, 9))
    assert (found.common_count, found.left_out_count, found.only_a) == (2, 6, ())


def test_rejected_drafts_count_as_the_reader_sees_them() -> None:
    a = transcript(header(), user("q"), answer("no"), superseded(), answer("yes"), final())
    b = transcript(header(), user("q"), answer("yes"), final())
    found = apart(a, b)
    assert (found.common_count, found.superseded) == (1, {a[2].entry_id})
    assert (seqs_of(found.only_a), seqs_of(found.only_b)) == ([3, 4, 5], [3])
    kept = transcript(header(), user("q"), answer("no"))
    dropped = transcript(header(), user("q"), answer("no"), superseded())
    assert seqs_of(apart(kept, dropped).only_b) == [4]


def test_ids_models_and_thinking_do_not_count() -> None:
    def session(model: str, thought: str) -> list[Entry]:
        child = new_id(IdKind.SESSION)
        called = calls(("spawn", {"n": 1}), ("read", {"path": f"{child}/a"}), model=model)
        done = [result(called, 1, f"spawned {child}"), result(called, 0, "b")]
        return transcript(header(), model_change(model), called, *done, answer("ok", model, thought), final())

    found = apart(session("a/b", "hm"), session("c/d", ""))
    assert (found.common_count, found.only_a, found.only_b) == (4, (), ())


def test_results_in_another_order_are_results_of_other_calls() -> None:
    def session(*order: int) -> list[Entry]:
        called = calls(("read", {}), ("read", {}))
        return transcript(header(), called, *(result(called, number, "same") for number in order))

    assert apart(session(0, 1), session(1, 0)).common_count == 1


def test_calls_are_compared_by_name_and_arguments() -> None:
    one = calls(("read", {"path": "a", "lines": 3}))
    assert same(one, calls(("read", {"lines": 3, "path": "a"}), key="input"))
    assert not same(one, calls(("write", {"path": "a", "lines": 3})))
    assert not same(one, calls(("read", {"path": "a", "lines": 4})))
    assert not same(one, calls(("read", {"path": "a", "lines": "3"})))
    assert not same(calls(("read", {"n": 10**30})), calls(("read", {"n": 10**30 + 1})))
    text = calls(("read", {}))
    text.message.content[0].tool_call.block_json = json.dumps(
        {"id": "1", "arguments": '{"lines":3,"path":"a"}'}
    )
    assert same(one, text)


@pytest.mark.parametrize(
    "block", ["[" * 50_000, '{"id": 1', "null", '{"arguments": ' + "9" * 5000 + "}", "[]"]
)
def test_call_that_is_no_readable_json_is_compared_as_it_is(block: str) -> None:
    one, other, third = (calls(("read", {})) for _ in range(3))
    one.message.content[0].tool_call.block_json = other.message.content[0].tool_call.block_json = block
    assert same(one, other)
    assert not same(one, third)
    assert call_arguments(block) == block


def test_ids_in_a_text_count_by_their_order() -> None:
    first, second, other = (new_id(IdKind.SESSION) for _ in range(3))
    assert same(user(f"compare {first} and {second}"), user(f"compare {other} and {first}"))
    assert not same(user(f"compare {first} and {second}"), user(f"compare {other} and {other}"))
    assert not same(user(f"see {first}"), user(f"see {new_id(IdKind.RUN)}"))
    assert not same(user("see ses_1"), user("see ses_2"))


def test_hash_of_a_manifest_does_not_count() -> None:
    def listed(name: str, digit: str) -> EntryBody:
        return answer(json.dumps({"name": name, "kind": "file", "bytes": 184, "sha256": digit * 64}))

    assert same(listed(".manifest.json", "0"), listed(".manifest.json", "f"))
    assert not same(listed("a.txt", "0"), listed("a.txt", "f"))


def bash(command: str, exit_code: int | None) -> EntryBody:
    ran = BashExecution(command=command, exit_code=exit_code)
    return EntryBody(message=Message(role=ROLE_BASH_EXECUTION, bash_execution=ran))


def image(data: bytes) -> EntryBody:
    block = ContentBlock(image=Image(mime_type="image/png", data=data))
    return EntryBody(message=Message(role=ROLE_BASH_EXECUTION, content=[block]))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (user("a"), answer("a")),
        (user("a"), note("a")),
        (bash("ls", 0), bash("ls", None)),
        (bash("ls", 0), bash("pwd", 0)),
        (image(b"1"), image(b"2")),
        (result(calls(("r", {})), 0, "x"), result(calls(("r", {})), 0, "x", is_error=True)),
        (EntryBody(compaction=Compaction(summary="a")), EntryBody(compaction=Compaction(summary="b"))),
        (EntryBody(custom=Custom(custom_type="t", data_json="1")), EntryBody(custom=Custom(custom_type="t"))),
        (
            EntryBody(mirror=Mirror(message=user("a").message, destination="x")),
            EntryBody(mirror=Mirror(message=user("a").message, destination="y")),
        ),
    ],
)
def test_each_kind_of_entry_says_something(one: EntryBody, other: EntryBody) -> None:
    assert same(one, one)
    assert not same(one, other)


@pytest.mark.parametrize("entries", [[], transcript(header())])
def test_transcript_without_entries_has_nothing_in_common(entries: list[Entry]) -> None:
    full = transcript(header(), user("q"))
    found = apart(entries, full)
    assert (found.common_count, found.common_seq_a, found.only_a) == (0, 0, ())
    assert seqs_of(found.only_b) == [2]
    assert apart(entries, []) == Divergence(0, 0, 0, 0, 0, (), (), False, False, frozenset())
    for copied in (CopiedBeginning(True, 2), CopiedBeginning(False)):
        assert apart(entries, full, copied=copied) == found


def test_parts_that_differ_are_limited() -> None:
    a = transcript(header(), user("q"), *(answer(str(number)) for number in range(5)))
    b = transcript(header(), user("q"), *(answer(f"-{number}") for number in range(3)))
    found = apart(a, b, max_entries=3)
    assert (seqs_of(found.only_a), found.is_cut_a) == ([3, 4, 5], True)
    assert (seqs_of(found.only_b), found.is_cut_b) == ([3, 4, 5], False)
    nothing = apart(a, b, max_entries=0)
    assert (nothing.only_a, nothing.is_cut_a, nothing.is_cut_b) == ((), True, True)


@pytest.mark.parametrize("copied", [None, CopiedBeginning(True), CopiedBeginning(True, 5001)])
def test_common_beginning_is_not_held_in_memory(copied: CopiedBeginning | None) -> None:
    """Count the entries to which something refers when the last one is read."""
    held = []

    async def read(after_seq: int) -> AsyncIterator[Entry]:
        made: list[Entry] = []
        for seq in range(after_seq + 1, 5002):
            body = header() if seq == 1 else user(str(seq))
            made.append(Entry(entry_id=f"{seq}", seq=seq, body=body))
            if seq == 5001:
                held.append(sum(sys.getrefcount(made[place]) > 2 for place in range(len(made))))
            yield made[-1]

    found = asyncio.run(find_divergence(read, read, copied=copied, max_entries=1))
    assert (found.common_count, found.only_a, found.only_b) == (5000, (), ())
    assert held
    assert max(held) < 10
