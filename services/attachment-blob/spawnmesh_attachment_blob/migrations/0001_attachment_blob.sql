-- Tenants and their limits, attachment sets and their files, one row for each stored content of a
-- tenant, and uploads; at the end the audit log, background jobs and operations.
--
-- The planner keeps no statistics of the columns by which statements find sets, files, blobs and
-- uploads. It then expects that any value has one row in 200, also for a tenant that is new or that
-- grew since the last ANALYZE, and one row for a complete primary key. So it makes the same plans
-- for each tenant: an index of which more columns are given is always cheaper. With statistics, it
-- expects one row for a tenant that they do not know, and may then read all rows of the tenant.

-- A tenant for which PrepareTenant was called.
create table attachment_tenants (
    tenant_id text not null primary key,
    -- Version of the settings that are stored here.
    settings_version bigint not null,
    enabled boolean not null,
    max_file_count integer not null,
    max_file_bytes bigint not null,
    max_total_bytes bigint not null,
    -- Age at which an ATTACHED set is released; 0 keeps it.
    retention_seconds bigint not null default 0,
    -- Lifetime of a download URL; 0 disables download URLs.
    download_url_seconds bigint not null default 0,
    -- The quota for the two counters together.
    max_stored_bytes bigint not null,
    -- The bytes of blobs that are STORED.
    stored_bytes bigint not null default 0 check (stored_bytes >= 0),
    -- The announced sizes of uploads that are not COMPLETE.
    uploading_bytes bigint not null default 0 check (uploading_bytes >= 0),
    -- The bytes that still fit into the quota, as domain.storage.StorageUsage has them.
    free_bytes bigint not null
    generated always as (greatest(max_stored_bytes - stored_bytes - uploading_bytes, 0)) stored
);

-- The tenants that the worker goes through: ids and times alone, since they are read over all
-- tenants. A row is deleted when the purge of its tenant begins.
create table tenant_work (
    tenant_id text not null primary key,
    -- When a worker last claimed the tenant's garbage collection.
    collect_time timestamptz
);
comment on table tenant_work is 'citus: local';

-- Tenants that are purged, or were. Nothing is stored for them until they are created anew. See
-- `spawnmesh_postgres.tenant_purges`.
create table purged_tenants (
    tenant_id text not null primary key,
    settings_version bigint not null, -- The newest settings of the purged tenant, or 0.
    begin_time timestamptz not null default now(),
    end_time timestamptz -- When nothing of the tenant was left.
);

-- STAGED -> ATTACHED -> RELEASED, or STAGED -> RELEASED. Ids begin with `att_`, or with `blb_` for
-- a payload of BlobService. A RELEASED row is a tombstone: it refuses a late StageSet of the same
-- id. One with an empty session_id was released before it was staged.
create table sets (
    tenant_id text not null,
    set_id text not null,
    session_id text not null,
    -- For an output set: the run that published the files, and the ancestors of the session, whose
    -- runs may read them, too. No statement compares these two columns.
    run_id text not null default '',
    reader_session_ids text[] not null default '{}',
    state text not null check (state in ('STAGED', 'ATTACHED', 'RELEASED')),
    create_time timestamptz not null default now(),
    state_time timestamptz not null default now(),
    -- When the set became a tombstone. Only the statements of tombstones compare it, so that only
    -- they use its index.
    release_time timestamptz generated always as (case state when 'RELEASED' then state_time end) stored,
    primary key (tenant_id, set_id)
);
-- For list_sets_of_session and lock_stored_blob.
create index sets_session_idx on sets (session_id, tenant_id, set_id);
-- For abandoned_sets. Sets of payloads remain STAGED and are left out.
create index sets_staged_idx on sets (tenant_id, set_id)
where state = 'STAGED' and starts_with(set_id, 'att_');
-- For old_tombstones and delete_tombstones: released sets by age.
create index sets_release_time_idx on sets (tenant_id, release_time, set_id) where release_time is not null;
alter table sets
    alter column tenant_id set statistics 0, alter column set_id set statistics 0,
    alter column session_id set statistics 0, alter column state set statistics 0,
    alter column state_time set statistics 0, alter column release_time set statistics 0;

-- A file of a set. While its set is not RELEASED, the row is a reference to the blob with this
-- hash. The rows of a released set are deleted after its objects.
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
-- For blob_references, lock_stored_blob, unsettled_blobs and stored_sets_of: the sets with a hash.
create index set_files_sha256_idx on set_files (sha256, tenant_id, set_id);
alter table set_files
    alter column tenant_id set statistics 0, alter column set_id set statistics 0,
    alter column position set statistics 0, alter column sha256 set statistics 0;

-- A stored content. STORED -> DELETING -> no row; DELETING -> STORED if the bytes are stored
-- again; STORED -> LOST if a collection finds the object missing or damaged; LOST -> STORED if the
-- bytes are stored again or the object is restored; LOST -> DELETING. A committed STORED row
-- promises that the object exists. Each object has a row; objects without one are orphans.
create table blobs (
    tenant_id text not null,
    sha256 text not null check (sha256 ~ '^[0-9a-f]{64}$'),
    size_bytes bigint not null,
    state text not null check (state in ('STORED', 'DELETING', 'LOST')),
    create_time timestamptz not null default now(),
    state_time timestamptz not null default now(),
    -- `sha256/<first two digits>/<sha256>.<suffix>`. Each put uses a new suffix.
    object_key text not null collate "C",
    primary key (tenant_id, sha256)
);
-- For blobs_between: the comparison with the bucket's listing.
create index blobs_object_key_idx on blobs (tenant_id, object_key);
-- For unsettled_blobs.
create index blobs_unsettled_hash_idx on blobs (tenant_id, sha256) where state <> 'STORED';
alter table blobs
    alter column tenant_id set statistics 0, alter column sha256 set statistics 0,
    alter column state set statistics 0, alter column state_time set statistics 0,
    alter column object_key set statistics 0;

-- A file that is uploaded in chunks. OPEN -> COMPLETE -> no row, or OPEN -> ABORTING -> no row. A
-- COMPLETE upload is a reference to the blob with its hash. Upload ids are unique for each owner:
-- the session whose runs send the upload, or, with an empty session_id, all clients of the tenant.
create table uploads (
    tenant_id text not null,
    row_id text not null generated always as (upload_id || '.' || session_id) stored,
    upload_id text not null,
    session_id text not null,
    name text not null,
    size_bytes bigint not null,
    sha256 text not null check (sha256 ~ '^[0-9a-f]{64}$'),
    mime_type text not null,
    state text not null check (state in ('OPEN', 'COMPLETE', 'ABORTING')),
    -- Fencing token. Each stream that writes increments it, and each write names it.
    generation integer not null default 0,
    -- The key at which the upload's own object is put.
    object_key text not null collate "C",
    -- Id of the multipart upload in S3; empty before the first part and after completion.
    multipart_id text not null default '',
    create_time timestamptz not null default now(),
    expire_time timestamptz not null,
    primary key (tenant_id, row_id)
);
-- For blob_references, lock_stored_blob, count_uploads, unsettled_blobs and delete_lost_uploads.
create index uploads_sha256_idx on uploads (tenant_id, sha256) where state = 'COMPLETE';
-- For upload_keys_between and count_uploads.
create index uploads_object_key_idx on uploads (tenant_id, object_key) where state <> 'COMPLETE';
alter table uploads
    alter column tenant_id set statistics 0, alter column row_id set statistics 0,
    alter column session_id set statistics 0, alter column sha256 set statistics 0,
    alter column state set statistics 0, alter column object_key set statistics 0,
    alter column expire_time set statistics 0;

-- A part of an OPEN upload that is durable in S3.
create table upload_parts (
    tenant_id text not null,
    row_id text not null,
    part_number integer not null,
    size_bytes bigint not null,
    etag text not null,
    primary key (tenant_id, row_id, part_number),
    foreign key (tenant_id, row_id) references uploads on delete cascade
);
alter table upload_parts
    alter column tenant_id set statistics 0, alter column row_id set statistics 0,
    alter column part_number set statistics 0;

-- The references to a blob: each COMPLETE upload, with an empty set_id, and each file of a set that
-- is not RELEASED. Index: uploads_sha256_idx, set_files_sha256_idx, sets_pkey.
create view blob_references with (security_invoker = true) as
select u.tenant_id, u.sha256, '' as set_id
from uploads u
where u.state = 'COMPLETE'
union all
select f.tenant_id, f.sha256, f.set_id
from set_files f
join sets s on s.tenant_id = f.tenant_id and s.set_id = f.set_id
where s.state <> 'RELEASED';

-- Each transaction sees the rows of its own tenant, which `spawnmesh.tenant` names.
alter table attachment_tenants enable row level security;
alter table attachment_tenants force row level security;
create policy tenant on attachment_tenants
using (tenant_id = current_setting('spawnmesh.tenant', true))
with check (tenant_id = current_setting('spawnmesh.tenant', true));

alter table tenant_work enable row level security;
alter table tenant_work force row level security;
create policy tenant on tenant_work
using (tenant_id = current_setting('spawnmesh.tenant', true))
with check (tenant_id = current_setting('spawnmesh.tenant', true));

-- The worker lists all tenants. It then works in the scope of one tenant.
create policy every_tenant on tenant_work for select
using (current_setting('spawnmesh.tenant', true) = '*');

alter table purged_tenants enable row level security;
alter table purged_tenants force row level security;
create policy tenant on purged_tenants
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
