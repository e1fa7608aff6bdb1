-- Tenants, sessions, runs, their queue, inbox and events. Every table leads its key with tenant_id and shows a transaction its tenant's rows only.

create table tenants (
    tenant_id             text        not null primary key,
    display_name          text        not null,
    settings              jsonb       not null,
    settings_version      bigint      not null default 1,
    max_running_run_count integer     not null,
    ready                 boolean     not null default false,
    create_time           timestamptz not null default now()
);

create table agents (
    tenant_id            text    not null,
    agent_id             text    not null,
    system_prompt        text    not null,
    models               text[]  not null,
    tools                text[]  not null,
    spawnable_agents     text[]  not null,
    max_turn_count       integer not null,
    context_token_budget integer not null,
    primary key (tenant_id, agent_id)
);

-- PROVISIONING -> ACTIVE -> CLOSED, or PROVISIONING -> SPAWN_FAILED.
create table sessions (
    tenant_id          text        not null,
    session_id         text        not null,
    request_id         text        not null,
    payload_hash       bytea       not null,
    state              text        not null,
    agent_id           text        not null,
    label              text        not null,
    model              text        not null,
    mode               text        not null,
    context            text        not null,
    cleanup            text        not null,
    runtime            text        not null,
    parent_session_id  text        not null,
    parent_run_id      text        not null,
    ancestor_ids       text[]      not null,
    run_timeout        interval    not null,
    task_hash          text        not null,
    traceparent        text        not null,
    receipt            jsonb,
    gate_passed        boolean     not null default false,
    failure            jsonb,
    last_epoch         bigint      not null default 0,
    last_cursor        bigint      not null default 0,
    create_time        timestamptz not null default now(),
    end_time           timestamptz,
    primary key (tenant_id, session_id),
    unique (tenant_id, request_id),
    check (state in ('PROVISIONING', 'ACTIVE', 'CLOSED', 'SPAWN_FAILED'))
);
create index sessions_parent_idx on sessions (tenant_id, parent_session_id, session_id);

-- QUEUED -> RUNNING -> FINALIZING -> SUCCEEDED | FAILED | TIMED_OUT | KILLED; RUNNING and FINALIZING may go back; a terminal state is set once.
create table runs (
    tenant_id      text        not null,
    run_id         text        not null,
    session_id     text        not null,
    state          text        not null,
    epoch          bigint      not null default 0,
    attempt_count  integer     not null default 0,
    runner_id      text        not null default '',
    draft_entry_id text        not null default '',
    result_text    text        not null default '',
    error_reason   text        not null default '',
    error_message  text        not null default '',
    usage          jsonb       not null default '{}',
    revision_count integer     not null default 0,
    deadline_time  timestamptz not null,
    queue_time     timestamptz not null default now(),
    start_time     timestamptz,
    end_time       timestamptz,
    primary key (tenant_id, run_id),
    foreign key (tenant_id, session_id) references sessions on delete cascade,
    check (state in ('QUEUED', 'RUNNING', 'FINALIZING', 'SUCCEEDED', 'FAILED', 'TIMED_OUT', 'KILLED'))
);
create index runs_session_idx on runs (tenant_id, session_id, run_id);
create unique index runs_live_idx on runs (tenant_id, session_id) where state in ('QUEUED', 'RUNNING', 'FINALIZING');

-- What wants attention and when: a queued run from its queueing, a held run from the end of its lease (kind RUN); a spawn from its deadline (kind
-- SPAWN). Ids and times only, so this table and the tenants' directory may be read for all tenants at once.
create table dispatch (
    tenant_id     text        not null,
    kind          text        not null,
    subject_id    text        not null,
    due_time      timestamptz not null,
    expire_time   timestamptz not null default 'infinity',
    attempts_left integer     not null default 1,
    leased        boolean     not null default false,
    primary key (tenant_id, kind, subject_id),
    check (kind in ('RUN', 'SPAWN'))
);
create index dispatch_due_idx on dispatch (tenant_id, kind, due_time);
create index dispatch_expire_idx on dispatch (tenant_id, kind, expire_time);

create table inbox_messages (
    tenant_id        text        not null,
    session_id       text        not null,
    key              text        not null,
    position         bigint      not null generated always as identity,
    text             text        not null,
    child_session_id text        not null default '',
    child_run_state  text        not null default '',
    create_time      timestamptz not null default now(),
    acknowledge_time timestamptz,
    primary key (tenant_id, session_id, key),
    foreign key (tenant_id, session_id) references sessions on delete cascade
);
create index inbox_messages_waiting_idx on inbox_messages (tenant_id, session_id, position) where acknowledge_time is null;

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

alter table tenants enable row level security;
alter table tenants force row level security;
create policy tenant on tenants using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));
create policy every_tenant on tenants for select using (current_setting('spawnmesh.tenant', true) = '*');

alter table dispatch enable row level security;
alter table dispatch force row level security;
create policy tenant on dispatch using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));
create policy every_tenant on dispatch using (current_setting('spawnmesh.tenant', true) = '*');

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

alter table inbox_messages enable row level security;
alter table inbox_messages force row level security;
create policy tenant on inbox_messages using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));

alter table session_events enable row level security;
alter table session_events force row level security;
create policy tenant on session_events using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));
