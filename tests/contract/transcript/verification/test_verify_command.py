"""`spawnmesh transcript verify` against the running service."""

import json

from tests.support.transcript.bodies import assistant, user
from tests.support.transcript.commands import Command
from tests.support.transcript.fixtures import Session
from tests.support.transcript.forgery import Forger
from tests.support.transcript.tables import Superuser


async def test_verify_prints_a_checkpoint_from_which_it_continues(
    session: Session, superuser: Superuser, command: Command
) -> None:
    claim = await session.acquire(1)
    for _ in range(3):
        await session.append([assistant("a")] * 200, claim=claim)
    status, out, err = await command(session, "verify", session.session_id)
    head = (await session.page(page_size=1)).head
    checkpoint = f"601:{head.chain_hash}:{head.incarnation}"
    assert (status, out, err) == (0, f"{session.session_id}  intact  601 entries  {checkpoint}\n", "")
    await Forger(superuser, session).set_body(9, assistant("b").SerializeToString(deterministic=True))
    status, out, _ = await command(session, "verify", session.session_id, "--after", checkpoint)
    assert (status, out) == (0, f"{session.session_id}  intact  601 entries  {checkpoint}\n")
    [entry] = await session.entries(after_seq=8, page_size=1)
    status, out, _ = await command(session, "verify", session.session_id)
    assert (status, out) == (
        1,
        f"{session.session_id}  NOT INTACT  seq 9  content  {entry.entry_id}\n",
    )


async def test_verify_goes_through_all_sessions_of_the_tenant(
    session: Session, superuser: Superuser, command: Command
) -> None:
    sibling = session.sibling()
    await sibling.create()
    await sibling.append([user("u")] * 3)
    await session.append([user("u")] * 3)
    status, out, _ = await command(session, "verify", "--json")
    lines = {line["session_id"]: line for line in map(json.loads, out.splitlines())}
    assert status == 0
    assert {one: line["intact"]["seq"] for one, line in lines.items()} == {
        session.session_id: "4",
        sibling.session_id: "4",
    }
    await Forger(superuser, sibling).delete(4)
    status, out, _ = await command(session, "verify", session.session_id, sibling.session_id, "--json")
    first, second = map(json.loads, out.splitlines())
    assert (status, "intact" in first) == (1, True)
    assert second == {
        "session_id": sibling.session_id,
        "mismatch": {"seq": "4", "entry_id": "", "cause": "MISMATCH_CAUSE_MISSING"},
    }
    status, out, err = await command(session, "verify", sibling.session_id, session.sibling().session_id)
    assert (status, "NOT_FOUND" in err) == (1, True)


async def test_verify_refuses_what_is_no_checkpoint(session: Session, command: Command) -> None:
    for arguments in ((session.session_id, "--after", "4:x"), ("--after", "4:00:inc")):
        status, _, err = await command(session, "verify", *arguments)
        assert (status, "--after" in err) == (2, True)
