-- Tenants with their limits, attachment sets with their files, and one row for each stored content of a tenant.

create table attachment_tenants (
    tenant_id text not null primary key,
    settings_version bigint not null,
    enabled boolean not null,
    max_file_count integer not null,
    max_file_bytes bigint not null,
    max_total_bytes bigint not null
);

-- STAGING -> STAGED -> ATTACHED -> RELEASED; every state may go to RELEASED. Readers see no set that is STAGING: its objects may be missing.
-- A row with neither session nor files is the tombstone of a set that was released before it was staged.
create table sets (
    tenant_id text not null,
    set_id text not null,
    session_id text not null,
    state text not null check (state in ('STAGING', 'STAGED', 'ATTACHED', 'RELEASED')),
    create_time timestamptz not null default now(),
    state_time timestamptz not null default now(),
    primary key (tenant_id, set_id)
);
-- Sets that somebody has to finish or undo when the process that staged them is gone.
create index sets_staging_idx on sets (tenant_id, state_time) where state = 'STAGING';

-- Each row is a reference to a blob for as long as its set is not RELEASED; rows of a released set go once its objects are gone.
create table set_files (
    tenant_id text not null,
    set_id text not null,
    position integer not null,
    name text not null,
    size_bytes bigint not null,
    sha256 text not null check (sha256 ~ '^[0-9a-f]{64}$'),
    mime_type text not null,
    primary key (tenant_id, set_id, position),
    foreign key (tenant_id, set_id) references sets on delete cascade
);
create index set_files_sha256_idx on set_files (tenant_id, sha256);

-- PENDING -> STORED -> DELETING -> no row; DELETING -> PENDING when the bytes are wanted again, PENDING -> DELETING when they never were needed.
-- The row is committed before its object is put and outlives it, so every object has a row. Only STORED promises that the object exists.
create table blobs (
    tenant_id text not null,
    sha256 text not null check (sha256 ~ '^[0-9a-f]{64}$'),
    size_bytes bigint not null,
    state text not null check (state in ('PENDING', 'STORED', 'DELETING')),
    create_time timestamptz not null default now(),
    state_time timestamptz not null default now(),
    primary key (tenant_id, sha256)
);
create index blobs_unsettled_idx on blobs (tenant_id, state_time) where state <> 'STORED';

alter table attachment_tenants enable row level security;
alter table attachment_tenants force row level security;
create policy tenant on attachment_tenants
using (tenant_id = current_setting('spawnmesh.tenant', true))
with check (tenant_id = current_setting('spawnmesh.tenant', true));

alter table sets enable row level security;
alter table sets force row level security;
create policy tenant on sets
using (tenant_id = current_setting('spawnmesh.tenant', true))
with check (tenant_id = current_setting('spawnmesh.tenant', true));

alter table set_files enable row level security;
alter table set_files force row level security;
create policy tenant on set_files
using (tenant_id = current_setting('spawnmesh.tenant', true))
with check (tenant_id = current_setting('spawnmesh.tenant', true));

alter table blobs enable row level security;
alter table blobs force row level security;
create policy tenant on blobs
using (tenant_id = current_setting('spawnmesh.tenant', true))
with check (tenant_id = current_setting('spawnmesh.tenant', true));
