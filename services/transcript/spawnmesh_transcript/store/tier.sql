-- name: scan_payloads
-- Takes no lock. Index: payloads_session_idx.
select seq, block_index, blob_id, size_bytes, sha256, is_stored, is_inline, is_releasing
from payloads
where tenant_id = %(tenant_id)s and session_id = %(session_id)s and seq between %(first_seq)s and %(last_seq)s
order by seq, block_index;

-- name: list_payloads
-- Takes no lock. Needs `keep_index_order`; ranges in order leave the planner no other index. Index:
-- payloads_session_idx.
select p.seq, p.block_index, p.blob_id, p.size_bytes, p.sha256, p.is_stored, p.is_inline, p.is_releasing
from unnest(%(seqs)s::bigint[]) as wanted (seq)
cross join lateral (
    select seq, block_index, blob_id, size_bytes, sha256, is_stored, is_inline, is_releasing
    from payloads
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s and seq between wanted.seq and wanted.seq
        and not is_releasing
    order by seq, block_index
    offset 0
) as p
order by p.seq, p.block_index;

-- name: record_payloads
-- Runs as a transaction of its own. The function documents its locks and its indexes.
select *
from record_payloads(
    set_config('spawnmesh.tenant', %(tenant_id)s, true), %(session_id)s, %(seqs)s::bigint[],
    %(token_counts)s::integer[], %(token_vocabularies)s::text[], %(stub_bodies)b::bytea[], %(files)s
);

-- name: lock_for_payload_move
-- Locks the transcript's row until commit. The function documents what that excludes.
select lock_for_payload_move(%(tenant_id)s, %(session_id)s) as is_locked;

-- name: record_condensed
-- The transaction holds the transcript's row. Skips an entry with a stub, and one with another
-- token vocabulary. Needs `keep_index_order`; ranges in order leave the planner no other index.
-- Indexes: entries and stubs primary keys.
insert into stubs (tenant_id, session_id, seq, token_count, body, is_stored, file_id,
    thinking_token_count)
select %(tenant_id)s, %(session_id)s, stub.seq, stub.token_count, stub.body, true, stub.file_id,
    stub.thinking_token_count
from unnest(%(seqs)s::bigint[], %(token_counts)s::integer[], %(token_vocabularies)s::text[],
    %(stub_bodies)b::bytea[], %(file_ids)s::text[], %(thinking_token_counts)s::integer[])
    as stub (seq, token_count, token_vocabulary, body, file_id, thinking_token_count)
where stub.token_vocabulary = (
    select e.token_vocabulary
    from entries e
    where e.tenant_id = %(tenant_id)s and e.session_id = %(session_id)s
        and e.seq between stub.seq and stub.seq
    order by e.seq
    limit 1
)
on conflict (tenant_id, session_id, seq) do nothing
returning seq;

-- name: delete_condensed
-- The transaction holds the transcript's row. Index: stubs primary key.
delete from stubs
where tenant_id = %(tenant_id)s and session_id = %(session_id)s and seq between %(first_seq)s and %(last_seq)s
    and file_id <> '';

-- name: drop_inline_payloads
-- Runs as a transaction of its own. The function documents its locks and its indexes.
select *
from drop_inline_payloads(set_config('spawnmesh.tenant', %(tenant_id)s, true), %(session_id)s, %(entries)s,
    %(bodies)b::bytea[]);

-- name: restore_inline_payloads
-- Runs as a transaction of its own. The function documents its locks and its indexes.
select *
from restore_inline_payloads(set_config('spawnmesh.tenant', %(tenant_id)s, true), %(session_id)s,
    %(seqs)s::bigint[], %(bodies)b::bytea[]);

-- name: list_inline_entries
-- Lists entries whose payloads are both in the blob store and in the body, oldest first. Takes no
-- lock. Index: payloads_inline_idx.
select seq, sum(size_bytes)::bigint as size_bytes
from payloads
where tenant_id = %(tenant_id)s and session_id = %(session_id)s and seq > %(after_seq)s
    and seq <= %(last_seq)s and is_inline and not is_releasing
group by seq
having bool_and(is_stored)
order by seq
limit %(row_count)s;

-- name: list_transcripts_with_inline_payloads
-- Lists transcripts with inline copies that have grown since a worker last dropped copies. Takes no
-- lock. Needs `keep_index_order`: copies are looked up one transcript at a time, by a range in
-- order. `exists` would be joined, and read all copies of the tenant. Indexes: transcripts primary
-- key, payloads_inline_idx.
select t.session_id
from transcripts t
where t.tenant_id = %(tenant_id)s and t.session_id > %(after_session_id)s and t.state = 'LIVE'
    and t.seq > t.inline_dropped_seq
    and (
        select true from payloads p
        where p.tenant_id = %(tenant_id)s and p.session_id between t.session_id and t.session_id
            and p.is_inline and not p.is_releasing
        order by p.session_id, p.seq
        limit 1
    )
order by t.session_id
limit %(row_count)s;

-- name: mark_inline_dropped
-- Locks the transcript's row. Index: transcripts primary key.
update transcripts
set inline_dropped_seq = %(seq)s
where tenant_id = %(tenant_id)s and session_id = %(session_id)s and inline_dropped_seq < %(seq)s;

-- name: list_transcripts_with_unsettled_payloads
-- Lists transcripts with payloads that the blob store may not have, or must release. Takes no lock.
-- Indexes: payloads_unstored_idx, payloads_releasing_idx.
select session_id from payloads
where tenant_id = %(tenant_id)s and session_id > %(after_session_id)s and not is_stored
union
select session_id from payloads
where tenant_id = %(tenant_id)s and session_id > %(after_session_id)s and is_releasing
order by session_id
limit %(row_count)s;

-- name: list_releasing_payloads
-- Lists payloads whose blobs must be released. Takes no lock. Index: payloads_releasing_idx.
select blob_id, seq from payloads
where tenant_id = %(tenant_id)s and session_id = %(session_id)s and is_releasing
    and (%(seqs)s::bigint[] is null or seq = any(%(seqs)s::bigint[]))
limit %(row_count)s;
