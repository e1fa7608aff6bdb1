-- The schema of the hook service: plugins, decisions about drafts, the outbox for observers with
-- its jobs, webhooks with their messages, and the log of every call of a plugin. Every table
-- belongs to tenants and has row level security.

-- Settings of the tenants, as the session service sent them. A tenant without a row is unknown.
create table tenants (
    tenant_id text not null primary key,
    settings_version bigint not null,
    mask_secrets boolean not null,
    max_plugin_count integer not null,
    max_gate_count integer not null -- The plugins among them that something waits for.
);

-- The tenants that the log pruner goes through: ids alone, since they are read over all tenants. A
-- row is deleted when the purge of its tenant begins.
create table tenant_work (
    tenant_id text not null primary key
);
comment on table tenant_work is 'citus: local';

-- Tenants that are purged, or were. No row is added for them until they are created anew. See
-- `spawnmesh_postgres.tenant_purges`.
create table purged_tenants (
    tenant_id text not null primary key,
    settings_version bigint not null, -- The newest settings of the purged tenant, or 0.
    begin_time timestamptz not null default now(),
    end_time timestamptz -- When nothing of the tenant was left.
);

-- Plugins that tenants registered. Bundled plugins are in a file of the operator.
create table plugins (
    tenant_id text not null,
    name text not null,
    endpoint text not null,
    hooks text[] not null,
    priority integer not null,
    timeout interval not null,
    max_wait interval, -- Null: a run waits for the plugin until its deadline.
    failure_policy text not null check (failure_policy in ('OPEN', 'CLOSED')),
    grants text[] not null,
    -- The order among equal priorities. A plugin that is changed keeps its own.
    registration bigint generated always as identity,
    max_concurrent_calls integer not null default 16,
    paused boolean not null default false,
    -- Rises with each change, pause and resume.
    generation bigint not null default 1,
    primary key (tenant_id, name)
);

-- Decisions about drafts. CLAIMED -> DECIDED (terminal). A claim is deleted if its dispatch fails.
-- The claim of a call that died is taken over after `lease_until`.
create table decisions (
    tenant_id text not null,
    run_id text not null,
    request_id text not null,
    state text not null check (state in ('CLAIMED', 'DECIDED')),
    claim_id uuid not null,
    lease_until timestamptz not null,
    answer text not null default 'continue' check (answer in ('continue', 'revise', 'finalize')),
    reason text not null default '',
    decided_by text[] not null default '{}',
    revision_number integer not null default 0,
    capped_revisions jsonb not null default '[]', -- A list of plugins, each with its cap.
    decide_time timestamptz not null default now(),
    primary key (tenant_id, run_id, request_id)
);
-- For delete_old. Every row fulfils the condition, but only that statement contains it:
-- otherwise the planner may read all rows of a tenant where a statement gives the primary key. The
-- other `_age_idx` are alike.
create index decisions_age_idx on decisions (tenant_id, decide_time) where decide_time >= '-infinity';

-- Revisions granted to a run.
create table run_revisions (
    tenant_id text not null,
    run_id text not null,
    revision_count integer not null,
    change_time timestamptz not null default now(),
    primary key (tenant_id, run_id)
);
-- For delete_old.
create index run_revisions_age_idx on run_revisions (tenant_id, change_time) where change_time >= '-infinity';

-- Revisions granted for an objection key of a plugin, in a run.
create table revision_keys (
    tenant_id text not null,
    run_id text not null,
    plugin text not null,
    objection_key text not null,
    attempt_count integer not null,
    change_time timestamptz not null default now(),
    primary key (tenant_id, run_id, plugin, objection_key)
);
-- For delete_old.
create index revision_keys_age_idx on revision_keys (tenant_id, change_time) where change_time >= '-infinity';

-- Spawns that plugins allowed. The session service asks if it lost the answer.
create table allowed_spawns (
    tenant_id text not null,
    session_id text not null,
    allow_time timestamptz not null default now(),
    primary key (tenant_id, session_id)
);
-- For delete_old.
create index allowed_spawns_age_idx on allowed_spawns (tenant_id, allow_time) where allow_time >= '-infinity';

-- Runs that wait for a plugin with a max_wait. A row is deleted when the plugin answers, and counts
-- for one generation of the plugin.
create table plugin_waits (
    tenant_id text not null,
    run_id text not null,
    plugin text not null,
    generation bigint not null,
    begin_time timestamptz not null default now(), -- The first call that got no answer.
    primary key (tenant_id, run_id, plugin)
);
-- For delete_old.
create index plugin_waits_age_idx on plugin_waits (tenant_id, begin_time) where begin_time >= '-infinity';

-- Published events. A row is kept for the retention of the log, so that a repeated key is
-- recognized. `event` is emptied once no job is left that delivers it.
create table observed_events (
    tenant_id text not null,
    event_key text not null,
    hook text not null,
    session_id text not null,
    run_id text not null,
    event bytea not null,
    publish_time timestamptz not null default now(),
    primary key (tenant_id, event_key)
);
-- For delete_old.
create index observed_events_age_idx on observed_events (tenant_id, publish_time)
where publish_time >= '-infinity';

-- Addresses outside of the mesh that are sent events. `webhook_id` names one life of the name: a
-- webhook that is deleted and created again has another id, and so other secrets and deliveries.
create table webhooks (
    tenant_id text not null,
    name text not null,
    webhook_id text not null,
    url text not null,
    event_types text[] not null, -- Empty: all of them.
    timeout interval not null,
    paused boolean not null default false,
    pause_reason text not null default '', -- Empty if a person paused it.
    failing_since timestamptz, -- The first request that failed since the last one that was received.
    failure_count integer not null default 0, -- The requests that failed since then.
    retry_time timestamptz, -- Before it, no request is made: the webhook has just failed.
    resume_time timestamptz, -- The last resume. The day of attempts of what waited begins there.
    secret_number integer not null default 1, -- The secrets are derived and stored nowhere.
    previous_secret_until timestamptz,
    rotation_id text not null default '', -- The request_id of the last rotation.
    generation bigint not null default 1, -- Rises with each change, pause, resume and rotation.
    create_time timestamptz not null default now(),
    primary key (tenant_id, name)
);
-- get_webhook_by_id, and the statements for the webhook of an attempt.
create unique index webhooks_id_idx on webhooks (tenant_id, webhook_id);

-- Messages to webhooks: PENDING -> DELIVERED | FAILED, and PENDING again when one is replayed, in
-- another round. A job `deliver_webhook` for each webhook sends those that are due. A row is kept
-- for the retention of the log.
create table webhook_deliveries (
    tenant_id text not null,
    webhook_id text not null,
    event_id text not null,
    event_type text not null,
    session_id text not null,
    run_id text not null,
    event_time timestamptz not null,
    body text not null, -- Ids, states and times, never content.
    state text not null check (state in ('PENDING', 'DELIVERED', 'FAILED')),
    queue_time timestamptz not null default now(), -- Of the round.
    attempt_time timestamptz, -- While it is PENDING: when it is due.
    end_time timestamptz,
    round integer not null default 1,
    round_attempt_count integer not null default 0,
    attempt_count integer not null default 0,
    attempts jsonb not null default '[]', -- The newest ones.
    primary key (tenant_id, webhook_id, event_id),
    check ((state = 'PENDING') = (end_time is null)),
    check ((state = 'PENDING') = (attempt_time is not null))
);
-- list_due_messages, next_attempt_time, hasten_messages and expire_messages.
create index webhook_deliveries_due_idx on webhook_deliveries (tenant_id, webhook_id, attempt_time, event_id)
where state = 'PENDING';
-- list_webhook_deliveries.
create index webhook_deliveries_newest_idx
    on webhook_deliveries (tenant_id, webhook_id, event_time desc, event_id desc);
-- list_failed.
create index webhook_deliveries_failed_idx on webhook_deliveries (tenant_id, webhook_id, event_time, event_id)
where state = 'FAILED';
-- For delete_old.
create index webhook_deliveries_age_idx on webhook_deliveries (tenant_id, queue_time)
where queue_time >= '-infinity';

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

-- A job `deliver_event` delivers one event to one observer. While its observer is paused, the end
-- of a session is held: it is due at infinity, and is due when the observer is resumed. The table
-- is read over all tenants, so no foreign key leads to the event, which is on the node of its
-- tenant. The columns are for the indexes: row-level security keeps an expression out of an index
-- condition. Every such job fulfils the condition of each index, but only the statements for it
-- repeat the condition: otherwise the planner could use the index for a claim.
alter table jobs
    add column event_key text generated always as (arguments ->> 'event_key') stored,
    add column plugin text generated always as (arguments ->> 'plugin') stored;
-- For list_open_events and delete_deliveries_of_events.
create index jobs_event_idx on jobs (tenant_id, event_key) where event_key >= '';
-- For release_held_deliveries and delete_deliveries_of_plugin.
create index jobs_plugin_idx on jobs (tenant_id, plugin) where plugin >= '';

-- The log: one row for each call of a plugin, for each entry that becomes DEAD, and for each
-- requested revision that was not granted.
create table deliveries (
    tenant_id text not null,
    delivery_id text not null,
    plugin text not null,
    hook text not null,
    session_id text not null,
    run_id text not null,
    start_time timestamptz not null,
    latency interval not null,
    decision text not null check (decision in (
        'allow', 'deny', 'continue', 'revise', 'finalize', 'proceed', 'rewrite', 'block', 'require_approval',
        'chosen', 'changed', 'compact', 'keep_whole', 'told', 'failed', 'skipped', 'dead', 'capped'
    )),
    error text not null,
    attempt integer not null default 1,
    primary key (tenant_id, delivery_id)
);
-- For list_deliveries, by its narrowest condition, and the first one for delete_old.
create index deliveries_newest_idx on deliveries (tenant_id, start_time desc, delivery_id desc);
create index deliveries_session_idx on deliveries (tenant_id, session_id, start_time desc, delivery_id desc);
create index deliveries_run_idx on deliveries (tenant_id, run_id, start_time desc, delivery_id desc);
create index deliveries_plugin_idx on deliveries (tenant_id, plugin, start_time desc, delivery_id desc);

-- A transaction sees the rows of its tenant. In the scope '*', the worker sees ids and times of all
-- tenants: in `tenant_work`, for the log pruner, and in `job_queue`.

alter table tenants enable row level security;
alter table tenants force row level security;
create policy tenant on tenants
    using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));

alter table tenant_work enable row level security;
alter table tenant_work force row level security;
create policy tenant on tenant_work
    using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));
create policy every_tenant on tenant_work for select using (current_setting('spawnmesh.tenant', true) = '*');

alter table purged_tenants enable row level security;
alter table purged_tenants force row level security;
create policy tenant on purged_tenants
    using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));

alter table plugins enable row level security;
alter table plugins force row level security;
create policy tenant on plugins
    using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));

alter table decisions enable row level security;
alter table decisions force row level security;
create policy tenant on decisions
    using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));

alter table run_revisions enable row level security;
alter table run_revisions force row level security;
create policy tenant on run_revisions
    using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));

alter table revision_keys enable row level security;
alter table revision_keys force row level security;
create policy tenant on revision_keys
    using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));

alter table allowed_spawns enable row level security;
alter table allowed_spawns force row level security;
create policy tenant on allowed_spawns
    using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));

alter table plugin_waits enable row level security;
alter table plugin_waits force row level security;
create policy tenant on plugin_waits
    using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));

alter table observed_events enable row level security;
alter table observed_events force row level security;
create policy tenant on observed_events
    using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));

alter table webhooks enable row level security;
alter table webhooks force row level security;
create policy tenant on webhooks
    using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));

alter table webhook_deliveries enable row level security;
alter table webhook_deliveries force row level security;
create policy tenant on webhook_deliveries
    using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));

alter table deliveries enable row level security;
alter table deliveries force row level security;
create policy tenant on deliveries
    using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));

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
