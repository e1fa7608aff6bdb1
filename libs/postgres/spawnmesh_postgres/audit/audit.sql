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
