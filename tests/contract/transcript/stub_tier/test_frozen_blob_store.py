"""A blob store that keeps its connections and does not answer is unavailable."""

import pytest
from spawnmesh_core.reasons import Reason
from spawnmesh_transcript.clients import blob_store

from tests.support.transcript.faulty_blobs import FaultyBlobStore
from tests.support.transcript.fixtures import refused
from tests.support.transcript.tables import Superuser
from tests.support.transcript.tier import long_text
from tests.support.transcript.tier_sessions import APPLY, TierSession, dropped
from tests.support.transcript.verifying import intact, verification


async def test_entries_of_a_frozen_blob_store_are_refused_before_the_deadline(
    faulty: TierSession,
    faulty_blobs: FaultyBlobStore,
    superuser: Superuser,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blob_store, "_SILENT_SECONDS", 0.5)
    claim = await faulty.session.acquire(1)
    await faulty.converse(claim, long_text("alpha"))
    await faulty.age(claim)
    await faulty.tier(APPLY)
    assert list(await dropped(superuser, faulty)) == [3]
    [file_id] = [one.file_ids[0] for one in (await faulty.context()).stubbed]
    faulty_blobs.is_frozen = True
    for read in (
        faulty.session.entries(),
        verification(faulty.session),
        faulty.describe(file_id, expand=True),
    ):
        with refused(Reason.DEPENDENCY_UNAVAILABLE) as facts:
            await read
        assert facts["dependency"] == "attachment-blob"
    faulty_blobs.is_frozen = False
    assert len(await faulty.session.entries()) == 4
    await intact(faulty.session)
