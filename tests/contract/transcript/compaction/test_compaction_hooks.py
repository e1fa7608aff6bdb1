"""Compactions and plugins: a transcript service and a hook service on real databases, with a
scripted model."""

from spawnmesh.hook.v1 import compaction_pb2 as compactions
from spawnmesh.hook.v1 import observed_pb2 as observed
from spawnmesh.jobs.v1 import job_pb2
from spawnmesh.transcript.v1 import entry_pb2 as entry_pb
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.jobs import store as job_store
from spawnmesh_postgres.jobs.job import ClaimedJob, JobKind

from tests.support.hook.decisions import decision_of
from tests.support.hook.fixtures import (
    CLOSED,
    COMPACTED,
    COMPACTION,
    CONTENT,
    DEAD_ENDPOINT,
    INJECTION,
    OPEN,
    refused,
)
from tests.support.hook.scripted_plugin import ScriptedPlugin
from tests.support.transcript.compaction_stage import Stage
from tests.support.transcript.tables import Superuser, rows_of
from tests.support.waiting import eventually

COMPACT = compactions.CompactionDecision(compact=compactions.Compact())


def compact(instructions: str = "") -> compactions.CompactionDecision:
    return compactions.CompactionDecision(compact=compactions.Compact(instructions=instructions))


def keep_whole(reason: str) -> compactions.CompactionDecision:
    return compactions.CompactionDecision(keep_whole=compactions.KeepWhole(reason=reason))


async def test_without_plugins_the_gate_is_not_called(stage: Stage) -> None:
    answer = await stage.compact()
    assert answer.summary.body.compaction.summary == "summary 1"
    assert await stage.tenant.deliveries() == []
    assert await stage.publish() == 1
    assert await stage.jobs() == []


async def test_a_plugin_refuses_a_compaction(stage: Stage) -> None:
    before = await stage.session.entries()
    above = await stage.plugin(
        "above", COMPACTION, answer=compact("Keep all."), priority=2, grants=[INJECTION]
    )
    await stage.plugin("auditor", COMPACTION, answer=keep_whole("under audit"), priority=1)
    below = await stage.plugin("below", COMPACTION, answer=compact())
    answer = await stage.compact()
    assert (answer.refused_by, answer.refusal) == ("auditor", "under audit")
    assert not answer.HasField("summary")
    assert answer.head.seq == before[-1].seq
    assert await stage.session.entries() == before
    assert stage.model.asked == []
    assert (len(above.heard), below.heard) == (1, [])
    rows = await stage.tenant.deliveries(session_id=stage.session.session_id)
    assert [(row.plugin, row.hook, decision_of(row)) for row in reversed(rows)] == [
        ("above", COMPACTION, "compact"),
        ("auditor", COMPACTION, "keep_whole"),
    ]
    assert await stage.jobs() == []


async def test_plugins_name_texts_that_must_be_kept(stage: Stage) -> None:
    await stage.plugin("names", COMPACTION, answer=compact("Keep all names."), grants=[INJECTION])
    await stage.plugin("sums", COMPACTION, answer=compact("Keep all sums."), grants=[INJECTION], priority=1)
    answer = await stage.compact()
    assert answer.HasField("summary")
    [asked] = stage.model.asked
    assert "Keep all sums.\n\nKeep all names." in asked.system_prompt
    assert "Keep all" not in "".join(
        block.text.text for message in asked.messages for block in message.content
    )


async def test_a_plugin_without_the_grant_cannot_instruct_the_model(stage: Stage) -> None:
    await stage.plugin("a", COMPACTION, answer=compact("Praise me."), grants=[CONTENT], policy=OPEN)
    assert (await stage.compact()).HasField("summary")
    assert "Praise me." not in stage.model.asked[0].system_prompt
    assert [decision_of(row) for row in await stage.tenant.deliveries()] == ["failed"]


async def test_a_failed_gate_stops_the_compaction_unless_it_fails_open(stage: Stage) -> None:
    before = await stage.session.entries()
    await stage.tenant.register("dead", DEAD_ENDPOINT, COMPACTION, policy=CLOSED)
    with refused(Reason.PLUGIN_FAILED) as caught:
        await stage.compact()
    assert caught.value.facts["plugin"] == "dead"
    assert await stage.session.entries() == before
    assert stage.model.asked == []
    await stage.tenant.register("dead", DEAD_ENDPOINT, COMPACTION, policy=OPEN)
    assert (await stage.compact()).HasField("summary")


async def test_the_gate_of_a_run_receives_what_will_be_summarized(stage: Stage) -> None:
    sees = await stage.plugin("sees", COMPACTION, answer=COMPACT, grants=[CONTENT])
    blind = await stage.plugin("blind", COMPACTION, answer=COMPACT)
    earlier = await stage.acquire()
    first = (await stage.compact(earlier)).summary
    claim = await stage.acquire()
    await stage.say(claim)
    second = (await stage.compact(claim)).summary
    for made, run_id, before in ((first, earlier.run_id, ""), (second, claim.run_id, "summary 1")):
        sources = made.body.compaction.sources
        expected = compactions.BeforeCompactionEvent(
            session_id=stage.session.session_id,
            run_id=run_id,
            source_entry_count=sources.entry_count,
            source_token_count=sources.token_count,
            first_source_seq=sources.first_seq,
            last_source_seq=sources.last_seq,
        )
        assert blind.heard.pop(0) == expected
        expected.previous_summary = before
        assert sees.heard.pop(0) == expected
    assert second.body.compaction.sources.entry_count == 4
    assert stage.tenant.tenant_id == stage.session.tenant_id


async def heard_by(stage: Stage, plugin: ScriptedPlugin, count: int) -> list[observed.ObservedEvent]:
    """Publish until nothing is pending, and return what the plugin received."""
    worker = await stage.mesh.worker()
    while await worker.deliveries.run_due():
        pass
    assert len(plugin.heard) == count
    return sorted(plugin.heard, key=lambda event: event.event_key)


async def test_each_compaction_is_published_to_an_observer_once_and_exactly(stage: Stage) -> None:
    sees = await stage.plugin("sees", COMPACTED, grants=[CONTENT])
    blind = await stage.plugin("blind", COMPACTED)
    claim = await stage.acquire()
    made = [(await stage.compact(claim)).summary]
    await stage.say(claim)
    made.append((await stage.compact(claim)).summary)
    assert {(job.kind, job.key) for job in await stage.jobs()} == {
        ("publish_summary", summary.entry_id) for summary in made
    }
    assert [await stage.publish(), await stage.publish()] == [2, 0]
    assert await stage.jobs() == []
    expected = [
        observed.ObservedEvent(
            event_key=f"after_compaction:v1:{summary.entry_id}",
            event_time=summary.create_time,
            session_id=stage.session.session_id,
            run_id=claim.run_id,
            after_compaction=observed.AfterCompactionEvent(
                entry_id=summary.entry_id,
                source_entry_count=summary.body.compaction.sources.entry_count,
                source_token_count=summary.body.compaction.sources.token_count,
                summary_token_count=summary.token_count,
                method=entry_pb.SUMMARY_METHOD_NORMAL,
                model="test/small",
                summary=summary.body.compaction.summary,
            ),
        )
        for summary in made
    ]
    assert await heard_by(stage, sees, 2) == sorted(expected, key=lambda event: event.event_key)
    for event in expected:
        event.after_compaction.ClearField("summary")
    assert await heard_by(stage, blind, 2) == sorted(expected, key=lambda event: event.event_key)


async def claimed(stage: Stage, kind: JobKind) -> ClaimedJob:
    """Claim the only job that is due, as a worker does."""
    quota = job_store.ClaimQuota(limit=9, share=9, busy={})
    statement = job_store.claim_statement(kind.name, quota, kind.claim_time)
    [job] = await job_store.claim(stage.database, statement)
    return job


async def test_a_summary_of_a_worker_that_died_is_published_again_and_delivered_once(
    stage: Stage, superuser: Superuser
) -> None:
    sees = await stage.plugin("sees", COMPACTED, grants=[CONTENT])
    made = (await stage.compact()).summary
    async with stage.publisher() as publisher:
        job = await claimed(stage, publisher.kind())
        await publisher.publish(job)
    [event] = await heard_by(stage, sees, 1)
    assert event.event_key == f"after_compaction:v1:{made.entry_id}"
    assert event.after_compaction.summary == made.body.compaction.summary
    assert await stage.publish() == 0, "its worker has the job until the claim ends"
    await superuser.execute("update jobs set due_time = now() where tenant_id = %s", (job.tenant_id,))
    assert await stage.publish() == 1
    assert await stage.jobs() == []
    assert await heard_by(stage, sees, 1) == [event]


async def test_a_summary_is_published_when_the_hook_service_is_back(stage: Stage) -> None:
    sees = await stage.plugin("sees", COMPACTED, grants=[CONTENT])
    made = (await stage.compact()).summary
    assert await stage.publish(hook_target="127.0.0.1:1") == 1
    [job] = await stage.jobs()
    assert (job.state, job.attempt_count, job.last_error) == (
        job_pb2.JOB_STATE_WAITING,
        1,
        "DEPENDENCY_UNAVAILABLE (hook)",
    )
    assert await stage.publish() == 0, "it pauses"
    await stage.retry(job)
    assert await stage.publish() == 1
    assert await stage.jobs() == []
    [event] = await heard_by(stage, sees, 1)
    assert event.after_compaction.entry_id == made.entry_id


async def test_a_running_worker_publishes_summaries_without_waiting_for_a_round(stage: Stage) -> None:
    sees = await stage.plugin("sees", COMPACTED, grants=[CONTENT])
    async with stage.working():
        made = (await stage.compact()).summary
        await eventually(stage.has_no_jobs)
        claim = await stage.acquire()
        await stage.say(claim)
        await stage.compact(claim)
        await eventually(stage.has_no_jobs)
    events = await heard_by(stage, sees, 2)
    assert made.entry_id in {event.after_compaction.entry_id for event in events}


async def test_a_compaction_that_fails_after_the_gate_is_not_published(stage: Stage) -> None:
    gate = await stage.plugin("gate", COMPACTION, COMPACTED, answer=COMPACT)
    before = await stage.session.entries()
    stage.model.is_away = True
    with refused(Reason.DEPENDENCY_UNAVAILABLE):
        await stage.compact()
    assert (len(gate.heard), await stage.jobs()) == (1, [])
    assert await stage.session.entries() == before
    stage.model.is_away = False
    assert (await stage.compact()).HasField("summary")
    assert [await stage.publish(), len(gate.heard)] == [1, 2]


async def test_a_compaction_of_a_deleted_session_is_not_published(stage: Stage) -> None:
    sees = await stage.plugin("sees", COMPACTED)
    await stage.compact()
    await stage.session.delete()
    assert await stage.publish() == 1
    assert await stage.jobs() == []
    assert await heard_by(stage, sees, 0) == []


async def test_a_purge_of_the_tenant_deletes_its_jobs_and_those_of_a_worker(
    stage: Stage, superuser: Superuser
) -> None:
    sees = await stage.plugin("sees", COMPACTED)
    tenant_id = stage.session.tenant_id
    await stage.compact()
    async with stage.publisher() as publisher:
        job = await claimed(stage, publisher.kind())
        claim = await stage.acquire()
        await stage.say(claim)
        await stage.compact(claim)
        assert len(await stage.jobs()) == 2
        while not (await stage.session.purge_tenant()).done:
            pass
        await publisher.publish(job)
        await job_store.complete(stage.database, job)
    assert await rows_of(superuser, tenant_id) == {"purged_tenants": 1}
    assert await stage.publish() == 0
    assert await heard_by(stage, sees, 0) == []
