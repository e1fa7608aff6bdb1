-- The schema of the session service: tenants, agents, sessions, runs, their queue, inbox and
-- events.
--
-- The primary key of every table begins with tenant_id. Row-level security shows a transaction the
-- rows of the tenant that `spawnmesh.tenant` names. Only the tables of ids and times (tenants,
-- work_queue, tenant_deletions) also have a policy for the scope '*', in which the queue is read
-- for all tenants at once.
--
-- The planner's statistics are often old: ANALYZE ran before the tenant had rows, or before it
-- grew. Five rules keep the plans right all the same.
--   1. A secondary index for one id begins with that id and not with the tenant. The index
--      inbox_messages_unread_idx is the exception.
--   2. A partial index has a condition that every row meant for it fulfils and that only the
--      statements for this index repeat, such as `position >= 0`. No other statement can use it by
--      mistake.
--   3. The columns that every statement compares have a fixed number of distinct values.
--   4. A statement that does not search by the primary key gives the tenant as `(select …)`, for
--      which the planner expects a tenant of average size.
--   5. A lookup for each of several ids is a subquery with a limit, an order or a lock, or it stands
--      in the select list: the planner does not join it with the query around it.
--
-- Contents
--   Tables
--     tenants, agents, sessions, runs, work_queue, inbox_messages, session_events, tenant_deletions
--   Row-level security
--   Functions of requests: one round trip for each step
--     take_claimable_runs, begin_finalizing, decide_run
--   Functions of the worker: passes over all tenants
--     take_overdue, take_lost_runs

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
    ready                 boolean     not null default false, -- The creation is complete.
    create_time           timestamptz not null default now(),
    next_retention_time   timestamptz not null default now()  -- The next pass of the retention.
);
-- list_tenants_to_retain, in the scope of every tenant.
create index tenants_next_retention_idx on tenants (next_retention_time);

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
    primary key (tenant_id, agent_id)
);

-- PROVISIONING -> ACTIVE -> CLOSED, or PROVISIONING -> SPAWN_FAILED.
-- A session with archive_time has ended and is archived. A session with delete_time does not exist
-- for any caller. Its row remains while its request_id is remembered: without runs, messages and
-- events, and without any text of a user. Its receipt is then '{}' if it had files, else null.
create table sessions (
    tenant_id          text        not null,
    session_id         text        not null,
    request_id         text, -- Null: a failed spawn whose request_id may be used again.
    payload_hash       bytea       not null,
    state              text        not null,
    agent_id           text        not null,
    label              text        not null,
    model              text        not null,
    mode               text        not null,
    context            text        not null,
    cleanup            text        not null,
    runtime            text        not null,
    thinking           text        not null default '',    -- Empty if the spawn did not choose a level.
    parent_session_id  text        not null,
    parent_run_id      text        not null,               -- Empty if a client spawned the session.
    ancestor_ids       text[]      not null,
    spawn_count        bigint      not null default 0,     -- Children, also failed and deleted ones.
    run_timeout        interval    not null,
    task_hash          text        not null,
    traceparent        text        not null,
    receipt            jsonb,
    gate_passed        boolean     not null default false, -- The before_spawn hooks allowed the spawn.
    failure            jsonb,
    last_epoch         bigint      not null default 0,
    last_cursor        bigint      not null default 0,
    create_time        timestamptz not null default now(),
    end_time           timestamptz,
    archive_time       timestamptz,
    delete_time        timestamptz,
    primary key (tenant_id, session_id),
    check (state in ('PROVISIONING', 'ACTIVE', 'CLOSED', 'SPAWN_FAILED'))
);
alter table sessions alter column tenant_id set (n_distinct = 100);
alter table sessions alter column parent_session_id set (n_distinct = -0.5);
-- list_children, list_descendants, count_live_children, lock_family, list_parents.
create index sessions_child_idx on sessions (parent_session_id, tenant_id, session_id);
-- list_sessions_to_archive.
create index sessions_unarchived_idx on sessions (tenant_id, end_time)
    where end_time >= '-infinity' and archive_time is null and delete_time is null;
-- list_sessions_to_delete.
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
-- FAILED, TIMED_OUT or KILLED. A terminal state is set once.
create sequence runs_position_seq;
create table runs (
    tenant_id            text        not null,
    run_id               text        not null,
    session_id           text        not null,
    position             bigint      not null default nextval('runs_position_seq'), -- Grows in a session.
    state                text        not null,
    epoch                bigint      not null default 0,    -- The fencing token; 0 before the first claim.
    first_epoch          bigint      not null default 0,    -- The epoch of the first claim.
    attempt_count        integer     not null default 0,
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
    start_time           timestamptz,
    end_time             timestamptz,
    delay_count          integer     not null default 0,    -- Releases because something was unavailable.
    delay_reason         text        not null default '',   -- Of the last of them.
    delay_message        text        not null default '',
    not_before_time      timestamptz,                       -- The end of the last delay.
    capped_revisions     jsonb       not null default '[]', -- Of the decided draft: plugins with their caps.
    primary key (tenant_id, run_id),
    foreign key (tenant_id, session_id) references sessions on delete cascade,
    check (state in ('QUEUED', 'RUNNING', 'FINALIZING', 'SUCCEEDED', 'FAILED', 'TIMED_OUT', 'KILLED'))
);
alter table runs alter column tenant_id set (n_distinct = 100);
alter table runs alter column session_id set (n_distinct = -0.5);
-- The newest run of a session; delete_runs, list_killed_runs.
create index runs_newest_idx on runs (session_id, tenant_id, position, run_id);
-- lock_live_run. A session has at most one live run.
create unique index runs_one_live_idx on runs (session_id, tenant_id)
    where state in ('QUEUED', 'RUNNING', 'FINALIZING') and position >= 0;

-- The work queue: ids and times of everything that needs attention, and when.
--   RUN       a queued run from its queueing, a held run from the end of its lease
--   SPAWN     a spawn from its deadline
--   DELETE    a deleted session until its files and its transcript are gone
--   PURGE     a tenant that is being deleted
--   SETTINGS  a push of the tenant's settings to the other services
--   EVENT     a pending event: the end of a run, or of a failed spawn, that the relay still has to
--             publish. Its subject is the run, or the session of the failed spawn.
create table work_queue (
    tenant_id     text        not null,
    kind          text        not null,
    subject_id    text        not null,
    due_time      timestamptz not null,
    expire_time   timestamptz not null default 'infinity', -- RUN: its deadline. EVENT: the dead-letter time.
    again_time    timestamptz,                             -- RUN past its deadline: the next try to end it.
    attempts_left integer     not null default 1,          -- RUN: claims. EVENT: tries left.
    leased        boolean     not null default false,
    runtime       text        not null default 'SUBAGENT', -- RUN: the runtime of its session.
    details       jsonb,                                   -- EVENT: ids, the outcome and the trace.
    primary key (tenant_id, kind, subject_id),
    check (kind in ('RUN', 'SPAWN', 'DELETE', 'PURGE', 'SETTINGS', 'EVENT'))
);
alter table work_queue alter column tenant_id set (n_distinct = 100);
alter table work_queue alter column runtime set (n_distinct = 2);
-- count_waiting_runs, take_claimable_runs (the runs that a tenant has), end_run.
create index work_queue_tenant_due_idx on work_queue (tenant_id, kind, due_time)
    where due_time >= '-infinity';
-- count_backlog.
create index work_queue_kind_overdue_idx on work_queue (kind, due_time)
    where kind <> 'RUN' and due_time >= '-infinity';
-- take_claimable_runs (the runs that may be claimed).
create index work_queue_runtime_due_idx on work_queue (tenant_id, runtime, due_time)
    where kind = 'RUN' and runtime >= '';
-- take_overdue. Created after work_queue_kind_overdue_idx: if the costs are equal, the planner
-- takes the newer index.
create index work_queue_tenant_overdue_idx on work_queue (kind, tenant_id, due_time)
    where kind <> 'RUN' and due_time >= '-infinity';
-- take_lost_runs.
create index work_queue_tenant_expiring_idx on work_queue (tenant_id, greatest(expire_time, again_time))
    where kind = 'RUN' and expire_time >= '-infinity';
create index work_queue_tenant_last_attempt_idx on work_queue (tenant_id, due_time)
    where kind = 'RUN' and attempts_left <= 0;

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
    primary key (tenant_id, session_id, key),
    foreign key (tenant_id, session_id) references sessions on delete cascade
);
alter table inbox_messages alter column tenant_id set (n_distinct = 100);
-- prune_messages.
create index inbox_messages_acknowledged_idx on inbox_messages (tenant_id, acknowledge_time)
    where acknowledge_time is not null;
-- list_inbox, count_inbox, measure_inbox, close_inbox, begin_finalizing, decide_run.
create index inbox_messages_unread_idx on inbox_messages (tenant_id, session_id, position)
    where acknowledge_time is null and position >= 0;

create table session_events (
    tenant_id        text        not null,
    session_id       text        not null,
    cursor           bigint      not null,
    event_time       timestamptz not null default now(),
    kind             text        not null,
    run_id           text        not null default '',
    run_state        text        not null default '',
    child_session_id text        not null default '',
    detail           text        not null default '',
    primary key (tenant_id, session_id, cursor),
    foreign key (tenant_id, session_id) references sessions on delete cascade
);
alter table session_events alter column tenant_id set (n_distinct = 100);
-- prune_events.
create index session_events_prune_idx on session_events (tenant_id, event_time)
    where event_time >= '-infinity';

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

-- The fixed numbers of distinct values take effect with an analyze.
analyze sessions, runs, work_queue, inbox_messages, session_events;

-- ------------------------------------------------------------------------------------------
-- Row-level security
-- ------------------------------------------------------------------------------------------

alter table tenants enable row level security;
alter table tenants force row level security;
create policy tenant on tenants using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));
create policy every_tenant on tenants for select using (current_setting('spawnmesh.tenant', true) = '*');

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

alter table work_queue enable row level security;
alter table work_queue force row level security;
create policy tenant on work_queue using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));
create policy every_tenant on work_queue using (current_setting('spawnmesh.tenant', true) = '*');

alter table inbox_messages enable row level security;
alter table inbox_messages force row level security;
create policy tenant on inbox_messages using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));

alter table session_events enable row level security;
alter table session_events force row level security;
create policy tenant on session_events using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));

alter table tenant_deletions enable row level security;
alter table tenant_deletions force row level security;
create policy tenant on tenant_deletions using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));
create policy every_tenant on tenant_deletions for select
    using (current_setting('spawnmesh.tenant', true) = '*');

-- ------------------------------------------------------------------------------------------
-- Functions of requests: one round trip for each step
-- ------------------------------------------------------------------------------------------

-- Takes at most p_limit claimable runs of sessions with one of the distinct runtimes p_runtimes, in
-- the scope of every tenant. Returns the ids of tenants and runs, and how long each has been
-- claimable, in parallel arrays.
--   - Locks the rows taken and skips the rows that another claim holds.
--   - Fair over tenants: the rank of a run is its place in its tenant's queue plus the runs that
--     the tenant has leased, of every runtime. No tenant gets more than max_running_run_count.
--   - Leases each run and uses one attempt, so that a claimer that dies counts as a lost runner.
--   - If a tenant has more runs than it may have at once, only the claim with the tenant's advisory
--     lock takes runs of it; so the second statement sees what other claims have taken. others_took
--     is true if another claim had such a lock: look again soon.
--   - Reads the queue tenant by tenant and runtime by runtime, however many runs wait.
-- Index: work_queue_runtime_due_idx, work_queue_tenant_due_idx, work_queue_pkey.
create function take_claimable_runs(
    p_every_tenant text, p_limit integer, p_lease_ttl interval, p_runtimes text[],
    out tenant_ids text[], out run_ids text[], out waits interval[], out others_took boolean
) language plpgsql as $$
declare
    ours text[];
begin
    with due as materialized (
        select t.tenant_id,
               t.max_running_run_count < (select count(*) from (
                   select from work_queue d
                   where d.tenant_id = t.tenant_id and d.kind = 'RUN' and d.due_time >= '-infinity'
                   limit t.max_running_run_count::bigint + 1
               ) counted) as is_crowded
        from tenants t
        where (select true
               from unnest(p_runtimes) as wanted (runtime)
               cross join lateral (
                   select from work_queue d
                   where d.tenant_id = t.tenant_id and d.kind = 'RUN' and d.runtime = wanted.runtime
                     and d.runtime >= '' and d.due_time <= now() and d.expire_time > now()
                     and d.attempts_left > 0
                   order by d.due_time limit 1
               ) found
               limit 1)
    ), reserved as (
        select tenant_id,
               case when is_crowded
                    then pg_try_advisory_xact_lock(hashtextextended('hand out runs of ' || tenant_id, 0))
                    else true end as is_ours
        from due
    )
    select array_agg(r.tenant_id) filter (where r.is_ours), coalesce(bool_or(not r.is_ours), false)
    into ours, others_took from reserved r;
    if ours is null then
        return;
    end if;
    with waiting as materialized (
        select t.tenant_id, t.max_running_run_count as cap,
               (select count(*) from work_queue d
                where d.tenant_id = t.tenant_id and d.kind = 'RUN' and d.leased
                  and d.due_time >= '-infinity' and d.due_time > now()) as running
        from tenants t
        where t.tenant_id = any (ours)
    ), candidates as (
        select w.tenant_id, w.cap, d.subject_id,
               w.running + row_number() over (partition by w.tenant_id order by d.due_time) as rank
        from waiting w
        cross join unnest(p_runtimes) as wanted (runtime)
        cross join lateral (
            select subject_id, due_time from work_queue
            where tenant_id = w.tenant_id and kind = 'RUN' and runtime = wanted.runtime and runtime >= ''
              and due_time <= now() and expire_time > now() and attempts_left > 0
            order by due_time limit p_limit * 2
        ) d
    ), chosen as (
        select d.tenant_id, d.subject_id, now() - d.due_time as wait
        from work_queue d join candidates c on c.tenant_id = d.tenant_id and c.subject_id = d.subject_id
        where d.kind = 'RUN' and d.due_time <= now() and d.expire_time > now() and d.attempts_left > 0
          and c.rank <= c.cap
        order by c.rank, d.due_time
        limit p_limit
        for update of d skip locked
    ), taken as (
        update work_queue d
        set due_time = now() + p_lease_ttl, leased = true, attempts_left = attempts_left - 1
        from chosen
        where d.tenant_id = chosen.tenant_id and d.kind = 'RUN' and d.subject_id = chosen.subject_id
        returning d.tenant_id, d.subject_id, chosen.wait
    )
    select array_agg(t.tenant_id), array_agg(t.subject_id), array_agg(t.wait)
    into tenant_ids, run_ids, waits from taken t;
end
$$;

-- Begins to finalize this draft: RUNNING -> FINALIZING. There are three cases:
--   - The run is held at this epoch, no other draft is decided and no message waits: it begins.
--   - Another draft was decided before: that draft is superseded from then on, and nothing begins.
--   - Otherwise nothing changes.
-- A draft that a plugin sent back begins again, and its plugins are called again. Returns the run
-- as it is then (all null if there is none), the agent of its session, the number of unread
-- messages, and has_begun. Locks the run before it counts the messages. Index: runs_pkey,
-- sessions_pkey, inbox_messages_unread_idx.
create function begin_finalizing(
    p_tenant_id text, p_run_id text, p_epoch bigint, p_entry_id text,
    out run runs, out agent_id text, out waiting bigint, out has_begun boolean
) language plpgsql as $$
declare
    is_open boolean;
begin
    select * into run from runs r where r.tenant_id = p_tenant_id and r.run_id = p_run_id for update;
    select s.agent_id into agent_id from sessions s
    where s.tenant_id = p_tenant_id and s.session_id = run.session_id;
    select count(*) into waiting from inbox_messages m
    where m.tenant_id = p_tenant_id and m.session_id = run.session_id and m.acknowledge_time is null
      and m.position >= 0;
    is_open := run.epoch = p_epoch
        and (run.state = 'RUNNING' or run.state = 'FINALIZING' and run.decided_entry_id = '');
    has_begun := is_open and waiting = 0 and run.decided_entry_id in ('', p_entry_id)
        and run.decided_entry_id <> all (run.superseded_entry_ids);
    if has_begun then
        update runs r set state = 'FINALIZING', draft_entry_id = p_entry_id
        where r.tenant_id = p_tenant_id and r.run_id = p_run_id
        returning * into run;
    elsif is_open and run.decided_entry_id <> all (run.superseded_entry_ids || ''::text) then
        update runs r set superseded_entry_ids = r.superseded_entry_ids || r.decided_entry_id
        where r.tenant_id = p_tenant_id and r.run_id = p_run_id
        returning * into run;
    end if;
end
$$;

-- Decides that the draft, with this text, is the answer of a run that is held at this epoch. From
-- then on no message is put before it, and p_capped_revisions are kept with it. If a message waits,
-- or the draft is superseded, the run is RUNNING again instead. Changes nothing if a draft was
-- decided before. Returns the run as it is then (all null if there is none) and the number of
-- unread messages. Locks the run before it counts the messages. Index: runs_pkey,
-- inbox_messages_unread_idx.
create function decide_run(
    p_tenant_id text, p_run_id text, p_epoch bigint, p_entry_id text, p_text_key text,
    p_capped_revisions jsonb, out run runs, out waiting bigint
) language plpgsql as $$
declare
    is_decided boolean;
begin
    select * into run from runs r where r.tenant_id = p_tenant_id and r.run_id = p_run_id for update;
    select count(*) into waiting from inbox_messages m
    where m.tenant_id = p_tenant_id and m.session_id = run.session_id and m.acknowledge_time is null
      and m.position >= 0;
    if run.epoch = p_epoch
        and (run.state = 'RUNNING' or run.state = 'FINALIZING' and run.decided_entry_id = '')
    then
        is_decided := waiting = 0 and p_entry_id <> all (run.superseded_entry_ids);
        update runs r set
            state = case when is_decided then 'FINALIZING' else 'RUNNING' end,
            draft_entry_id = case when is_decided then p_entry_id else '' end,
            decided_text_key = case when is_decided then p_text_key else r.decided_text_key end,
            capped_revisions = case when is_decided then p_capped_revisions else r.capped_revisions end,
            decided_entry_id = case when is_decided then p_entry_id else r.decided_entry_id end
        where r.tenant_id = p_tenant_id and r.run_id = p_run_id
        returning * into run;
    end if;
end
$$;

-- ------------------------------------------------------------------------------------------
-- Functions of the worker: passes over all tenants
-- ------------------------------------------------------------------------------------------

-- Takes at most p_limit due entries of the kind, which is not RUN, in the scope of every tenant. Of
-- each tenant it takes at most p_share minus p_busy, the entries in progress. The order is
-- round-robin over tenants, and oldest first within a tenant. Locks each entry, skips those that
-- others hold, and makes it due again after p_again_in. Goes from tenant to tenant and reads no
-- more of one than its share. Index: work_queue_tenant_overdue_idx, work_queue_pkey.
create function take_overdue(p_kind text, p_limit integer, p_share integer, p_busy jsonb, p_again_in interval)
    returns table (tenant_id text, subject_id text, attempts_left integer, details jsonb)
language plpgsql set enable_sort = off as $$
#variable_conflict use_column
declare
    chosen record;
    place tid;
begin
    for chosen in
        with recursive waiting as (
            (select d.tenant_id from work_queue d
             where d.kind = p_kind and d.kind <> 'RUN' and d.due_time >= '-infinity'
             order by d.tenant_id limit 1)
            union all
            select (select d.tenant_id from work_queue d
                    where d.kind = p_kind and d.kind <> 'RUN' and d.due_time >= '-infinity'
                      and d.tenant_id > w.tenant_id
                    order by d.tenant_id limit 1)
            from waiting w where w.tenant_id is not null
        ), shares as (
            select w.tenant_id, coalesce((p_busy ->> w.tenant_id)::integer, 0) as busy
            from waiting w where w.tenant_id is not null
        )
        select s.tenant_id, due.subject_id, due.due_time,
               s.busy + row_number() over (partition by s.tenant_id order by due.due_time) as rank
        from shares s
        cross join lateral (
            select d.subject_id, d.due_time from work_queue d
            where d.kind = p_kind and d.kind <> 'RUN' and d.tenant_id = s.tenant_id
              and d.due_time between '-infinity' and now()
            order by d.due_time limit greatest(p_share - s.busy, 0)
        ) due
        order by rank, due.due_time
        limit p_limit
    loop
        select d.ctid into place from work_queue d
        where d.tenant_id = chosen.tenant_id and d.kind = p_kind and d.subject_id = chosen.subject_id
          and d.due_time <= now()
        for update skip locked;
        if found then
            return query update work_queue d set due_time = now() + p_again_in where d.ctid = place
                returning d.tenant_id, d.subject_id, d.attempts_left, d.details;
        end if;
    end loop;
end
$$;

-- As take_overdue, for runs that no runner can finish: the deadline has passed, or the lease has
-- expired and no attempt is left. Index: work_queue_tenant_expiring_idx,
-- work_queue_tenant_last_attempt_idx, work_queue_pkey.
create function take_lost_runs(p_limit integer, p_share integer, p_again_in interval)
    returns table (tenant_id text, run_id text, timed_out boolean, due_time timestamptz)
language plpgsql set enable_sort = off as $$
#variable_conflict use_column
declare
    chosen record;
    place tid;
begin
    for chosen in
        with recursive live as (
            (select d.tenant_id from work_queue d where d.kind = 'RUN' and d.expire_time >= '-infinity'
             order by d.tenant_id limit 1)
            union all
            select (select d.tenant_id from work_queue d
                    where d.kind = 'RUN' and d.expire_time >= '-infinity' and d.tenant_id > l.tenant_id
                    order by d.tenant_id limit 1)
            from live l where l.tenant_id is not null
        )
        select l.tenant_id, lost.subject_id, lost.since,
               row_number() over (partition by l.tenant_id order by lost.since) as rank
        from live l
        cross join lateral (
            (select d.subject_id, greatest(d.expire_time, d.again_time) as since from work_queue d
             where d.tenant_id = l.tenant_id and d.kind = 'RUN' and d.expire_time >= '-infinity'
               and greatest(d.expire_time, d.again_time) between '-infinity' and now()
             order by greatest(d.expire_time, d.again_time) limit p_share)
            union all
            (select d.subject_id, d.due_time from work_queue d
             where d.tenant_id = l.tenant_id and d.kind = 'RUN' and d.attempts_left <= 0
               and d.due_time between '-infinity' and now() and d.expire_time > now()
             order by d.due_time limit p_share)
        ) lost
        where l.tenant_id is not null
        order by rank, lost.since
        limit p_limit
    loop
        select d.ctid into place from work_queue d
        where d.tenant_id = chosen.tenant_id and d.kind = 'RUN' and d.subject_id = chosen.subject_id
          and (greatest(d.expire_time, d.again_time) <= now()
               or d.expire_time > now() and d.attempts_left <= 0 and d.due_time <= now())
        for update skip locked;
        if found then
            return query
                update work_queue d
                set due_time = greatest(d.due_time, now() + p_again_in), again_time = now() + p_again_in
                where d.ctid = place
                returning d.tenant_id, d.subject_id, d.expire_time <= now(), d.due_time;
        end if;
    end loop;
end
$$;
