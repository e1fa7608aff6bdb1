-- Sessions put away and deleted, tenants deleted, and what grows pruned.

-- archive_time: it has ended and is put away. delete_time: it is gone for every caller; the row stays as long as its request_id is remembered, and has
-- neither runs, nor messages, nor events, nor anything that anybody wrote. Its receipt then says no more than that there were files ('{}').
alter table sessions
    add column archive_time timestamptz,
    add column delete_time  timestamptz;
create index sessions_to_archive_idx on sessions (tenant_id, end_time)
    where end_time is not null and archive_time is null and delete_time is null;
create index sessions_to_delete_idx on sessions (tenant_id, end_time) where end_time is not null and delete_time is null;
create index sessions_deleted_idx on sessions (tenant_id, delete_time) where delete_time is not null;

create index session_events_time_idx on session_events (tenant_id, event_time);
create index inbox_messages_acknowledged_idx on inbox_messages (tenant_id, acknowledge_time) where acknowledge_time is not null;

-- When the tenant's ended sessions are to be looked at again.
alter table tenants add column retain_time timestamptz not null default now();
create index tenants_retain_idx on tenants (retain_time);

-- Also: a deleted session until its files and its transcript are gone (kind DELETE); a tenant that is being deleted (kind PURGE).
alter table dispatch drop constraint dispatch_kind_check;
alter table dispatch add constraint dispatch_kind_check check (kind in ('RUN', 'SPAWN', 'DELETE', 'PURGE'));

-- KILL -> SETTLE -> ROWS -> PEERS -> DONE. While there is a row that is not DONE, nothing begins in the tenant. The row outlives the tenant's own: it is
-- the report.
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
    check (step in ('KILL', 'SETTLE', 'ROWS', 'PEERS', 'DONE'))
);
alter table tenant_deletions enable row level security;
alter table tenant_deletions force row level security;
create policy tenant on tenant_deletions using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));
create policy every_tenant on tenant_deletions for select using (current_setting('spawnmesh.tenant', true) = '*');

-- Keeps the tenant's deletion from beginning until the transaction ends, and gives what is known of the tenant once that is sure: a deletion that was
-- just beginning is waited for and seen.
create function enter_tenant(entered text)
    returns table (tenant_id text, display_name text, settings jsonb, settings_version bigint, ready boolean, create_time timestamptz, deletion jsonb)
    language plpgsql volatile
    as $$
    begin
        perform pg_advisory_xact_lock_shared(hashtextextended('begin something in ' || entered, 0));
        return query
            select entered, t.display_name, t.settings, t.settings_version, t.ready, t.create_time, to_jsonb(d) - 'tenant_id'
            from (select entered as id) e
            left join tenants t on t.tenant_id = e.id
            left join tenant_deletions d on d.tenant_id = e.id
            where t.tenant_id is not null or d.tenant_id is not null;
    end
    $$;
