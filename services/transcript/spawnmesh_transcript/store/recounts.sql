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
    limit %(row_count)s
) as e
left join lateral (
    select seq, token_count
    from summaries
    where e.kind = 'COMPACTION' and tenant_id = %(tenant_id)s and session_id = %(session_id)s and seq = e.seq
    offset 0
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
    offset 0
) as s;

-- name: recount_entries
-- Runs as a transaction of its own. The function documents its locks and its indexes.
select *
from recount_entries(
    set_config('spawnmesh.tenant', %(tenant_id)s, true), %(session_id)s, %(incarnation)s, %(vocabulary)s,
    %(seqs)s::bigint[], %(token_counts)s::integer[], %(stub_token_counts)s::integer[],
    %(thinking_token_counts)s::integer[]
);
