"""Bugs of the kind that lost data elsewhere."""

from tests.chaos.seeded_bugs.bug import Change, SeededBug

_SESSION = "services/session/spawnmesh_session"
_TRANSCRIPT = "services/transcript/spawnmesh_transcript"
_ROUTER = "services/model-router/spawnmesh_model_router"
_BLOBS = "services/attachment-blob/spawnmesh_attachment_blob"
_RUNNER = "services/runner/spawnmesh_runner"

DATA_BUGS = (
    SeededBug(
        "a queued message counts as delivered",
        (
            Change(
                f"{_SESSION}/store/inbox.sql",
                "is_urgent,\n                            create_time)",
                "is_urgent,\n                            create_time, acknowledge_time)",
            ),
            Change(
                f"{_SESSION}/store/inbox.sql",
                "%(is_urgent)s, clock_timestamp())\n",
                "%(is_urgent)s, clock_timestamp(), clock_timestamp())\n",
            ),
        ),
        ("tests/contract/session/runs/test_messages.py",),
    ),
    SeededBug(
        "the end of a spawn is not published when staging fails",
        (
            Change(
                f"{_SESSION}/operations/spawn_undo.py",
                "if has_passed and (is_first or not session.gate_passed):",
                'if failure.step != "provision" and has_passed and (is_first or not session.gate_passed):',
            ),
        ),
        ("tests/chaos/test_spawn_failures.py", "tests/contract/session/spawn/test_spawn_undone.py"),
    ),
    SeededBug(
        "a claim is compared by > in place of >=, so a runner that repeats its claim loses it",
        (
            Change(
                f"{_TRANSCRIPT}/store/writers.sql",
                "and (writer_epoch < %(epoch)s or (writer_epoch = %(epoch)s"
                " and writer_run_id = %(run_id)s))\n",
                "and writer_epoch < %(epoch)s\n",
            ),
        ),
        ("tests/contract/transcript/writers/test_writers.py",),
    ),
    SeededBug(
        "a heartbeat does not renew the deadline of the lease",
        (
            Change(
                f"{_SESSION}/store/run_queue.sql",
                "update run_queue set due_time = now() + %(lease_ttl)s::interval\n"
                "where tenant_id = %(tenant_id)s and run_id = %(run_id)s and epoch = %(epoch)s\n"
                "returning due_time as end_time",
                "update run_queue set leased = true\n"
                "where tenant_id = %(tenant_id)s and run_id = %(run_id)s and epoch = %(epoch)s\n"
                "returning now() + %(lease_ttl)s::interval as end_time",
            ),
        ),
        ("tests/contract/session/runs/test_runs.py",),
    ),
    SeededBug(
        "a late claim takes the run away from the runner that has claimed it meanwhile",
        (
            Change(
                f"{_SESSION}/store/runs.sql",
                " and due_time is not distinct from %(taken_until)s\n    for update\n",
                "\n    for update\n",
            ),
        ),
        ("tests/contract/session/work_queue/test_claim_fences.py",),
    ),
    SeededBug(
        "what a later attempt did replaces what earlier attempts did",
        (
            Change(
                f"{_ROUTER}/domain/partial.py",
                "done = [partial for partial in partials if partial is not None]",
                "done = [partial for partial in partials if partial is not None][-1:]",
            ),
        ),
        (
            "tests/unit/model_router/test_images_partial.py",
            "tests/contract/model_router/failover/test_partial.py",
        ),
    ),
    SeededBug(
        "a late heartbeat of a lost runner is accepted",
        (
            Change(
                f"{_SESSION}/store/run_queue.sql",
                " and epoch = %(epoch)s\nreturning due_time as end_time",
                "\nreturning due_time as end_time",
            ),
        ),
        ("tests/contract/session/runs/test_runs.py",),
    ),
    SeededBug(
        "the announcement to the parent is written after the transaction that ends the run",
        (
            Change(
                f"{_SESSION}/operations/run_termination.py",
                "        if locked.parent is not None:\n",
                '        if locked.parent is not None and outcome.state != "SUCCEEDED":\n',
            ),
            Change(
                f"{_SESSION}/operations/finalize_saga.py",
                "        run = await ended.fetch() if ended is not None else locked.run\n",
                "        run = await ended.fetch() if ended is not None else locked.run\n"
                "        if ended is not None and locked.parent is not None:\n"
                "            async with self.database.pipelined(tenant_id) as connection:\n"
                "                await self.terminator._announce(\n"
                "                    connection, tenant_id, locked.parent, locked.run, outcome, draft.text\n"
                "                )\n",
            ),
        ),
        ("tests/chaos/test_finalize_faults.py",),
    ),
    SeededBug(
        "a release deletes bytes that another set refers to",
        (
            Change(
                f"{_BLOBS}/migrations/0001_attachment_blob.sql",
                "where s.state <> 'RELEASED';\n",
                "where s.state <> 'RELEASED' and false;\n",
            ),
        ),
        ("tests/contract/attachment_blob/sets/test_release_set.py",),
    ),
    SeededBug(
        "a repeat of a spawn draws a new request_id",
        (
            Change(
                f"{_RUNNER}/tools/sessions_spawn.py",
                "        request_id=scope.request_id,\n",
                "        request_id=f'{scope.request_id}-{id(attachments)}-{asyncio.get_running_loop().time()}',\n",
            ),
            Change(
                f"{_RUNNER}/tools/sessions_spawn.py",
                "async def _execute(scope: CallScope, arguments: SessionsSpawn) -> Result:\n",
                "import asyncio\n\n\nasync def _execute(scope: CallScope, arguments: SessionsSpawn) -> Result:\n",
            ),
        ),
        (
            "tests/contract/runner/tools/test_interrupted_spawns.py",
            "tests/contract/runner/loop/test_repeated_calls.py",
        ),
    ),
    SeededBug(
        "a later, smaller Retry-After shortens a cooldown",
        (
            Change(
                f"{_ROUTER}/domain/cooldown.py",
                "if existing is not None and existing.active(now) and existing.until >= until:",
                "if existing is not None and existing.active(now) and until <= now:",
            ),
            Change(
                f"{_ROUTER}/store/cooldowns.sql",
                "set until_time = greatest(c.until_time, excluded.until_time),",
                "set until_time = excluded.until_time,",
            ),
        ),
        ("tests/contract/model_router/cooldowns/test_cooldown.py",),
    ),
)
