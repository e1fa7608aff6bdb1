-- A claim that is given up before it was acquired is never acquired: a run may end before it has written, and its token outlives it.

-- Ends the claim, and every lower one: the transcript has no writer by then, unless a higher claim is the current one; gives where it stands. No row: there is
-- none. The epoch stays, so that neither this claim nor an earlier one comes back. Locks the transcript's row where it changes. Index: transcripts primary key.
create or replace function release_writer(p_tenant_id text, p_session_id text, p_run_id text, p_epoch bigint)
returns table (incarnation text, seq bigint, chain_hash bytea, writer_run_id text, writer_epoch bigint) language plpgsql as $$
#variable_conflict use_column
begin
    update transcripts
    set writer_run_id = '', writer_epoch = p_epoch
    where tenant_id = p_tenant_id and session_id = p_session_id and state = 'LIVE' and not is_purged(p_tenant_id)
        and (writer_epoch < p_epoch or (writer_epoch = p_epoch and writer_run_id = p_run_id));
    return query
        select t.incarnation, t.seq, t.chain_hash, t.writer_run_id, t.writer_epoch
        from transcripts t
        where t.tenant_id = p_tenant_id and t.session_id = p_session_id and t.state = 'LIVE' and not is_purged(p_tenant_id);
end
$$;
