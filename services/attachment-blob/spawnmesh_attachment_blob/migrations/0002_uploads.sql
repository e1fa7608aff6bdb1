-- Uploads in pieces, objects under keys of their own, policies of how long sets are kept, and tenants that are being removed.

alter table attachment_tenants
add column retention_seconds bigint not null default 0,
add column download_url_seconds bigint not null default 0,
add column purging boolean not null default false,
add column collect_time timestamptz;

-- The collector finds out whom to work for; whatever it then does is in the scope of one tenant.
create policy every_tenant on attachment_tenants for select using (current_setting('spawnmesh.tenant', true) = '*');

-- Sets that outlive their tenant's retention.
create index sets_attached_idx on sets (tenant_id, state_time) where state = 'ATTACHED';
create index sets_session_idx on sets (tenant_id, session_id, set_id);

-- Where the bytes are: inline items under the hash alone, so that putting them twice changes nothing; uploads under the hash and a random suffix,
-- so that no unverified byte ever overwrites a verified one.
alter table blobs add column object_key text collate "C";
alter table blobs no force row level security;
update blobs set object_key = 'sha256/' || left(sha256, 2) || '/' || sha256;
alter table blobs force row level security;
alter table blobs alter column object_key set not null;
create index blobs_object_key_idx on blobs (tenant_id, object_key);

-- OPEN -> COMPLETE -> no row, OPEN -> ABORTING -> no row. A COMPLETE upload is a reference to the blob of its hash.
-- A stream that writes raises the generation, and every write names its own: who was taken over writes nothing more.
create table uploads (
    tenant_id text not null,
    upload_id text not null,
    session_id text not null,
    name text not null,
    size_bytes bigint not null,
    sha256 text not null check (sha256 ~ '^[0-9a-f]{64}$'),
    mime_type text not null,
    state text not null check (state in ('OPEN', 'COMPLETE', 'ABORTING')),
    generation integer not null default 0,
    object_key text not null collate "C",
    multipart_id text not null default '',
    create_time timestamptz not null default now(),
    expire_time timestamptz not null,
    primary key (tenant_id, upload_id)
);
create index uploads_expire_idx on uploads (tenant_id, expire_time);
create index uploads_sha256_idx on uploads (tenant_id, sha256) where state = 'COMPLETE';

-- What of an OPEN upload is durable in S3.
create table upload_parts (
    tenant_id text not null,
    upload_id text not null,
    part_number integer not null,
    size_bytes bigint not null,
    etag text not null,
    primary key (tenant_id, upload_id, part_number),
    foreign key (tenant_id, upload_id) references uploads on delete cascade
);

alter table uploads enable row level security;
alter table uploads force row level security;
create policy tenant on uploads
using (tenant_id = current_setting('spawnmesh.tenant', true))
with check (tenant_id = current_setting('spawnmesh.tenant', true));

alter table upload_parts enable row level security;
alter table upload_parts force row level security;
create policy tenant on upload_parts
using (tenant_id = current_setting('spawnmesh.tenant', true))
with check (tenant_id = current_setting('spawnmesh.tenant', true));
