"""The chain of audit events: any change, and any gap, is found."""

import hashlib
import json
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_postgres.audit.chain import (
    NO_HASH,
    ChainBreak,
    ChainedEvent,
    Defect,
    Link,
    event_hash,
    verify,
    verify_end,
)

TENANT = "acme"
TEXTS = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=12)
TIMES = st.datetimes(datetime(2020, 1, 1), datetime(2060, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
VALUES = {
    "tenant_id": TEXTS,
    "event_id": TEXTS,
    "event_time": TIMES,
    "last_time": TIMES,
    "call_count": st.integers(1, 2**40),
    "method": TEXTS,
    "caller_kind": TEXTS,
    "subject": TEXTS,
    "token_id": TEXTS,
    "resources": st.lists(TEXTS, max_size=3).map(tuple),
    "code": TEXTS,
    "reason": TEXTS,
    "trace_id": TEXTS,
    "peer": TEXTS,
}
EVENTS = st.builds(ChainedEvent, sequence=st.just(0), **VALUES)
Chain = list[tuple[ChainedEvent, bytes]]


def chained(events: list[ChainedEvent]) -> Chain:
    """Number the events and give each its hash."""
    chain: Chain = []
    before = NO_HASH
    for number, event in enumerate(events, 1):
        placed = replace(event, sequence=number)
        before = event_hash(before, placed)
        chain.append((placed, before))
    return chain


CHAINS = st.lists(EVENTS, min_size=1, max_size=6).map(chained)


def test_every_field_is_covered() -> None:
    assert {one.name for one in fields(ChainedEvent)} == {*VALUES, "sequence"}


@given(CHAINS)
def test_chain_as_it_was_written_is_intact(chain: Chain) -> None:
    event, digest = chain[-1]
    link, breaks = verify(Link(), chain)
    assert (link, breaks) == (Link(event.sequence, digest), [])
    assert verify_end(TENANT, link, link) == []


@given(CHAINS, st.data())
def test_any_change_of_any_field_is_found_where_it_is(chain: Chain, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(chain) - 1))
    event, digest = chain[place]
    name = data.draw(st.sampled_from(sorted(VALUES)))
    value = data.draw(VALUES[name].filter(lambda value: value != getattr(event, name)))
    chain[place] = replace(event, **{name: value}), digest
    _, breaks = verify(Link(), chain)
    assert [(one.sequence, one.defect) for one in breaks] == [(place + 1, Defect.CHANGED)]


@given(CHAINS, st.data())
def test_changed_hash_is_found(chain: Chain, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(chain) - 1))
    event, digest = chain[place]
    chain[place] = event, bytes([digest[0] ^ 1]) + digest[1:]
    _, breaks = verify(Link(), chain)
    assert breaks[0] == ChainBreak(event.tenant_id, place + 1, Defect.CHANGED)


@given(CHAINS, st.data())
def test_removed_event_is_found_also_at_the_end(chain: Chain, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(chain) - 1))
    event, digest = chain[-1]
    head = Link(event.sequence, digest)
    del chain[place]
    link, breaks = verify(Link(), chain)
    breaks += verify_end(TENANT, link, head)
    assert [one.defect for one in breaks] == [Defect.MISSING]


@given(CHAINS, st.data())
def test_events_in_another_order_are_found(chain: Chain, data: st.DataObject) -> None:
    if len(chain) < 2:
        return
    place = data.draw(st.integers(0, len(chain) - 2))
    (first, one), (second, two) = chain[place : place + 2]
    chain[place : place + 2] = [
        (replace(second, sequence=first.sequence), one),
        (replace(first, sequence=second.sequence), two),
    ]
    _, breaks = verify(Link(), chain)
    assert bool(breaks) == (replace(first, sequence=0) != replace(second, sequence=0))


@given(CHAINS, st.integers(0, 6))
def test_rest_of_a_chain_is_verified_from_its_cut(chain: Chain, cut: int) -> None:
    cut = min(cut, len(chain))
    start = Link(cut, chain[cut - 1][1]) if cut else Link()
    assert verify(start, chain[cut:])[1] == []


def test_form_that_is_hashed() -> None:
    """Another program can verify an exported log."""
    time = datetime(2026, 11, 27, 8, tzinfo=UTC)
    event = ChainedEvent(
        TENANT, 1, "aud_1", time, time + timedelta(microseconds=5), 2, "x.Y/Z", "client", "jörg", "tok_1",
        ("session_id=ses_1",), "OK", "", "0" * 32, "10.0.0.7",
    )  # fmt: skip
    text = json.dumps(
        ["acme", 1, "aud_1", 1795766400000000, 1795766400000005, 2, "x.Y/Z", "client", "jörg", "tok_1",
         ["session_id=ses_1"], "OK", "", "0" * 32, "10.0.0.7"],
        separators=(",", ":"),
    )  # fmt: skip
    assert text.isascii()
    assert event_hash(NO_HASH, event) == hashlib.sha256(bytes(32) + text.encode()).digest()
