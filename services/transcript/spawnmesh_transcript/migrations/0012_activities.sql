-- What the service did with transcripts, for those who watch, remembered for some days; and tokens counted anew.

-- The newest position of each tenant's activities; it never goes back, whatever is forgotten.
create table activity_heads (
    tenant_id text   not null primary key,
    position  bigint not null
);

-- body is an Activity without position, session and time.
create table activities (
    tenant_id   text        not null,
    position    bigint      not null,
    session_id  text        not null,
    create_time timestamptz not null,
    body        bytea       not null,
    primary key (tenant_id, position)
);
create index activities_session_idx on activities (tenant_id, session_id, position);
create index activities_time_idx on activities (tenant_id, create_time);

alter table activity_heads enable row level security;
alter table activity_heads force row level security;
create policy tenant on activity_heads
    using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));

alter table activities enable row level security;
alter table activities force row level security;
create policy tenant on activities
    using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));

-- Lets nobody else record or remove activities of the tenant until the transaction ends.
create function hold_activities(p_tenant_id text) returns void language sql as $$
    select pg_advisory_xact_lock(hashtextextended('activities of ' || p_tenant_id, 0));
$$;

-- Records activities in their order, those of transcripts that are not there left out. Whoever records holds the tenant's lock until the commit, so positions
-- rise in the order of commits: who has read up to one misses nothing below it. Gives the newest position; none where nothing was recorded.
-- Indexes: the primary keys.
create function record_activities(p_tenant_id text, p_session_ids text[], p_bodies bytea[]) returns setof bigint language plpgsql as $$
declare
    newest bigint;
begin
    if not enter_tenant(p_tenant_id) then
        return;
    end if;
    perform hold_activities(p_tenant_id);
    insert into activity_heads as h (tenant_id, position)
    values (p_tenant_id, cardinality(p_bodies))
    on conflict (tenant_id) do update
    set position = h.position + cardinality(p_bodies)
    returning position into newest;
    insert into activities (tenant_id, position, session_id, create_time, body)
    select p_tenant_id, newest - cardinality(p_bodies) + given.number, given.session_id, clock_timestamp(), given.body
    from unnest(p_session_ids, p_bodies) with ordinality as given (session_id, body, number)
    where exists (
        select from transcripts t where t.tenant_id = p_tenant_id and t.session_id = given.session_id and t.state = 'LIVE'
    );
    if found then
        return next newest;
    end if;
end
$$;

-- Removes up to so many activities of a transcript that is gone, once nobody is recording who may have seen it; gives their positions.
-- Index: activities_session_idx.
create function delete_activities(p_tenant_id text, p_session_id text, p_row_count integer) returns setof bigint language plpgsql as $$
begin
    perform hold_activities(p_tenant_id);
    return query
    delete from activities a
    where a.tenant_id = p_tenant_id and a.position in (
        select n.position from activities n
        where n.tenant_id = p_tenant_id and n.session_id = p_session_id
        order by n.position
        limit p_row_count
    )
    returning a.position;
end
$$;

-- Writes down what messages, notes and summaries count by another vocabulary, and the references that stand for them. p_stub_token_counts has null for
-- an entry without; one that got a reference meanwhile, or was counted so already, is left as it is. The seqs that it was done for; none where the
-- transcript is not there any more. Whatever sums the counts moves with them. Locks the transcript's row until commit, and then the entries'.
-- Indexes: the primary keys.
create function recount_entries(
    p_tenant_id text, p_session_id text, p_incarnation text, p_vocabulary text, p_seqs bigint[], p_token_counts integer[], p_stub_token_counts integer[]
) returns table (recounted_seq bigint) language plpgsql set enable_sort = off set enable_hashjoin = off set enable_mergejoin = off as $$
begin
    perform from transcripts t
    where t.tenant_id = p_tenant_id and t.session_id = p_session_id and t.incarnation = p_incarnation and t.state = 'LIVE'
        and not is_purged(p_tenant_id)
    for update;
    if not found then
        return;
    end if;
    return query
    with fitting as materialized (
        select given.seq, given.token_count, given.stub_token_count, e.kind, e.token_count as old_token_count
        from unnest(p_seqs, p_token_counts, p_stub_token_counts) as given (seq, token_count, stub_token_count)
        join entries e on e.tenant_id = p_tenant_id and e.session_id = p_session_id and e.seq = given.seq and e.token_vocabulary <> p_vocabulary
        where (given.stub_token_count is not null) = exists (
            select from stubs s where s.tenant_id = p_tenant_id and s.session_id = p_session_id and s.seq = given.seq
        )
    ), counted as (
        update entries e
        set token_vocabulary = p_vocabulary, token_count = case when f.kind = 'COMPACTION' then e.token_count else f.token_count end
        from fitting f
        where e.tenant_id = p_tenant_id and e.session_id = p_session_id and e.seq = f.seq
    ), stubbed as (
        update stubs s
        set token_count = f.stub_token_count
        from fitting f
        where s.tenant_id = p_tenant_id and s.session_id = p_session_id and s.seq = f.seq
    ), summarized as (
        update summaries s
        set token_count = coalesce((select f.token_count from fitting f where f.seq = s.seq), s.token_count),
            covered_token_count = s.covered_token_count + (
                select coalesce(sum(f.token_count - f.old_token_count), 0)
                from fitting f
                where f.kind <> 'COMPACTION' and f.seq <= s.last_source_seq
            )
        where s.tenant_id = p_tenant_id and s.session_id = p_session_id
    ), summed as (
        update transcripts t
        set token_count = t.token_count + (
            select coalesce(sum(f.token_count - f.old_token_count), 0) from fitting f where f.kind <> 'COMPACTION'
        )
        where t.tenant_id = p_tenant_id and t.session_id = p_session_id
    )
    select f.seq from fitting f;
end
$$;
