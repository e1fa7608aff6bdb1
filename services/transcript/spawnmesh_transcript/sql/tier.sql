-- name: list_transcripts
-- No lock. Index: transcripts primary key.
select session_id, seq as entry_count, token_count, logical_bytes, logical_bytes - dropped_bytes as stored_bytes
from transcripts
where tenant_id = %(tenant_id)s and session_id > %(after_session_id)s and state = 'LIVE' and not is_purged(%(tenant_id)s)
order by session_id
limit %(row_count)s;

-- name: scan_sizes
-- No lock, no bodies, oldest first. Index: entries primary key.
select seq, role, octet_length(body) as stored_bytes, dropped_bytes
from entries
where tenant_id = %(tenant_id)s and session_id = %(session_id)s and seq > %(after_seq)s
order by seq
limit %(row_count)s;

-- name: kept_payloads
-- No lock. Index: payloads_session_idx.
select seq, block_index, blob_id, size_bytes, sha256, is_stored, is_inline, is_leaving
from payloads
where tenant_id = %(tenant_id)s and session_id = %(session_id)s and seq between %(first_seq)s and %(last_seq)s
order by seq, block_index;

-- name: payloads_of_entries
-- No lock. Ranges in order, with `keep_index_order`, leave the planner no other index. Index: payloads_session_idx.
select p.seq, p.block_index, p.blob_id, p.size_bytes, p.sha256, p.is_stored, p.is_inline, p.is_leaving
from unnest(%(seqs)s::bigint[]) as wanted (seq)
cross join lateral (
    select seq, block_index, blob_id, size_bytes, sha256, is_stored, is_inline, is_leaving
    from payloads
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s and seq between wanted.seq and wanted.seq and not is_leaving
    order by seq, block_index
    offset 0
) as p
order by p.seq, p.block_index;

-- name: keep_payloads
-- A transaction of its own. See the function for its locks and its indexes.
select *
from keep_counted_payloads(
    set_config('spawnmesh.tenant', %(tenant_id)s, true), %(session_id)s, %(seqs)s::bigint[], %(token_counts)s::integer[],
    %(token_vocabularies)s::text[], %(stub_bodies)b::bytea[], %(files)s
);

-- name: cool_entries
-- A transaction of its own. See the function for its locks and its indexes.
select *
from cool_entries(set_config('spawnmesh.tenant', %(tenant_id)s, true), %(session_id)s, %(entries)s, %(bodies)b::bytea[]);

-- name: warm_entries
-- A transaction of its own. See the function for its locks and its indexes.
select *
from warm_entries(set_config('spawnmesh.tenant', %(tenant_id)s, true), %(session_id)s, %(seqs)s::bigint[], %(bodies)b::bytea[]);

-- name: inline_entries
-- No lock. Entries whose payloads the blob store has, and the entries too, oldest first. Index: payloads_inline_idx.
select seq, sum(size_bytes)::bigint as size_bytes
from payloads
where tenant_id = %(tenant_id)s and session_id = %(session_id)s and seq > %(after_seq)s and seq <= %(last_seq)s and is_inline and not is_leaving
group by seq
having bool_and(is_stored)
order by seq
limit %(row_count)s;

-- name: transcripts_to_cool
-- No lock. Those with inline copies that got longer since a worker last was done with them. Copies are looked for one transcript at a time, by a range in order,
-- which with `keep_index_order` leaves the planner no other index: `exists` would be joined, and read all of the tenant's. Indexes: transcripts primary key,
-- payloads_inline_idx.
select t.session_id
from transcripts t
where t.tenant_id = %(tenant_id)s and t.session_id > %(after_session_id)s and t.state = 'LIVE' and t.seq > t.cooled_seq
    and (
        select true from payloads p
        where p.tenant_id = %(tenant_id)s and p.session_id between t.session_id and t.session_id and p.is_inline and not p.is_leaving
        order by p.session_id, p.seq
        limit 1
    )
order by t.session_id
limit %(row_count)s;

-- name: mark_cooled
-- Locks the transcript's row. Index: transcripts primary key.
update transcripts
set cooled_seq = %(seq)s
where tenant_id = %(tenant_id)s and session_id = %(session_id)s and cooled_seq < %(seq)s;

-- name: transcripts_with_unsettled_payloads
-- No lock. Those that have payloads which the blob store may not have, or is to give up. Indexes: payloads_waiting_idx, payloads_leaving_idx.
select session_id from payloads
where tenant_id = %(tenant_id)s and session_id > %(after_session_id)s and not is_stored
union
select session_id from payloads
where tenant_id = %(tenant_id)s and session_id > %(after_session_id)s and is_leaving
order by session_id
limit %(row_count)s;

-- name: leaving_payloads
-- No lock. What the blob store is to give up. Index: payloads_leaving_idx.
select blob_id, seq from payloads
where tenant_id = %(tenant_id)s and session_id = %(session_id)s and is_leaving and (%(seqs)s::bigint[] is null or seq = any(%(seqs)s::bigint[]))
limit %(row_count)s;

-- name: list_tenants
-- No lock. In the scope of every tenant. Index: tenants primary key.
select tenant_id from tenants
where tenant_id > %(after_tenant_id)s and not is_purging
order by tenant_id
limit %(row_count)s;

-- name: claim_turn
-- Locks the tenant. Gives nothing where another worker came first. Index: tenants primary key.
update tenants
set work_time = now()
where tenant_id = %(tenant_id)s and not is_purging
    and (work_time is null or work_time <= now() - make_interval(secs => %(interval_seconds)s))
returning tenant_id;

-- name: sum_sizes
-- No lock. Index: transcripts primary key.
select coalesce(sum(logical_bytes), 0)::bigint as logical_bytes, coalesce(sum(logical_bytes - dropped_bytes), 0)::bigint as stored_bytes
from transcripts
where tenant_id = %(tenant_id)s and state = 'LIVE';
