-- What every session and every run begins and ends with is one statement each, a transaction of its own: a transcript, and the claim of its writer.

-- Inserts a transcript that is forked from none, with its first entries; gives where it stands. No row, and nothing done, where the tenant is being purged, or
-- there is such a transcript, or was one. Lets no purge of the tenant begin until the transaction ends; waits for one that is just beginning, and for a
-- transaction that inserts or deletes the same transcript. Indexes: tenants and transcripts primary keys; those of `write_entries`.
create function begin_transcript(
    p_tenant_id text, p_session_id text, p_incarnation text, p_parent_session_id text, p_service text, p_entries jsonb, p_bodies bytea
) returns table (incarnation text, seq bigint, chain_hash bytea, writer_run_id text, writer_epoch bigint) language plpgsql as $$
#variable_conflict use_column
declare
    head transcripts;
begin
    if not enter_tenant(p_tenant_id) then
        return;
    end if;
    insert into transcripts as t (tenant_id, session_id, incarnation, forked_from_session_id, parent_session_id)
    values (p_tenant_id, p_session_id, p_incarnation, '', p_parent_session_id)
    on conflict do nothing
    returning * into head;
    if not found then
        return;
    end if;
    return query
        select w.incarnation, w.seq, w.chain_hash, w.writer_run_id, w.writer_epoch
        from write_entries(head, '', 0, p_service, '', p_entries, p_bodies, 1) w;
end
$$;

-- Makes the claim the current one, unless it is too low; gives where the transcript stands by then, and whether the claim is held. No row: there is none.
-- Locks the transcript's row. Index: transcripts primary key.
create function acquire_writer(p_tenant_id text, p_session_id text, p_run_id text, p_epoch bigint)
returns table (incarnation text, seq bigint, chain_hash bytea, writer_run_id text, writer_epoch bigint, is_held boolean) language plpgsql as $$
#variable_conflict use_column
declare
    is_moved boolean;
begin
    update transcripts
    set writer_run_id = p_run_id, writer_epoch = p_epoch
    where tenant_id = p_tenant_id and session_id = p_session_id and state = 'LIVE' and not is_purged(p_tenant_id)
        and (writer_epoch < p_epoch or (writer_epoch = p_epoch and writer_run_id = p_run_id));
    is_moved := found;
    return query
        select t.incarnation, t.seq, t.chain_hash, t.writer_run_id, t.writer_epoch, is_moved
        from transcripts t
        where t.tenant_id = p_tenant_id and t.session_id = p_session_id and t.state = 'LIVE' and not is_purged(p_tenant_id);
end
$$;

-- Ends the claim if it is the current one; gives where the transcript stands by then. No row: there is none. The epoch stays, so that no earlier claim comes
-- back. Locks the transcript's row where the claim is the current one. Index: transcripts primary key.
create function release_writer(p_tenant_id text, p_session_id text, p_run_id text, p_epoch bigint)
returns table (incarnation text, seq bigint, chain_hash bytea, writer_run_id text, writer_epoch bigint) language plpgsql as $$
#variable_conflict use_column
begin
    update transcripts
    set writer_run_id = ''
    where tenant_id = p_tenant_id and session_id = p_session_id and writer_epoch = p_epoch and writer_run_id = p_run_id;
    return query
        select t.incarnation, t.seq, t.chain_hash, t.writer_run_id, t.writer_epoch
        from transcripts t
        where t.tenant_id = p_tenant_id and t.session_id = p_session_id and t.state = 'LIVE' and not is_purged(p_tenant_id);
end
$$;
