"""`spawnmesh transcript tier` against the running service."""

import json

from tests.support.transcript.commands import Command
from tests.support.transcript.tier_sessions import TierSession


async def test_all_transcripts_of_the_tenant_are_moved_and_moved_back(
    tier_session: TierSession, away: TierSession, command: Command
) -> None:
    await tier_session.set_tier(2, is_on=False)
    others = [tier_session, tier_session.to(tier_session.session.sibling())]
    await others[1].session.create()
    for one in others:
        await one.fill()
    status, _, err = await command(tier_session.session, "tier", "--apply")
    assert (status, "TIER_DISABLED" in err) == (1, True)
    await tier_session.set_tier(3, is_on=True)
    before = [(await one.readings())["entries"] for one in others]

    status, out, err = await command(tier_session.session, "tier", "--dry-run")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[:2]] == sorted(one.session.session_id for one in others)
    assert lines[2].startswith("2 transcripts  8 entries would be put, 8 would be dropped, ")
    assert lines[2].endswith("100 %")

    status, out, _ = await command(away.session, "tier", "--apply", "--json")
    assert status == 1
    done = [json.loads(line) for line in out.splitlines()]
    assert [(one["failed_entry_count"], one["failure_reason"]) for one in done] == [
        (4, "DEPENDENCY_UNAVAILABLE")
    ] * 2

    status, out, _ = await command(tier_session.session, "tier", "--apply", "--json")
    assert status == 0
    for line in out.splitlines():
        moved = json.loads(line)
        size = await next(one for one in others if one.session.session_id == moved["session_id"]).size()
        assert (moved["stored_bytes"], moved["logical_bytes"]) == (size.stored_bytes, size.logical_bytes)
        assert moved["cooled_entry_count"] == 4
    assert (
        "0 entries put, 0 dropped, 0 bytes"
        in (await command(tier_session.session, "tier", "--apply"))[1].splitlines()[2]
    )

    status, out, _ = await command(
        tier_session.session, "tier", "--revert", "--session", tier_session.session.session_id
    )
    assert status == 0
    assert out.splitlines()[1].startswith("1 transcripts  4 entries back, ")
    assert (await tier_session.size()).stored_bytes == (await tier_session.size()).logical_bytes
    assert [(await one.readings())["entries"] for one in others] == before


async def test_contradictory_options_are_refused(tier_session: TierSession, command: Command) -> None:
    assert (await command(tier_session.session, "tier"))[0] == 2
    assert (await command(tier_session.session, "tier", "--apply", "--revert"))[0] == 2
    missing = "ses_" + "0" * 26
    status, _, err = await command(tier_session.session, "tier", "--apply", "--session", missing)
    assert (status, "NOT_FOUND" in err) == (1, True)
