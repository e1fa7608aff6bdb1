-- Functions whose cost does not hang on what the planner was last told of how many rows there are.

-- As before; what is removed is a range. Index: activities_session_idx.
create or replace function delete_activities(p_tenant_id text, p_session_id text, p_row_count integer)
returns setof bigint language plpgsql set enable_sort = off set enable_seqscan = off as $$
begin
    perform hold_activities(p_tenant_id);
    return query
    with page as materialized (
        select n.position from activities n
        where n.tenant_id = p_tenant_id and n.session_id = p_session_id
        order by n.position
        limit p_row_count
    )
    delete from activities a
    where a.tenant_id = p_tenant_id and a.session_id = p_session_id and a.position <= (select max(page.position) from page)
    returning a.position;
end
$$;

-- As before, entry by entry, each found by a range in order, which leaves the planner no other index. Indexes: the primary keys.
create or replace function recount_entries(
    p_tenant_id text, p_session_id text, p_incarnation text, p_vocabulary text, p_seqs bigint[], p_token_counts integer[], p_stub_token_counts integer[]
) returns table (recounted_seq bigint) language plpgsql set enable_sort = off set enable_seqscan = off as $$
declare
    item record;
    found_entry record;
    seqs bigint[] := '{}';
    differences bigint[] := '{}';
begin
    perform from transcripts t
    where t.tenant_id = p_tenant_id and t.session_id = p_session_id and t.incarnation = p_incarnation and t.state = 'LIVE'
        and not is_purged(p_tenant_id)
    for update;
    if not found then
        return;
    end if;
    for item in
        select * from unnest(p_seqs, p_token_counts, p_stub_token_counts) as given (seq, token_count, stub_token_count)
    loop
        select e.ctid as place, e.kind, e.token_count, e.token_vocabulary into found_entry
        from entries e
        where e.tenant_id = p_tenant_id and e.session_id = p_session_id and e.seq between item.seq and item.seq
        order by e.seq
        limit 1;
        if not found or found_entry.token_vocabulary = p_vocabulary or (item.stub_token_count is not null) <> exists (
            select from stubs s where s.tenant_id = p_tenant_id and s.session_id = p_session_id and s.seq = item.seq
        ) then
            continue;
        end if;
        update entries e
        set token_vocabulary = p_vocabulary,
            token_count = case when found_entry.kind = 'COMPACTION' then e.token_count else item.token_count end
        where e.ctid = found_entry.place;
        if not found then -- Its payload is just being moved.
            continue;
        end if;
        update stubs s
        set token_count = item.stub_token_count
        where s.tenant_id = p_tenant_id and s.session_id = p_session_id and s.seq = item.seq;
        if found_entry.kind = 'COMPACTION' then
            update summaries s
            set token_count = item.token_count
            where s.tenant_id = p_tenant_id and s.session_id = p_session_id and s.seq = item.seq;
        else
            seqs := seqs || item.seq;
            differences := differences || (item.token_count - found_entry.token_count)::bigint;
        end if;
        recounted_seq := item.seq;
        return next;
    end loop;
    update summaries s
    set covered_token_count = s.covered_token_count + (
        select coalesce(sum(changed.difference), 0)
        from unnest(seqs, differences) as changed (seq, difference)
        where changed.seq <= s.last_source_seq
    )
    where s.tenant_id = p_tenant_id and s.session_id = p_session_id;
    update transcripts t
    set token_count = t.token_count + (select coalesce(sum(difference), 0) from unnest(differences) as difference)
    where t.tenant_id = p_tenant_id and t.session_id = p_session_id;
end
$$;
