-- Appends that refer to no other entry, which nearly all are, in one statement for all that share a transaction. plpgsql makes each expression of a function ready
-- anew in every transaction, and `append_together` has some sixty of them.

-- Makes those of the calls that can be made at once, and gives a row for each: the head right behind its entry, whose seq is the entry's. A call without a row left
-- nothing behind, and nothing is known of it; `append_together` says what stands against it. p_calls is a JSON list, in which may be missing what is empty. A call is one
-- entry without a label and without a target; content_hash is in hex, run_id and epoch are those of the claim that it is made under (neither for an unowned append), and
-- first_byte is that of its body in p_bodies, from 1. An empty parent is the entry before. Raises unique_violation, and makes nothing, where two are for one transcript.
-- An append is whole or not there, since each step takes what the one before gave: the transcript's row as it is once it is locked, which may be newer than what the
-- statement sees; the key, where it is new; the entry; the head. The head moves by an insert that conflicts: of what is locked that is the newest version, too, and
-- it goes by the whole key, whatever the planner was told. So does the look for each row by itself.
-- Locks until commit the rows of the transcripts that nobody holds, and waits for none. Indexes: the primary keys.
create function append_plain(p_tenant_id text, p_calls jsonb, p_bodies bytea)
returns table (session_id text, incarnation text, seq bigint, chain_hash bytea, writer_run_id text, writer_epoch bigint) language plpgsql as $$
#variable_conflict use_column
begin
    return query
    with given as (
        select call.*, substring(p_bodies from call.first_byte for call.body_size) as body
        from jsonb_to_recordset(p_calls) as call (
            session_id text, idempotency_key text, content_hash text, run_id text, epoch bigint, service text, client text, settings_version bigint,
            entry_id text, parent_entry_id text, kind text, role text, token_count integer, token_vocabulary text, calls text[], answers text,
            is_synthetic boolean, first_byte integer, body_size integer
        )
        left join tenants tn on tn.tenant_id = p_tenant_id
        where call.settings_version = coalesce(tn.settings_version, 0) and tn.is_purging is not true
            and call.kind in ('HEADER', 'MESSAGE', 'NOTE', 'LABEL', 'MODEL_CHANGE', 'COMPACTION', 'BRANCH_SUMMARY', 'CUSTOM', 'OPAQUE', 'MIRROR')
            and (call.role is null or call.role in ('USER', 'ASSISTANT', 'TOOL_RESULT', 'BASH_EXECUTION', 'CUSTOM'))
            and call.first_byte + call.body_size <= octet_length(p_bodies) + 1
    ), head as (
        select g.*, t.seq + 1 as seq, sha256(t.chain_hash || g.body) as chain_hash, t.newest_entry_id, t.writer_run_id, t.writer_epoch
        from given g
        cross join lateral (
            select *
            from transcripts
            where tenant_id = p_tenant_id and session_id = g.session_id and state = 'LIVE'
                and (g.run_id = '' or (writer_run_id = g.run_id and writer_epoch = g.epoch))
            limit 1
            for update skip locked
        ) as t
    ), kept as (
        insert into appends (tenant_id, session_id, idempotency_key, content_hash, first_seq, last_seq, writer_run_id, writer_epoch)
        select p_tenant_id, h.session_id, h.idempotency_key, decode(h.content_hash, 'hex'), h.seq, h.seq, h.writer_run_id, h.writer_epoch
        from head h
        on conflict do nothing
        returning session_id
    ), entered as (
        insert into entries (
            tenant_id, session_id, seq, entry_id, parent_entry_id, kind, role, token_count, calls, answers, is_synthetic, label, target_seq,
            writer_run_id, writer_epoch, writer_service, writer_client, create_time, chain_hash, body, token_vocabulary
        )
        select p_tenant_id, h.session_id, h.seq, h.entry_id, coalesce(h.parent_entry_id, h.newest_entry_id), h.kind, coalesce(h.role, ''), h.token_count,
            coalesce(h.calls, '{}'), coalesce(h.answers, ''), coalesce(h.is_synthetic, false), '', null, h.run_id, h.epoch, h.service, h.client,
            clock_timestamp(), h.chain_hash, h.body, h.token_vocabulary
        from head h
        join kept k on k.session_id = h.session_id
        returning session_id, seq, entry_id, chain_hash, token_count, octet_length(body) as body_size, (kind in ('MESSAGE', 'NOTE'))::integer as turn_count
    )
    insert into transcripts as t (
        tenant_id, session_id, incarnation, forked_from_session_id, seq, chain_hash, newest_entry_id, token_count, logical_bytes, turn_count
    )
    select p_tenant_id, e.session_id, '', '', e.seq, e.chain_hash, e.entry_id, e.token_count, e.body_size, e.turn_count
    from entered e
    on conflict (tenant_id, session_id) do update set
        seq = excluded.seq, chain_hash = excluded.chain_hash, newest_entry_id = excluded.newest_entry_id,
        token_count = t.token_count + excluded.token_count, logical_bytes = t.logical_bytes + excluded.logical_bytes,
        turn_count = t.turn_count + excluded.turn_count
    returning t.session_id, t.incarnation, t.seq, t.chain_hash, t.writer_run_id, t.writer_epoch;
end
$$;
