-- name: scan_counts
-- Reads no bodies, oldest first. is_counted is true if a model reads the entry, or it is a
-- summary. Takes no lock. Indexes: entries, summaries and stubs primary keys.
select e.seq, e.token_vocabulary, coalesce(s.token_count, e.token_count) as token_count,
    octet_length(e.body) + e.dropped_bytes as size_bytes,
    e.kind in ('MESSAGE', 'NOTE') or s.seq is not null as is_counted
from (
    select seq, kind, token_count, token_vocabulary, body, dropped_bytes
    from entries
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s and seq > %(after_seq)s
    order by seq
    limit (select %(row_count)s::bigint)
) as e
left join lateral (
    select seq, token_count
    from summaries
    where e.kind = 'COMPACTION' and tenant_id = %(tenant_id)s and session_id = %(session_id)s and seq = e.seq
    limit 1
) as s on true
order by e.seq;

-- name: read_stub_bodies
-- Takes no lock. Index: stubs primary key.
select s.seq, s.body
from unnest(%(seqs)s::bigint[]) as wanted (seq)
cross join lateral (
    select seq, body
    from stubs
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s and seq = wanted.seq
    limit 1
) as s;

-- name: lock_for_recount
-- Locks the transcript's row until commit: no payload of it moves. Index: transcripts primary key.
select from transcripts
where tenant_id = %(tenant_id)s and session_id = %(session_id)s
for update;

-- name: recount_entries
-- Follows `lock_for_recount`. Stores the token counts of messages, notes, summaries and their stubs
-- by another vocabulary, and moves every total with them. The counts of a stub are null for an
-- entry without one. Returns the seqs that it changed. It skips an entry that got or lost a stub,
-- or was recounted, since the caller read it, and everything if the transcript has another
-- incarnation. Each update is limited to the range of the entries. Locks the rows that it changes.
-- Indexes: the primary keys.
with found as (
    select e.seq, e.kind, given.token_count, given.stub_token_count, given.thinking_token_count,
        case when e.kind = 'COMPACTION' then 0 else given.token_count - e.token_count end as difference
    from unnest(%(seqs)s::bigint[], %(token_counts)s::integer[], %(stub_token_counts)s::integer[],
        %(thinking_token_counts)s::integer[])
        as given (seq, token_count, stub_token_count, thinking_token_count)
    cross join lateral (
        select seq, kind, token_count, token_vocabulary
        from entries
        where tenant_id = %(tenant_id)s and session_id = %(session_id)s and seq = given.seq
        limit 1
    ) as e
    where e.token_vocabulary <> %(vocabulary)s
        and (given.stub_token_count is null) = ((
            select true from stubs
            where tenant_id = %(tenant_id)s and session_id = %(session_id)s and seq = given.seq
            limit 1
        ) is null)
        and exists (
            select from transcripts
            where tenant_id = %(tenant_id)s and session_id = %(session_id)s
                and incarnation = %(incarnation)s and state = 'LIVE'
        )
        and not exists (select true from purged_tenants where tenant_id = %(tenant_id)s)
), ends as (
    select min(seq) as first_seq, max(seq) as last_seq from found
), counted as (
    update entries e
    set token_vocabulary = %(vocabulary)s,
        token_count = case when f.kind = 'COMPACTION' then e.token_count else f.token_count end
    from found f
    where e.tenant_id = %(tenant_id)s and e.session_id = %(session_id)s and e.seq = f.seq
        and e.seq between (select first_seq from ends) and (select last_seq from ends)
), stubs_counted as (
    update stubs s
    set token_count = f.stub_token_count, thinking_token_count = f.thinking_token_count
    from found f
    where s.tenant_id = %(tenant_id)s and s.session_id = %(session_id)s and s.seq = f.seq
        and s.seq between (select first_seq from ends) and (select last_seq from ends)
), summaries_counted as (
    update summaries s
    set token_count = coalesce(
            (select f.token_count from found f where f.seq = s.seq and f.kind = 'COMPACTION'), s.token_count
        ),
        covered_token_count = s.covered_token_count + (
            select coalesce(sum(f.difference), 0) from found f where f.seq <= s.last_source_seq
        )
    where s.tenant_id = %(tenant_id)s and s.session_id = %(session_id)s and exists (select from found)
), transcript_counted as (
    update transcripts t
    set token_count = t.token_count + (select sum(f.difference) from found f)
    where t.tenant_id = %(tenant_id)s and t.session_id = %(session_id)s and exists (select from found)
)
select seq as recounted_seq from found;
