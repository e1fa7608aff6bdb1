-- Tenants and their limits, attachment sets and their files, one row for each stored content of a
-- tenant, and uploads.
--
-- Several statements and functions find one row by `between x and x order by ... limit 1`, and by
-- its ctid after that. Without statistics of a new tenant the planner estimates one row for every
-- index that begins with tenant_id, and may then read all rows of the tenant. The range with an
-- order leaves it only the index that has the complete key.

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
    -- From the first PurgeTenant on nothing new is stored for the tenant.
    purging boolean not null default false,
    -- When a worker last claimed the tenant's garbage collection.
    collect_time timestamptz,
    -- While purging: the last settings_version of the tenant to purge, 0 for any version. Else 0.
    -- It fences a late purge off from a tenant that was created anew.
    purged_version bigint not null default 0
);

-- STAGED -> ATTACHED -> RELEASED, or STAGED -> RELEASED. Ids begin with `att_`, or with `blb_` for
-- a payload of BlobService. A RELEASED row is a tombstone: it refuses a late StageSet of the same
-- id. One with an empty session_id was released before it was staged.
create table sets (
    tenant_id text not null,
    set_id text not null,
    session_id text not null,
    state text not null check (state in ('STAGED', 'ATTACHED', 'RELEASED')),
    create_time timestamptz not null default now(),
    state_time timestamptz not null default now(),
    primary key (tenant_id, set_id)
);
-- For list_sets and lock_stored_blob: the sets of a session.
create index sets_session_idx on sets (tenant_id, session_id, set_id);
-- For abandoned_sets. Sets of payloads remain STAGED and are left out.
create index sets_staged_idx on sets (tenant_id, set_id)
where state = 'STAGED' and starts_with(set_id, 'att_');
-- For old_tombstones and delete_tombstones: released sets by age.
create index sets_released_idx on sets (tenant_id, state_time, set_id) where state = 'RELEASED';

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
-- For is_referenced, unsettled_blobs and stored_sets_of: the files with a hash. The hash comes
-- first: with tenant_id first the planner also chose this index for the files of one set, and read
-- all files of the tenant.
create index set_files_sha256_idx on set_files (sha256, tenant_id);

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
-- For is_referenced, lock_stored_blob, count_uploads, unsettled_blobs and delete_lost_uploads.
create index uploads_sha256_idx on uploads (tenant_id, sha256) where state = 'COMPLETE';
-- For upload_keys_between and count_uploads.
create index uploads_object_key_idx on uploads (tenant_id, object_key) where state <> 'COMPLETE';

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

-- Return whether an upload, or a set that is neither RELEASED nor p_but_set_id, refers to the
-- bytes.
-- Index: uploads_sha256_idx, set_files_sha256_idx, sets_pkey.
create function is_referenced(p_tenant_id text, p_sha256 text, p_but_set_id text) returns boolean
language plpgsql stable set enable_sort = off as $$
begin
    perform from uploads u
    where u.tenant_id = p_tenant_id and u.sha256 between p_sha256 and p_sha256 and u.state = 'COMPLETE'
    order by u.sha256
    limit 1;
    if found then
        return true;
    end if;
    perform from set_files f
    where f.tenant_id = p_tenant_id and f.sha256 between p_sha256 and p_sha256 and f.set_id <> p_but_set_id
        and (
            select s.state from sets s where s.tenant_id = f.tenant_id and s.set_id = f.set_id
        ) <> 'RELEASED'
    order by f.sha256
    limit 1;
    return found;
end;
$$;

-- The second argument of stage_set. One JSON object costs the caller less than eight lists and
-- texts.
create type set_to_stage as (
    -- enabled as 0 or 1, max_file_count, max_file_bytes, max_total_bytes: the limits of validation.
    limits bigint[],
    set_id text,
    session_id text,
    names text[],
    sizes bigint[],
    hashes text[],
    mime_types text[],
    -- Hashes whose bytes the caller does not have, because they were uploaded before.
    uploaded text[],
    -- Objects are put under their hash and this suffix.
    key_suffix text
);

-- Write a set as STAGED and its blobs as STORED, for a caller that puts the objects of `unstored`
-- and then commits. Outcomes:
--   WRITTEN
--   EXISTS          the set id was used before
--   POLICY_CHANGED  the tenant's limits differ from the given ones
--   UNKNOWN_TENANT  the tenant is not prepared, or it is being purged
--   UPLOAD_GONE     a hash of `uploaded` is not stored any more
-- Only WRITTEN and UPLOAD_GONE leave rows. The caller commits WRITTEN when the objects are put, and
-- rolls back UPLOAD_GONE; after every other outcome there is nothing to roll back. Until the
-- transaction ends, no other one deletes one of the blobs or puts one of `unstored`; others may
-- stage bytes that were stored before.
-- Locks the tenant against a purge, then the set, then the blobs in the order of their hashes.
-- Index: attachment_tenants_pkey, sets_pkey, blobs_pkey.
create function stage_set(
    p_tenant_id text, p_set jsonb, out outcome text, out unstored text[], out create_time timestamptz
) language plpgsql as $$
declare
    given set_to_stage := jsonb_populate_record(null::set_to_stage, p_set);
    held_limits bigint[];
    wanted record;
begin
    perform pg_advisory_xact_lock_shared(hashtextextended('store something of ' || p_tenant_id, 0));
    select array[t.enabled::integer, t.max_file_count, t.max_file_bytes, t.max_total_bytes]::bigint[]
    into held_limits
    from attachment_tenants t
    where t.tenant_id = p_tenant_id and not t.purging;
    if not found then
        outcome := 'UNKNOWN_TENANT';
        return;
    end if;
    if held_limits <> given.limits then
        outcome := 'POLICY_CHANGED';
        return;
    end if;
    insert into sets as s (tenant_id, set_id, session_id, state)
    values (p_tenant_id, given.set_id, given.session_id, 'STAGED')
    on conflict (tenant_id, set_id) do nothing
    returning s.create_time into create_time;
    if not found then
        outcome := 'EXISTS';
        return;
    end if;
    insert into set_files (tenant_id, set_id, position, name, size_bytes, sha256, mime_type)
    select p_tenant_id, given.set_id, f.position, f.name, f.size_bytes, f.sha256, f.mime_type
    from unnest(given.names, given.sizes, given.hashes, given.mime_types)
        with ordinality as f (name, size_bytes, sha256, mime_type, position);
    unstored := '{}';
    for wanted in
        select distinct
            f.sha256, f.size_bytes,
            'sha256/' || left(f.sha256, 2) || '/' || f.sha256 || '.' || given.key_suffix as object_key
        from unnest(given.hashes, given.sizes) as f (sha256, size_bytes)
        order by f.sha256
    loop
        -- Each statement waits for the transaction that holds the row and then sees the row's new
        -- state. If that does not match, the next statement is tried.
        loop
            if wanted.sha256 <> all (given.uploaded) then
                insert into blobs (tenant_id, sha256, size_bytes, state, object_key)
                values (p_tenant_id, wanted.sha256, wanted.size_bytes, 'STORED', wanted.object_key)
                on conflict (tenant_id, sha256) do nothing;
                if found then
                    unstored := unstored || wanted.sha256;
                    exit;
                end if;
            end if;
            perform from blobs b
            where b.tenant_id = p_tenant_id and b.sha256 = wanted.sha256 and b.state = 'STORED'
            for share;
            exit when found;
            if wanted.sha256 = any (given.uploaded) then
                outcome := 'UPLOAD_GONE';
                return;
            end if;
            -- The blob is DELETING or LOST: its object may be gone, or be deleted at any moment.
            update blobs b
            set state = 'STORED', state_time = now(), object_key = wanted.object_key
            where b.tenant_id = p_tenant_id and b.sha256 = wanted.sha256 and b.state <> 'STORED';
            if found then
                unstored := unstored || wanted.sha256;
                exit;
            end if;
        end loop;
    end loop;
    outcome := 'WRITTEN';
end;
$$;

-- Mark those of the blobs that only p_but_set_id refers to as DELETING, and return their object
-- keys. Locks each blob, in the order of the hashes, and then looks for references, so that it
-- sees what was committed while it waited. Index: blobs_pkey.
create function mark_unreferenced_blobs(p_tenant_id text, p_hashes text[], p_but_set_id text)
returns setof text
language plpgsql set enable_sort = off as $$
declare
    wanted record;
    held record;
begin
    for wanted in
        select distinct given.sha256 from unnest(p_hashes) as given (sha256) order by given.sha256
    loop
        select b.ctid as place, b.object_key into held
        from blobs b
        where b.tenant_id = p_tenant_id and b.sha256 between wanted.sha256 and wanted.sha256
        order by b.sha256
        limit 1
        for update;
        if found and not is_referenced(p_tenant_id, wanted.sha256, p_but_set_id) then
            update blobs b set state = 'DELETING', state_time = now() where b.ctid = held.place;
            return next held.object_key;
        end if;
    end loop;
end;
$$;

-- Lock, in the order of the hashes, those of the blobs that are DELETING and that only p_but_set_id
-- refers to. A blob that was stored again while this waited is left out. Index: blobs_pkey.
create function lock_marked_blobs(p_tenant_id text, p_hashes text[], p_but_set_id text)
returns table (sha256 text, object_key text)
language plpgsql set enable_sort = off as $$
declare
    wanted record;
    held record;
begin
    for wanted in
        select distinct given.sha256 from unnest(p_hashes) as given (sha256) order by given.sha256
    loop
        select b.sha256, b.object_key into held
        from blobs b
        where b.tenant_id = p_tenant_id and b.sha256 between wanted.sha256 and wanted.sha256
            and b.state = 'DELETING'
        order by b.sha256
        limit 1
        for update;
        if found and not is_referenced(p_tenant_id, wanted.sha256, p_but_set_id) then
            sha256 := held.sha256;
            object_key := held.object_key;
            return next;
        end if;
    end loop;
end;
$$;

-- Delete the rows of these blobs, which the transaction has locked. Index: blobs_pkey.
create function delete_blobs(p_tenant_id text, p_hashes text[]) returns void
language plpgsql set enable_sort = off as $$
declare
    wanted record;
    held record;
begin
    for wanted in select given.sha256 from unnest(p_hashes) as given (sha256) loop
        select b.ctid as place into held
        from blobs b
        where b.tenant_id = p_tenant_id and b.sha256 between wanted.sha256 and wanted.sha256
        order by b.sha256
        limit 1;
        if found then
            delete from blobs b where b.ctid = held.place;
        end if;
    end loop;
end;
$$;

-- Each transaction sees the rows of its own tenant, which `spawnmesh.tenant` names.
alter table attachment_tenants enable row level security;
alter table attachment_tenants force row level security;
create policy tenant on attachment_tenants
using (tenant_id = current_setting('spawnmesh.tenant', true))
with check (tenant_id = current_setting('spawnmesh.tenant', true));

-- The worker lists all tenants. It then works in the scope of one tenant.
create policy every_tenant on attachment_tenants for select
using (current_setting('spawnmesh.tenant', true) = '*');

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
