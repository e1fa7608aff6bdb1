-- Work whose cost does not hang on what the planner was told. Of a tenant that is new to it, it believes that the id alone gives one row, and then it takes any
-- index that begins with the tenant for as good as the one that has the whole key: a look-up of one row reads all rows of the tenant.

-- The collector goes through rows by their ids. Those that are few have an index in this order; those that are most of their table are found by its primary
-- key, and cost the writers no second index.
create index blobs_unsettled_hash_idx on blobs (tenant_id, sha256) where state <> 'STORED';
drop index blobs_unsettled_idx;
drop index sets_attached_idx;
drop index sets_staging_idx;
drop index uploads_expire_idx;

-- Whether an upload, or a set that is not released and not p_but_set_id, refers to the bytes. Each is found by a range in order, which leaves no other index.
-- Indexes: uploads_sha256_idx, set_files_sha256_idx, sets_pkey.
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
        and (select s.state from sets s where s.tenant_id = f.tenant_id and s.set_id = f.set_id) <> 'RELEASED'
    order by f.sha256
    limit 1;
    return found;
end;
$$;

-- Marks those blobs for deletion that nobody but p_but_set_id refers to; gives their keys. Locks each, in the order of the hashes, and then looks for references:
-- it sees what was committed while it waited. Index: blobs_pkey.
create function condemn_blobs(p_tenant_id text, p_hashes text[], p_but_set_id text) returns setof text
language plpgsql set enable_sort = off as $$
declare
    wanted record;
    held record;
begin
    for wanted in select distinct given.sha256 from unnest(p_hashes) as given (sha256) order by given.sha256 loop
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

-- Those of the blobs that are marked for deletion, and to which nobody but p_but_set_id refers; locked in the order of the hashes. One that was taken back while
-- this waited is left out. Index: blobs_pkey.
create function lock_condemned_blobs(p_tenant_id text, p_hashes text[], p_but_set_id text) returns table (sha256 text, object_key text)
language plpgsql set enable_sort = off as $$
declare
    wanted record;
    held record;
begin
    for wanted in select distinct given.sha256 from unnest(p_hashes) as given (sha256) order by given.sha256 loop
        select b.sha256, b.object_key into held
        from blobs b
        where b.tenant_id = p_tenant_id and b.sha256 between wanted.sha256 and wanted.sha256 and b.state = 'DELETING'
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

-- Deletes the rows of these blobs, which the transaction has locked. Index: blobs_pkey.
create function forget_blobs(p_tenant_id text, p_hashes text[]) returns void
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
