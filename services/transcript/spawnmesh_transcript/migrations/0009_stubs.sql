-- Large results of tools: what is kept of them in the blob store, and what a context has in their place.

alter table tenants
    add column stub_large_tool_payloads boolean not null default false,
    add column large_payload_bytes      integer not null default 8000;

-- One row for each text or image that is a file. It is there before the blob is, so that whatever the blob store has is named here; and it goes
-- only after the blob store has given the blob up. is_stored: the blob store has it for certain.
create table payloads (
    tenant_id   text    not null,
    blob_id     text    not null,
    session_id  text    not null,
    seq         bigint  not null,
    block_index integer not null,
    tool_name   text    not null,
    about       text    not null,
    mime_type   text    not null,
    size_bytes  bigint  not null,
    line_count  bigint  not null,
    sha256      text    not null,
    is_stored   boolean not null default false,
    primary key (tenant_id, blob_id)
);
create index payloads_session_idx on payloads (tenant_id, session_id, seq, block_index);
create index payloads_waiting_idx on payloads (tenant_id, session_id) where not is_stored;

-- One row for each entry that a context may have references of: the whole body with references in it, and what it counts. Never changed, so that a
-- context is the same from turn to turn. is_stored: the blob store has all of the entry's payloads.
create table stubs (
    tenant_id   text    not null,
    session_id  text    not null,
    seq         bigint  not null,
    token_count integer not null,
    body        bytea   not null,
    is_stored   boolean not null default false,
    primary key (tenant_id, session_id, seq)
);

alter table payloads enable row level security;
alter table payloads force row level security;
create policy tenant on payloads
    using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));

alter table stubs enable row level security;
alter table stubs force row level security;
create policy tenant on stubs
    using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));
