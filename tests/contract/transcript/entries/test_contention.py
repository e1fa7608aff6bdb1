"""Eight processes append to one transcript."""

import asyncio
import json
import sys
from collections import Counter
from dataclasses import asdict
from itertools import groupby
from pathlib import Path

import pytest
from spawnmesh_core.ids import IdKind, new_id

from tests.support.transcript.bodies import text_of
from tests.support.transcript.contender import Orders, Outcome
from tests.support.transcript.fixtures import Service, Session

ROOT = Path(__file__).resolve().parents[4]
PROCESS_COUNT = 8
APPEND_COUNT = 12


async def _contend(orders: list[Orders]) -> list[Outcome]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.transcript.contender", json.dumps([asdict(each) for each in orders]),
        cwd=ROOT, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, err = await process.communicate()
    assert process.returncode == 0, err.decode()[-2000:]
    return [
        Outcome(**json.loads(line)) for each in orders for line in Path(each.answers).read_text().splitlines()
    ]


@pytest.mark.parametrize("takes_over", [False, True], ids=["one claim", "taking over"])
async def test_AppendEntries__eight_processes_make_one_history(
    service: Service, session: Session, keys: Path, tmp_path: Path, takes_over: bool
) -> None:
    shared = await session.acquire(1)
    orders = [
        Orders(
            target=service.target,
            keys=str(keys),
            tenant_id=session.tenant_id,
            session_id=session.session_id,
            run_id=new_id(IdKind.RUN) if takes_over else shared.run_id,
            epoch=1,
            name=f"p{number}",
            count=APPEND_COUNT,
            takes_over=takes_over,
            answers=str(tmp_path / f"p{number}"),
        )
        for number in range(PROCESS_COUNT)
    ]
    answers = await _contend(orders)
    accepted = [answer for answer in answers if answer.seq and not answer.replayed]
    stored = {entry.seq: entry for entry in (await session.entries())[1:]}

    assert list(stored) == list(range(2, PROCESS_COUNT * APPEND_COUNT + 2)), "dense"
    wanted = {f"p{number}/{one}" for number in range(PROCESS_COUNT) for one in range(APPEND_COUNT)}
    assert Counter(text_of(entry) for entry in stored.values()) == Counter(wanted), "none lost, none twice"
    assert Counter(answer.key for answer in accepted) == Counter(wanted), "accepted once"
    for answer in answers:
        if answer.seq:
            entry = stored[answer.seq]
            assert (entry.entry_id, text_of(entry)) == (answer.entry_id, answer.key)
    assert sum(answer.replayed for answer in answers) == PROCESS_COUNT * APPEND_COUNT // 3
    assert {answer.refused for answer in answers if not answer.seq} <= {"WRITER_CLAIM_LOST"}
    _check_order_of_time(accepted)
    epochs = [stored[seq].writer.epoch for seq in stored]
    assert epochs == sorted(epochs)
    assert takes_over == (len(list(groupby(epochs))) > PROCESS_COUNT)


def _check_order_of_time(accepted: list[Outcome]) -> None:
    """Check that an append that was answered before another one began stands before it."""
    earliest_end_behind = float("inf")
    for answer in sorted(accepted, key=lambda one: one.seq, reverse=True):
        assert answer.began <= earliest_end_behind, (
            "an append that had been answered stands behind a later one"
        )
        earliest_end_behind = min(earliest_end_behind, answer.ended)
