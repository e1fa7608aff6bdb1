-- Plugins by tenant, the decisions they made, and the log of every call.

create table plugins (
    tenant_id text not null,
    name text not null,
    endpoint text not null,
    hooks text[] not null,
    priority integer not null,
    timeout interval not null,
    failure_policy text not null check (failure_policy in ('OPEN', 'CLOSED')),
    grants text[] not null,
    -- Breaks ties of priority; a replaced plugin keeps its own.
    registration bigint generated always as identity,
    primary key (tenant_id, name)
);

create table deliveries (
    tenant_id text not null,
    delivery_id text not null,
    plugin text not null,
    hook text not null,
    session_id text not null,
    run_id text not null,
    start_time timestamptz not null,
    latency interval not null,
    decision text not null
        check (decision in ('allow', 'deny', 'continue', 'revise', 'finalize', 'told', 'failed')),
    error text not null,
    primary key (tenant_id, delivery_id)
);
create index deliveries_newest_idx on deliveries (tenant_id, start_time desc, delivery_id desc);
create index deliveries_session_idx on deliveries (tenant_id, session_id, start_time desc, delivery_id desc);

-- ASKING -> DECIDED. A row whose asking failed is deleted; one whose asker went away is taken over after `asking_until`.
create table decisions (
    tenant_id text not null,
    run_id text not null,
    dispatch_key text not null,
    state text not null check (state in ('ASKING', 'DECIDED')),
    asker uuid not null,
    asking_until timestamptz not null,
    answer text not null default 'continue' check (answer in ('continue', 'revise', 'finalize')),
    reason text not null default '',
    decided_by text[] not null default '{}',
    revision_number integer not null default 0,
    capped boolean not null default false,
    primary key (tenant_id, run_id, dispatch_key)
);

create table run_revisions (
    tenant_id text not null,
    run_id text not null,
    revision_count integer not null,
    primary key (tenant_id, run_id)
);

-- Who has heard of which event, so that a repeat tells only the others.
create table heard_events (
    tenant_id text not null,
    event_key text not null,
    plugin text not null,
    primary key (tenant_id, event_key, plugin)
);

alter table plugins enable row level security;
alter table plugins force row level security;
create policy tenant on plugins
    using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));

alter table deliveries enable row level security;
alter table deliveries force row level security;
create policy tenant on deliveries
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

alter table heard_events enable row level security;
alter table heard_events force row level security;
create policy tenant on heard_events
    using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));
