-- As keep_payloads, which stays for replicas of the version before: references are kept only where they were counted by the vocabulary that their entries are
-- counted by now, since a recount that came first saw none to count. The seqs whose payloads it named; of others, some were there, or they were counted
-- otherwise. Locks as hold_for_moving, which a recount waits for, and waits for. Indexes: payloads_session_idx, the primary keys.
create function keep_counted_payloads(
    p_tenant_id text, p_session_id text, p_stub_seqs bigint[], p_token_counts integer[], p_token_vocabularies text[], p_stub_bodies bytea[],
    p_files jsonb
) returns table (kept_seq bigint) language plpgsql set enable_sort = off as $$
declare
    places integer[];
begin
    if not hold_for_moving(p_tenant_id, p_session_id) then
        return;
    end if;
    select array_agg(stub.place::integer) into places
    from unnest(p_stub_seqs, p_token_vocabularies) with ordinality as stub (seq, token_vocabulary, place)
    where stub.token_vocabulary = (
        select e.token_vocabulary
        from entries e
        where e.tenant_id = p_tenant_id and e.session_id = p_session_id and e.seq between stub.seq and stub.seq
        order by e.seq
        limit 1
    );
    return query
    select kept.kept_seq
    from keep_payloads(
        p_tenant_id, p_session_id,
        array(select p_stub_seqs[place] from unnest(places) as place), array(select p_token_counts[place] from unnest(places) as place),
        array(select p_stub_bodies[place] from unnest(places) as place),
        (
            select coalesce(jsonb_agg(file), '[]'::jsonb)
            from jsonb_array_elements(p_files) as file
            where not (file ->> 'seq')::bigint = any(p_stub_seqs)
                or (file ->> 'seq')::bigint = any(array(select p_stub_seqs[place] from unnest(places) as place))
        )
    ) as kept;
end
$$;
