-- The schema of the session service: tenants, agents, sessions, runs, their queue, inbox and
-- events, background jobs and operations.
--
-- The primary key of every table begins with tenant_id. Row-level security shows a transaction the
-- rows of the tenant that `spawnmesh.tenant` names. In the scope '*', a transaction sees ids, times
-- and counters of all tenants: the tables run_queue, revoked_tokens, audit_chains and audit_events,
-- which have nothing else, and the views tenant_directory and job_queue. Such a view reads with the
-- rights of the owner, and only the owner has a policy for the scope '*' on the tables behind it.
--
-- The planner's statistics are often old: ANALYZE ran before the tenant had rows, or before it
-- grew. Four rules keep the plans right all the same.
--   1. A secondary index for one id begins with that id and not with the tenant. The index
--      inbox_messages_unread_idx is the exception.
--   2. A partial index has a condition that every row meant for it fulfils and that only the
--      statements for this index repeat, such as `position >= 0`. No other statement can use it by
--      mistake.
--   3. The columns that every statement compares have no statistics: then the planner expects as
--      many rows of any tenant.
--   4. A lookup for each of several ids is a subquery with a limit, an order or a lock, or it is in
--      the select list: the planner does not join it with the query around it.
--
-- Contents
--   Tables
--     tenants, agents, sessions, runs, run_queue, jobs, job_queue, inbox_messages,
--     session_events, approvals, output_sets, budgets, model_calls, schedules,
--     schedule_firings, tenant_deletions, operations,
--     revoked_tokens, service_uptime, shared_hooks, audit_chains, audit_events
--   Row-level security
--   Views
--     tenant_directory, served_time
--   Functions
--     count_leased_runs, has_more_runs

-- ------------------------------------------------------------------------------------------
-- Tables
-- ------------------------------------------------------------------------------------------

-- The settings have their home here. Other services keep a copy that is numbered by
-- settings_version.
create table tenants (
    tenant_id             text        not null primary key,
    display_name          text        not null,
    settings              jsonb       not null,
    settings_version      bigint      not null default 1,
    max_running_run_count integer     not null,               -- A copy out of `settings`, for the claim,
    max_queued_run_count  integer     not null,               -- and one for the begin of a spawn.
    run_weight            integer     not null default 1,     -- Another one for the claim.
    ready                 boolean     not null default false, -- The creation is complete.
    create_time           timestamptz not null default now(),
    next_retention_time   timestamptz not null default now(), -- The next pass of the retention.
    -- The hooks that plugins of the tenant may be registered for. They are only added to.
    hooks                 text[]      not null default '{}'
);
-- list_tenants_to_retain, in the scope of every tenant.
create index tenants_next_retention_idx on tenants (next_retention_time);
-- list_call_limits, in the scope of every tenant.
create index tenants_call_limits_idx on tenants (tenant_id)
    where settings -> 'call_limits' is not null;
comment on table tenants is 'citus: local';

create table agents (
    tenant_id            text    not null,
    agent_id             text    not null,
    system_prompt        text    not null,
    models               text[]  not null,
    tools                text[]  not null,
    spawnable_agents     text[]  not null,
    max_turn_count       integer not null,
    context_token_budget integer not null,
    thinking             text    not null default '',
    mcp_servers          text[]  not null default '{}',
    approval             jsonb   not null default '{}', -- The calls that need an approval.
    version              bigint  not null default 1, -- It rises with each change.
    primary key (tenant_id, agent_id)
);

-- Most checks are those of domains: PostgreSQL parses the text of a table's constraint
-- again for each insert, and keeps those of a domain.
create domain session_state as text check (value in ('PROVISIONING', 'ACTIVE', 'CLOSED', 'SPAWN_FAILED'));
create domain session_mode as text check (value in ('RUN', 'SESSION'));
create domain context_mode as text check (value in ('ISOLATED', 'FORK'));
create domain cleanup as text check (value in ('DELETE', 'KEEP'));
create domain runtime as text check (value in ('SUBAGENT', 'EXTERNAL'));
create domain attempts as integer check (value >= 0);
create domain run_state as text check (value in (
    'QUEUED', 'RUNNING', 'FINALIZING', 'WAITING_APPROVAL', 'WAITING_BUDGET', 'SUCCEEDED', 'FAILED',
    'TIMED_OUT', 'KILLED', 'INTERRUPTED'
));
create domain approval_state as text check (value in (
    'PENDING', 'APPROVED', 'DENIED', 'ANSWERED', 'EXPIRED', 'WITHDRAWN'
));
create domain expiry_policy as text check (value in ('DENY', 'FAIL', 'ESCALATE'));
create domain event_kind as text check (value in (
    'PROVISIONING', 'RUN', 'REVISION', 'REVISION_CAPPED', 'CHILD_SPAWNED', 'CHILD_ANNOUNCED',
    'MODEL_FAILED', 'HOOK_DECIDED', 'FILES_PUBLISHED', 'BUDGET_CHANGED', 'SPAWN_FAILED', 'CLOSED'
));

-- PROVISIONING -> ACTIVE -> CLOSED, or PROVISIONING -> SPAWN_FAILED.
-- A session with archive_time has ended and is archived. A session with delete_time does not exist
-- for any caller. Its row remains while its request_id is remembered: without runs, messages and
-- events, and without any text of a user. Its receipt is then '{}' if it had files, else null.
create table sessions (
    tenant_id          text        not null,
    session_id         text        not null,
    request_id         text, -- Null: a failed spawn whose request_id may be used again.
    payload_hash       bytea       not null,
    state              session_state not null,
    agent_id           text        not null,
    agent_version      bigint      not null default 0,     -- That of the agent at the spawn.
    label              text        not null,
    model              text        not null,
    mode               session_mode not null,
    context            context_mode not null,
    cleanup            cleanup     not null,
    runtime            runtime     not null,
    thinking           text        not null default '',    -- Empty if the spawn did not choose a level.
    metadata           jsonb       not null default '{}',  -- Texts of the caller by their keys.
    fork_session_id    text        not null default '',    -- The session to fork, if an entry was named.
    fork_seq           bigint      not null default 0,     -- The entry of that session.
    parent_session_id  text        not null,
    parent_run_id      text        not null,               -- Empty if a client spawned the session.
    ancestor_ids       text[]      not null,
    -- Those of its ancestors and itself whose budgets count its model calls, the outermost first.
    budget_session_ids text[]      not null default '{}',
    spawn_count        bigint      not null default 0,     -- Children, also failed and deleted ones.
    run_timeout        interval    not null,
    task_hash          text        not null,
    traceparent        text        not null,
    receipt            jsonb,
    gate_passed        boolean     not null default false, -- The before_spawn hooks allowed the spawn.
    failure            jsonb,
    last_epoch         bigint      not null default 0,
    last_event_number        bigint      not null default 0,
    create_time        timestamptz not null default now(),
    end_time           timestamptz,
    archive_time       timestamptz,
    delete_time        timestamptz,
    primary key (tenant_id, session_id),
    check (least(spawn_count, last_epoch, last_event_number) >= 0)
);
alter table sessions
    alter column tenant_id set statistics 0, alter column parent_session_id set statistics 0,
    alter column label set statistics 0;
-- list_sessions, list_descendants, count_live_children, lock_family, list_parents.
create index sessions_child_idx on sessions (parent_session_id, tenant_id, session_id);
-- list_sessions, of those with a label.
create index sessions_label_idx on sessions (label, tenant_id, session_id) where label > '';
-- list_sessions, of those that have not ended. No state is in the condition: PostgreSQL writes no
-- index when a session becomes active.
create index sessions_live_idx on sessions (tenant_id, session_id) where end_time is null;
-- list_sessions_to_archive.
create index sessions_unarchived_idx on sessions (tenant_id, end_time, session_id)
    where end_time >= '-infinity' and archive_time is null and delete_time is null;
-- list_sessions_to_delete, and list_sessions in the order of the ends.
create index sessions_undeleted_idx on sessions (tenant_id, end_time, session_id)
    where end_time >= '-infinity' and delete_time is null;
-- forget_deleted_sessions.
create index sessions_forgotten_idx on sessions (tenant_id, delete_time) where delete_time >= '-infinity';
-- find_spawn. The clients of a tenant share one space of request ids, and each session has a space
-- for its runs: a run can neither take an id of a client nor find out which ids are taken.
create unique index sessions_spawner_request_idx on sessions
    (request_id, tenant_id, (case when parent_run_id = '' then '' else parent_session_id end));

-- QUEUED -> RUNNING -> FINALIZING -> SUCCEEDED. FINALIZING goes back to RUNNING for a revision or a
-- pending message, and both go back to QUEUED when the run is released. Any live run can end as
-- FAILED, TIMED_OUT, KILLED or INTERRUPTED. A terminal state is set once.
create table runs (
    tenant_id            text        not null,
    run_id               text        not null,
    session_id           text        not null,
    position             bigint      not null,              -- The number of its first event.
    state                run_state   not null,
    epoch                bigint      not null default 0,    -- The fencing token; 0 before the first claim.
    first_epoch          bigint      not null default 0,    -- The epoch of the first claim.
    attempt_count        integer     not null default 0,
    lost_epoch           bigint      not null default 0,    -- Of the last lost lease, if it used an attempt.
    runner_id            text        not null default '',
    draft_entry_id       text        not null default '',
    decided_entry_id     text        not null default '',   -- The draft that was decided to be the answer.
    decided_text_key     text        not null default '',   -- The entry and the hash of the decided text.
    superseded_entry_ids text[]      not null default '{}', -- Drafts that may never become the answer.
    result_text          text        not null default '',
    error_reason         text        not null default '',
    error_message        text        not null default '',
    usage                jsonb       not null default '{}',
    revision_count       integer     not null default 0,
    deadline_time        timestamptz not null,
    queue_time           timestamptz not null default now(),
    first_queue_time     timestamptz not null default now(),
    start_time           timestamptz,
    end_time             timestamptz,
    delay_count          integer     not null default 0,    -- Releases because something was unavailable.
    delay_reason         text        not null default '',   -- Of the last of them.
    delay_message        text        not null default '',
    not_before_time      timestamptz,                       -- The end of the last delay.
    capped_revisions     jsonb       not null default '[]', -- Of the decided draft: plugins with their caps.
    finalized_by         text[]      not null default '{}', -- Of the decided draft: who declared it final.
    interrupt_time       timestamptz,                       -- A caller asked it to end; no draft is decided.
    approval_count       integer     not null default 0,    -- Approvals that it has requested.
    approval_id          text        not null default '',   -- Of the one for which it waits.
    budget_session_id    text        not null default '',   -- Whose budget it waits for, if it does.
    wait_time            timestamptz,                       -- Since when it waits.
    counted_time         timestamptz,                       -- Up to here, budgets have counted its work.
    uncounted_millis     bigint      not null default 0,    -- Its work before that that they have not.
    reported_event_count bigint      not null default 0,    -- Events that its runners reported.
    output_begun_count   integer     not null default 0,    -- The output sets that it has begun,
    output_set_count     integer     not null default 0,    -- those that it has published,
    output_file_count    bigint      not null default 0,    -- the files in them,
    output_total_bytes   bigint      not null default 0,    -- and their bytes.
    primary key (tenant_id, run_id),
    foreign key (tenant_id, session_id) references sessions on delete cascade,
    check (first_epoch between 0 and epoch),
    check (lost_epoch between 0 and epoch),
    check (least(position, attempt_count, revision_count, delay_count, approval_count) >= 0),
    check (reported_event_count >= 0),
    check (least(output_begun_count, output_set_count, output_file_count, output_total_bytes) >= 0)
);
alter table runs alter column tenant_id set statistics 0, alter column session_id set statistics 0;
-- The newest run of a session; delete_runs, list_killed_runs.
create index runs_newest_idx on runs (session_id, tenant_id, position, run_id);
-- lock_live_run. A session has at most one live run.
create unique index runs_one_live_idx on runs (session_id, tenant_id)
    where state in ('QUEUED', 'RUNNING', 'FINALIZING', 'WAITING_APPROVAL', 'WAITING_BUDGET')
        and position >= 0;

-- list_waiting_runs.
create index runs_budget_idx on runs (budget_session_id, tenant_id, run_id) where budget_session_id > '';

-- The queue of runs: a waiting run from its queueing, a held run from the end of its lease. A run
-- that ends leaves it. A run that waits for a person or a budget is parked: its entry is due when
-- it expires, so it cannot be claimed, and it expires when the time for the wait is over.
create table run_queue (
    tenant_id     text        not null,
    run_id        text        not null,
    due_time      timestamptz not null,
    expire_time   timestamptz not null default 'infinity', -- The deadline of the run.
    again_time    timestamptz,                             -- Past its deadline: the next try to end it.
    max_attempts  attempts    not null default 1,          -- The claims that the run may use.
    attempts_left attempts    not null default 1,          -- Those that it has not used.
    leased        boolean     not null default false,
    parked        boolean     not null default false,      -- The run waits for a person or a budget,
    for_budget    boolean     not null default false,      -- and this says for which of the two.
    park_time     timestamptz,                             -- Of a parked run: when its wait began.
    epoch         bigint      not null default 0,          -- Of the run while a runner holds it, else 0.
    runtime       runtime     not null default 'SUBAGENT', -- The runtime of its session.
    agent_id      text        not null default '',         -- The agent of its session.
    primary key (run_id, tenant_id) -- No statement finds a tenant's runs by it, so its order is free.
);
comment on table run_queue is 'citus: local';
alter table run_queue
    alter column tenant_id set statistics 0, alter column runtime set statistics 0,
    alter column agent_id set statistics 0;
-- Each index has a condition of its own.
-- count_waiting_runs, take_claimable_runs (the runs that a tenant has), end_run.
create index run_queue_tenant_due_idx on run_queue (tenant_id, due_time) where due_time >= '-infinity';
-- take_claimable_runs (the runs that may be claimed).
create index run_queue_runtime_due_idx on run_queue (tenant_id, runtime, due_time) where runtime >= '';
-- take_claimable_runs (for a runner that serves certain agents).
create index run_queue_agent_due_idx on run_queue (tenant_id, runtime, agent_id, due_time)
    where agent_id >= '';
-- take_lost_runs.
create index run_queue_tenant_expiring_idx on run_queue (tenant_id, greatest(expire_time, again_time))
    where expire_time >= '-infinity';
create index run_queue_tenant_last_attempt_idx on run_queue (tenant_id, due_time) where attempts_left <= 0;
-- count_parked_runs.
create index run_queue_parked_idx on run_queue (tenant_id) where parked;

-- Background jobs: ids and times of work that is left. A job is waiting, or a worker has claimed it
-- until `due_time`, or it is dead: it failed for good, and waits for an operator. A job that is
-- done is deleted. See `spawnmesh_postgres.jobs`.
create table jobs (
    tenant_id     text        not null,
    kind          text        not null,
    key           text        not null,
    due_time      timestamptz not null default now(), -- Of a claimed job: when its claim ends.
    attempt_count integer     not null default 0,
    claim_id      uuid,                               -- The fencing token of the claim.
    arguments     jsonb       not null default '{}',  -- Ids, never content.
    traceparent   text        not null default '',
    create_time   timestamptz not null default now(),
    dead_time     timestamptz,
    last_error    text        not null default '',
    primary key (tenant_id, kind, key),
    check (kind <> '' and key <> ''),
    check (attempt_count >= 0),
    check (jsonb_typeof(arguments) = 'object'),
    check (dead_time is null or claim_id is null)
);
comment on table jobs is 'citus: local';
alter table jobs alter column tenant_id set statistics 0;
-- claim_jobs and count_jobs, which alone repeat the condition.
create index jobs_due_idx on jobs (kind, tenant_id, due_time) where dead_time is null;
-- list_dead_jobs and count_jobs.
create index jobs_dead_idx on jobs (tenant_id, kind, key) where dead_time >= '-infinity';
alter table jobs enable row level security;
alter table jobs force row level security;
create policy tenant on jobs using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));

-- Ids, times and counters of the jobs, which a worker claims over all tenants. The view reads and
-- writes with the rights of the owner, and only the owner has a policy for the scope '*': in this
-- scope, the role of the service sees no other column. It reads the rest in the scope of the job's
-- tenant. The view has no condition, so nothing of the table can leak through one.
create policy every_tenant on jobs for select to current_user
    using (current_setting('spawnmesh.tenant', true) = '*');
create policy claim_of_every_tenant on jobs for update to current_user
    using (current_setting('spawnmesh.tenant', true) = '*');
create view job_queue as
    select tenant_id, kind, key, due_time, attempt_count, claim_id, create_time, dead_time from jobs;
comment on view job_queue is 'citus: local';

create table inbox_messages (
    tenant_id        text        not null,
    session_id       text        not null,
    key              text        not null,
    position         bigint      not null generated always as identity,
    text             text        not null,
    child_session_id text        not null default '', -- Set in the announcement of a child's result.
    child_run_state  text        not null default '',
    create_time      timestamptz not null default now(),
    acknowledge_time timestamptz,
    is_urgent        boolean     not null default false,   -- It interrupts the turn of the run.
    primary key (tenant_id, session_id, key),
    foreign key (tenant_id, session_id) references sessions on delete cascade
);
alter table inbox_messages
    alter column tenant_id set statistics 0, alter column acknowledge_time set statistics 0;
-- prune_messages.
create index inbox_messages_acknowledged_idx on inbox_messages (tenant_id, acknowledge_time)
    where acknowledge_time is not null;
-- list_inbox, count_inbox, measure_inbox, close_inbox, begin_finalizing, decide_run.
create index inbox_messages_unread_idx on inbox_messages (tenant_id, session_id, position)
    where acknowledge_time is null and position >= 0;

create table session_events (
    tenant_id        text        not null,
    session_id       text        not null,
    number           bigint      not null,
    event_time       timestamptz not null default now(),
    kind             event_kind  not null,
    run_id           text        not null default '',
    run_state        text        not null default '',
    child_session_id text        not null default '',
    detail           text        not null default '',
    set_id           text        not null default '', -- The output set that the event is about.
    primary key (tenant_id, session_id, number),
    foreign key (tenant_id, session_id) references sessions on delete cascade
);
alter table session_events alter column tenant_id set statistics 0;
-- prune_events.
create index session_events_prune_idx on session_events (tenant_id, event_time)
    where event_time >= '-infinity';

-- Tool calls that wait for a person, and questions: PENDING, then another state, set once. The id
-- is derived from the run and the call. A row is deleted with its session.
create table approvals (
    tenant_id             text           not null,
    approval_id           text           not null,
    session_id            text           not null,
    run_id                text           not null,
    agent_id              text           not null,
    ancestor_ids          text[]         not null,              -- Of the session.
    state                 approval_state not null default 'PENDING',
    tool_name             text           not null default '',   -- Empty for a question.
    arguments_json        text           not null default '',
    parameters_json       text           not null default '',   -- The schema of the arguments.
    question              text           not null default '',
    choices               text[]         not null default '{}',
    reason                text           not null default '',
    on_expiry             expiry_policy  not null,
    create_time           timestamptz    not null,
    expire_time           timestamptz    not null,
    escalate_time         timestamptz,                          -- When `expire_time` was moved, once.
    decide_time           timestamptz,
    decided_by            text           not null default '',
    edited_arguments_json text           not null default '',
    text                  text           not null default '',   -- Why it was denied, or the answer.
    begin_epoch           bigint         not null default 0,    -- Of the runner that began the call.
    begin_time            timestamptz,
    primary key (tenant_id, approval_id),
    foreign key (tenant_id, session_id) references sessions on delete cascade,
    check ((tool_name = '') <> (question = ''))
);
alter table approvals
    alter column tenant_id set statistics 0, alter column session_id set statistics 0,
    alter column state set statistics 0;
-- list_approvals, of those that are pending.
create index approvals_pending_idx on approvals (tenant_id, approval_id) where state = 'PENDING';
-- delete_approvals.
create index approvals_session_idx on approvals (session_id, tenant_id, approval_id);

-- Sets of files that runs publish. A row is written before the files are stored in attachment-blob
-- under the set's id, which is derived from the run and its request: so that a session is never
-- deleted without them. A deleted session keeps its rows, without any text, until the sets are
-- released.
create table output_sets (
    tenant_id    text        not null,
    set_id       text        not null,
    session_id   text        not null,
    run_id       text        not null,
    request_id   text        not null,
    position     bigint, -- The number of the event of the publication. Null before it.
    files        jsonb       not null default '[]', -- Name, size, hash and type of each.
    file_count   integer     not null default 0,
    publish_time timestamptz,
    primary key (tenant_id, set_id),
    foreign key (tenant_id, session_id) references sessions on delete cascade,
    check ((position is null) = (publish_time is null))
);
alter table output_sets alter column tenant_id set statistics 0, alter column session_id set statistics 0;
-- list_output_sets, list_published_names, list_output_set_ids, blank_output_sets.
create index output_sets_session_idx on output_sets (session_id, tenant_id, position);

-- Limits for a session and its descendants together, and what they have used. 0 is no limit. A row
-- is deleted with its session.
create table budgets (
    tenant_id             text        not null,
    session_id            text        not null,
    max_token_count       bigint      not null check (max_token_count >= 0),
    max_cost_micros       bigint      not null check (max_cost_micros >= 0),
    max_model_call_count  bigint      not null check (max_model_call_count >= 0),
    max_run_time          interval    not null check (max_run_time >= '0'),
    max_wait              interval    not null check (max_wait >= '0'),
    used_token_count      bigint      not null default 0   check (used_token_count >= 0),
    used_cost_micros      bigint      not null default 0   check (used_cost_micros >= 0),
    used_model_call_count bigint      not null default 0,
    used_run_time         interval    not null default '0',
    version               bigint      not null default 1,  -- It rises with each change of the limits.
    update_time           timestamptz not null default now(),
    updated_by            text        not null default '',
    primary key (tenant_id, session_id),
    foreign key (tenant_id, session_id) references sessions on delete cascade
);
alter table budgets alter column tenant_id set statistics 0;

-- Model calls that count in budgets and that the router has not reported yet. If `is_counted`, the
-- budgets have the most that the call may use, until it is reported. There is no foreign key: it
-- would lock the session after the run, and everything else locks the session first.
create table model_calls (
    tenant_id           text        not null,
    call_id             text        not null,
    session_id          text        not null,
    run_id              text        not null,
    largest_token_count bigint      not null,
    largest_cost_micros bigint      not null,
    budget_session_ids  text[]      not null,               -- Of the session.
    root_session_id     text        not null,               -- The first of them.
    is_counted          boolean     not null default false,
    is_reported         boolean     not null default false, -- It stays for a repeat that is late.
    create_time         timestamptz not null,
    primary key (tenant_id, call_id)
);
alter table model_calls
    alter column tenant_id set statistics 0, alter column root_session_id set statistics 0;
-- lock_family_calls.
create index model_calls_open_idx on model_calls (root_session_id, tenant_id, call_id)
    where not is_counted and not is_reported;
-- delete_model_calls.
create index model_calls_root_idx on model_calls (root_session_id, tenant_id, call_id);

-- Cron lines that spawn sessions. A job `fire_schedule` of each that is not paused is due at its
-- next due time. `schedule_id` names one life of the name.
create table schedules (
    tenant_id   text        not null,
    name        text        not null,
    schedule_id text        not null,
    cron        text        not null,
    time_zone   text        not null,
    spawn       bytea       not null,                 -- A ScheduledSpawn.
    overlap     text        not null check (overlap in ('SKIP', 'ALLOW', 'REPLACE')),
    catch_up    text        not null check (catch_up in ('NONE', 'LATEST', 'ALL')),
    paused      boolean     not null default false,
    cursor_time timestamptz not null,                 -- Due times up to it have a firing, or do not count.
    session_ids text[]      not null default '{}',    -- The newest that were spawned and may go on.
    busy_until  timestamptz,                          -- A worker is firing a due time.
    version     bigint      not null default 1,       -- It rises with each change, pause and resume.
    create_time timestamptz not null default now(),
    updated_by  text        not null default '',
    primary key (tenant_id, name)
);
alter table schedules alter column tenant_id set statistics 0;
-- lock_schedule_by_id, move_cursor, set_sessions, set_busy.
create unique index schedules_id_idx on schedules (tenant_id, schedule_id);

-- The history of schedules: one row for each due time and each call of RunSchedule. DUE ->
-- SPAWNED | SKIPPED | FAILED, or MISSED from the beginning. A row is deleted with its schedule,
-- and by the retention.
create table schedule_firings (
    tenant_id     text        not null,
    schedule_id   text        not null,
    firing_id     text        not null,
    due_time      timestamptz not null,
    fire_time     timestamptz not null, -- While it is DUE: when it was found to be.
    attempt_time  timestamptz,          -- Of the first attempt to spawn.
    outcome       text        not null check (outcome in ('DUE', 'SPAWNED', 'SKIPPED', 'MISSED', 'FAILED')),
    session_id    text        not null default '',
    error_reason  text        not null default '',
    error_message text        not null default '',
    is_manual     boolean     not null default false,
    primary key (tenant_id, schedule_id, firing_id)
);
alter table schedule_firings
    alter column tenant_id set statistics 0, alter column schedule_id set statistics 0,
    alter column outcome set statistics 0;
-- list_firings and newest_firing, which alone repeat the condition.
create index schedule_firings_newest_idx
    on schedule_firings (tenant_id, schedule_id, due_time desc, firing_id desc)
    where due_time >= '-infinity';
-- next_due_firing, delete_due_firings.
create index schedule_firings_due_idx on schedule_firings (tenant_id, schedule_id, due_time)
    where outcome = 'DUE';
-- prune_firings.
create index schedule_firings_prune_idx on schedule_firings (tenant_id, fire_time)
    where fire_time >= '-infinity';

-- KILL -> SETTLE -> ROWS -> PEERS -> DONE. While a row is not DONE, nothing begins in the tenant.
-- The row remains after the tenant's own row: it is the report of the deletion.
create table tenant_deletions (
    tenant_id                text        not null primary key,
    step                     text        not null default 'KILL',
    request_time             timestamptz not null default now(),
    settle_time              timestamptz not null default now(),
    end_time                 timestamptz,
    killed_run_count         bigint      not null default 0,
    deleted_session_count    bigint      not null default 0,
    deleted_transcript_count bigint      not null default 0,
    deleted_object_count     bigint      not null default 0,
    stalled_by               text        not null default '',
    -- The last version of the deleted tenant's settings. A tenant that is created again under this
    -- id continues from it, so that replicas that remember the old settings notice the new ones.
    settings_version         bigint      not null default 0,
    check (step in ('KILL', 'SETTLE', 'ROWS', 'PEERS', 'DONE'))
);
comment on table tenant_deletions is 'citus: local';

-- Long work that clients started. A row is open until it has an `end_time`; a job of the kind
-- `operation` with its id executes it, and deletes it some time after its end. `request` and
-- `response` are messages of the contract: ids, options and counts, never content. See
-- `spawnmesh_postgres.long_running`.
create table operations (
    tenant_id    text        not null,
    operation_id text        not null,
    method       text        not null,                -- The RPC that started it.
    request_id   text        not null,
    request      bytea       not null,
    subject      text        not null,                -- Of the token that started it.
    response     bytea,                               -- As far as it is known.
    position     text        not null default '',     -- Where the next step continues.
    step_count   bigint      not null default 0,      -- The fencing token of a step.
    done_count   bigint      not null default 0,
    total_count  bigint      not null default 0,      -- 0 if it is not known.
    retry_reason text        not null default '',
    error        bytea,                               -- A google.rpc.Status.
    create_time  timestamptz not null default now(),
    update_time  timestamptz not null default now(),
    cancel_time  timestamptz,
    end_time     timestamptz,
    primary key (tenant_id, operation_id),
    unique (tenant_id, method, request_id),
    check (error is null or end_time is not null),
    check (done_count >= 0 and total_count >= 0 and step_count >= 0)
);
-- count_open_operations.
create index operations_open_idx on operations (tenant_id) where end_time is null;
-- delete_old_operations.
create index operations_end_idx on operations (tenant_id, end_time) where end_time is not null;
alter table operations enable row level security;
alter table operations force row level security;
create policy tenant on operations using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));

-- Tokens that are refused before they expire: token_id is the id of an ended run, or of a token of
-- a client. The tenant of tokens without a tenant is '*'. The rows outlive the tenant, whose tokens
-- do so as well.
create table revoked_tokens (
    tenant_id   text        not null,
    token_id    text        not null,
    is_run      boolean     not null,
    expire_time timestamptz not null,                      -- No token of this id is valid later.
    change      bigint      not null default (pg_current_xact_id()::text)::bigint, -- The transaction.
    primary key (tenant_id, token_id)
);
comment on table revoked_tokens is 'citus: local';
-- list_revoked_tokens.
create index revoked_tokens_change_idx on revoked_tokens (change, tenant_id, token_id);
-- prune_revoked_tokens.
create index revoked_tokens_expire_idx on revoked_tokens (expire_time);

-- Since when the service has been serving without a break, all its replicas together: one row,
-- which the heartbeats of the replicas keep. The service is away from `serves_until` on, until the
-- next heartbeat.
create table service_uptime (
    is_only       boolean     not null primary key default true check (is_only),
    serving_since timestamptz not null,
    serves_until  timestamptz not null
);
comment on table service_uptime is 'citus: local';

-- The hooks that plugins of the operator may be registered for, for all tenants: one row, whose
-- hooks are only added to. No row: the hook service has said nothing so far, and each hook may have
-- plugins.
create table shared_hooks (
    is_only boolean not null primary key default true check (is_only),
    hooks   text[]  not null
);
comment on table shared_hooks is 'citus: local';

-- The audit log: calls that changed something, and denied calls. Ids, never content. The events of
-- a tenant are a chain: each has the hash of the one before it and of itself. The rows outlive the
-- tenant. Events without a tenant have the tenant '*'. The service reads and adds events, and moves
-- the ends of chains; only the owner of the schema removes events, from the beginning of a chain.
-- See `spawnmesh_postgres.audit`.
create table audit_chains (
    tenant_id       text   not null primary key,
    last_sequence   bigint not null default 0,
    last_hash       bytea  not null default decode(repeat('00', 32), 'hex'),
    hidden_sequence bigint not null default 0, -- The last event of an earlier tenant of this name.
    cut_sequence    bigint not null default 0, -- The last event that the retention removed,
    cut_hash        bytea  not null default decode(repeat('00', 32), 'hex'), -- and its hash.
    check (cut_sequence <= last_sequence)
);
comment on table audit_chains is 'citus: local';
create table audit_events (
    tenant_id   text        not null,
    sequence    bigint      not null,
    event_id    text        not null,
    event_time  timestamptz not null,
    last_time   timestamptz not null,
    call_count  bigint      not null,
    method      text        not null,
    caller_kind text        not null,
    subject     text        not null,
    token_id    text        not null,
    resources   text[]      not null,
    code        text        not null,
    reason      text        not null,
    trace_id    text        not null,
    peer        text        not null,
    hash        bytea       not null,
    primary key (tenant_id, sequence)
);
comment on table audit_events is 'citus: local';
-- list_events.
create index audit_events_time_idx on audit_events (event_time, tenant_id, sequence);
-- list_tenant_events.
create index audit_events_tenant_idx on audit_events (tenant_id, event_time, sequence);
-- find_stored_events.
create index audit_events_id_idx on audit_events (event_id);
alter table audit_chains enable row level security;
alter table audit_chains force row level security;
create policy tenant on audit_chains for select
    using (tenant_id = current_setting('spawnmesh.tenant', true));
create policy new_tenant on audit_chains for update
    using (tenant_id = current_setting('spawnmesh.tenant', true));
create policy every_tenant on audit_chains for select
    using (current_setting('spawnmesh.tenant', true) = '*');
create policy adding on audit_chains for insert
    with check (current_setting('spawnmesh.tenant', true) = '*');
create policy advancing on audit_chains for update
    using (current_setting('spawnmesh.tenant', true) = '*');
alter table audit_events enable row level security;
alter table audit_events force row level security;
create policy tenant on audit_events for select
    using (tenant_id = current_setting('spawnmesh.tenant', true));
create policy every_tenant on audit_events for select
    using (current_setting('spawnmesh.tenant', true) = '*');
create policy adding on audit_events for insert
    with check (current_setting('spawnmesh.tenant', true) = '*');
create policy retention on audit_events for delete to current_user
    using (current_setting('spawnmesh.tenant', true) = '*');

-- ------------------------------------------------------------------------------------------
-- Row-level security
-- ------------------------------------------------------------------------------------------

alter table tenants enable row level security;
alter table tenants force row level security;
create policy tenant on tenants using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));
create policy every_tenant on tenants for select to current_user
    using (current_setting('spawnmesh.tenant', true) = '*');

alter table agents enable row level security;
alter table agents force row level security;
create policy tenant on agents using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));

alter table sessions enable row level security;
alter table sessions force row level security;
create policy tenant on sessions using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));

alter table runs enable row level security;
alter table runs force row level security;
create policy tenant on runs using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));

alter table run_queue enable row level security;
alter table run_queue force row level security;
create policy tenant on run_queue using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));
create policy every_tenant on run_queue for select using (current_setting('spawnmesh.tenant', true) = '*');
create policy take_of_every_tenant on run_queue for update
    using (current_setting('spawnmesh.tenant', true) = '*');

alter table inbox_messages enable row level security;
alter table inbox_messages force row level security;
create policy tenant on inbox_messages using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));

alter table approvals enable row level security;
alter table approvals force row level security;
create policy tenant on approvals using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));

alter table schedules enable row level security;
alter table schedules force row level security;
create policy tenant on schedules using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));

alter table schedule_firings enable row level security;
alter table schedule_firings force row level security;
create policy tenant on schedule_firings using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));

alter table output_sets enable row level security;
alter table output_sets force row level security;
create policy tenant on output_sets using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));

alter table budgets enable row level security;
alter table budgets force row level security;
create policy tenant on budgets using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));

alter table model_calls enable row level security;
alter table model_calls force row level security;
create policy tenant on model_calls using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));

alter table session_events enable row level security;
alter table session_events force row level security;
create policy tenant on session_events using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));

alter table tenant_deletions enable row level security;
alter table tenant_deletions force row level security;
create policy tenant on tenant_deletions using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));
create policy every_tenant on tenant_deletions for select to current_user
    using (current_setting('spawnmesh.tenant', true) = '*');

alter table revoked_tokens enable row level security;
alter table revoked_tokens force row level security;
create policy tenant on revoked_tokens using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));
create policy every_tenant on revoked_tokens for select
    using (current_setting('spawnmesh.tenant', true) = '*');
-- prune_revoked_tokens, which locks the rows and deletes them.
create policy prune_of_every_tenant on revoked_tokens for update
    using (current_setting('spawnmesh.tenant', true) = '*' and expire_time < now());
create policy delete_of_every_tenant on revoked_tokens for delete
    using (current_setting('spawnmesh.tenant', true) = '*' and expire_time < now());

-- ------------------------------------------------------------------------------------------
-- Views
-- ------------------------------------------------------------------------------------------

-- The facts of a tenant for the scope '*'. The rest, such as its settings, is read in its own.
-- `is_listed` is true if its creation is complete or its deletion has begun; `size_bytes` is the
-- size of its name and its settings. The view has no condition, so nothing of the tables can leak
-- through one.
create view tenant_directory as
    select t.tenant_id, t.max_running_run_count, t.run_weight, t.next_retention_time,
           t.settings -> 'call_limits' as call_limits,
           t.ready or exists (select from tenant_deletions d where d.tenant_id = t.tenant_id) as is_listed,
           octet_length(t.display_name) + octet_length(t.settings::text) as size_bytes
    from tenants t;
comment on view tenant_directory is 'citus: local';

-- One row at most: the time for which the service has been serving, or zero while it is away. No
-- row: it never served. The lease of a run that has expired means a lost runner only if the service
-- has been serving for as long as a lease lasts: before that, a runner that lives may not have
-- reached it. take_claimable_runs and take_lost_runs compare the two.
create view served_time with (security_invoker = true) as
    select case when serves_until > now() then now() - serving_since else interval '0' end as served_for
    from service_uptime;
comment on view served_time is 'citus: local';

-- ------------------------------------------------------------------------------------------
-- Functions
-- ------------------------------------------------------------------------------------------

-- Returns the number of the tenant's leased runs. take_claimable_runs calls it after it has locked
-- the tenant: a volatile function sees what was committed since the statement began. Index:
-- run_queue_tenant_due_idx.
create function count_leased_runs(p_tenant_id text) returns bigint language sql volatile as $$
    select count(*) from run_queue
    where tenant_id = p_tenant_id and leased and due_time >= '-infinity' and due_time > now();
$$;

-- Returns whether the tenant has more runs in the queue than so many. take_claimable_runs calls it
-- after it has locked the tenant, and it sees what was committed since the statement began, as
-- count_leased_runs does. Index: run_queue_tenant_due_idx.
create function has_more_runs(p_tenant_id text, p_count bigint) returns boolean language sql volatile as $$
    select p_count < (select count(*) from (
        select from run_queue
        where tenant_id = p_tenant_id and due_time >= '-infinity' and not parked
        limit p_count + 1
    ) counted);
$$;
