-- name: scan_payloads
-- Takes no lock. Index: payloads primary key.
select seq, block_index, blob_id, size_bytes, sha256, is_stored, is_inline, is_releasing
from payloads
where tenant_id = %(tenant_id)s and session_id = %(session_id)s and seq between %(first_seq)s and %(last_seq)s
order by seq, block_index;

-- name: list_payloads
-- Takes no lock. Each entry is looked up by itself. Index: payloads primary key.
select wanted.seq, p.block_index, p.blob_id, p.size_bytes, p.sha256, p.is_stored, p.is_inline, p.is_releasing
from unnest(%(seqs)s::bigint[]) as wanted (seq)
cross join lateral (
    select block_index, blob_id, size_bytes, sha256, is_stored, is_inline, is_releasing
    from payloads
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s and seq = wanted.seq
        and not is_releasing
    order by block_index
) as p;

-- name: lock_for_payload_move
-- Follows `join_writers`. Locks the transcript's row until commit: no deletion begins,
-- no writer appends, and moves of its payloads take turns, also with recounts. The statements that
-- follow see whether the transcript can be read. Index: transcripts primary key.
select from transcripts
where tenant_id = %(tenant_id)s and session_id = %(session_id)s
for no key update;

-- name: record_payloads
-- Follows `lock_for_payload_move`. Records payloads, whose inline copies stay, and stubs for
-- entries that have none yet; %(files)s is a list of payloads, each with its seq. Returns the seqs
-- whose payloads it recorded. It skips an entry that has payloads, and one whose stub was counted
-- by another vocabulary than the entry is now: a recount saw no stub to count. Indexes: the primary
-- keys.
with fresh as (
    select distinct file.seq
    from jsonb_to_recordset(%(files)s) as file (seq bigint)
    where (
        select true from payloads
        where tenant_id = %(tenant_id)s and session_id = %(session_id)s and seq = file.seq
        limit 1
    ) is null
        and not exists (
            select from unnest(%(seqs)s::bigint[], %(token_vocabularies)s::text[])
                as stub (seq, token_vocabulary)
            where stub.seq = file.seq and stub.token_vocabulary is distinct from (
                select token_vocabulary from entries
                where tenant_id = %(tenant_id)s and session_id = %(session_id)s and seq = stub.seq
                limit 1
            )
        )
        and exists (
            select from transcripts
            where tenant_id = %(tenant_id)s and session_id = %(session_id)s and state = 'LIVE'
        )
        and not exists (select true from purged_tenants where tenant_id = %(tenant_id)s)
), stubbed as (
    insert into stubs (tenant_id, session_id, seq, token_count, body)
    select %(tenant_id)s, %(session_id)s, stub.seq, stub.token_count, stub.body
    from unnest(%(seqs)s::bigint[], %(token_counts)s::integer[], %(stub_bodies)b::bytea[])
        as stub (seq, token_count, body)
    where stub.seq in (select f.seq from fresh f)
    on conflict (tenant_id, session_id, seq) do update -- A condensed message.
    set token_count = excluded.token_count, body = excluded.body, is_stored = false, file_id = '',
        thinking_token_count = 0
), recorded as (
    insert into payloads (
        tenant_id, blob_id, session_id, seq, block_index, tool_name, about, mime_type, size_bytes,
        line_count, sha256
    )
    select %(tenant_id)s, file.blob_id, %(session_id)s, file.seq, file.block_index, file.tool_name,
        file.about, file.mime_type, file.size_bytes, file.line_count, file.sha256
    from jsonb_to_recordset(%(files)s) as file (
        blob_id text, seq bigint, block_index integer, tool_name text, about text, mime_type text,
        size_bytes bigint, line_count bigint, sha256 text
    )
    where file.seq in (select f.seq from fresh f)
    returning seq
)
select f.seq as recorded_seq from fresh f;

-- name: record_condensed
-- Follows `lock_for_payload_move`. Skips an entry with a stub, and one with another token
-- vocabulary. Returns the seqs of the others. Indexes: the primary keys.
insert into stubs (tenant_id, session_id, seq, token_count, body, is_stored, file_id,
    thinking_token_count)
select %(tenant_id)s, %(session_id)s, stub.seq, stub.token_count, stub.body, true, stub.file_id,
    stub.thinking_token_count
from unnest(%(seqs)s::bigint[], %(token_counts)s::integer[], %(token_vocabularies)s::text[],
    %(stub_bodies)b::bytea[], %(file_ids)s::text[], %(thinking_token_counts)s::integer[])
    as stub (seq, token_count, token_vocabulary, body, file_id, thinking_token_count)
where stub.token_vocabulary = (
    select token_vocabulary from entries
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s and seq = stub.seq
    limit 1
)
    and exists (
        select from transcripts
        where tenant_id = %(tenant_id)s and session_id = %(session_id)s and state = 'LIVE'
    )
    and not exists (select true from purged_tenants where tenant_id = %(tenant_id)s)
on conflict (tenant_id, session_id, seq) do nothing
returning seq;

-- name: delete_condensed
-- Follows `lock_for_payload_move`. Index: stubs primary key.
delete from stubs
where tenant_id = %(tenant_id)s and session_id = %(session_id)s and seq between %(first_seq)s and %(last_seq)s
    and file_id <> ''
    and exists (
        select from transcripts
        where tenant_id = %(tenant_id)s and session_id = %(session_id)s and state = 'LIVE'
    )
    and not exists (select true from purged_tenants where tenant_id = %(tenant_id)s);

-- name: drop_inline_payload
-- Follows `lock_for_payload_move`. Replaces the body of an entry by a shorter one, which the
-- payloads %(blob_ids)s complete. Returns the bytes that it dropped; no row if the entry has
-- changed since the caller read it. Locks the rows that it changes. Indexes: the primary keys.
with dropped as (
    update entries
    set body = %(body)b, dropped_bytes = %(whole_bytes)s - octet_length(%(body)b)
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s and seq = %(seq)s
        and dropped_bytes = 0 and octet_length(body) = %(whole_bytes)s
        and (
            select array_agg(blob_id order by block_index) from payloads
            where tenant_id = %(tenant_id)s and session_id = %(session_id)s and seq = %(seq)s
                and is_stored and not is_releasing
        ) = %(blob_ids)s::text[]
        and exists (
            select from transcripts
            where tenant_id = %(tenant_id)s and session_id = %(session_id)s and state = 'LIVE'
        )
        and not exists (select true from purged_tenants where tenant_id = %(tenant_id)s)
    returning dropped_bytes as byte_count
), marked as (
    update payloads
    set is_inline = false
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s and seq = %(seq)s
        and exists (select from dropped)
), counted as (
    update transcripts
    set dropped_bytes = dropped_bytes + (select byte_count from dropped)
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s and exists (select from dropped)
)
select byte_count from dropped;

-- name: restore_inline_payload
-- Follows `lock_for_payload_move`. Puts the complete body of an entry back, deletes its stub and
-- marks its payloads for release. The body is null for an entry that is complete. Returns the bytes
-- that it restored; no row if the entry has changed since the caller read it. Locks the rows that
-- it changes. Indexes: the primary keys.
with found as (
    select dropped_bytes as byte_count
    from entries
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s and seq = %(seq)s
        and (dropped_bytes = 0 or octet_length(%(body)b::bytea) = octet_length(body) + dropped_bytes)
        and exists (
            select from transcripts
            where tenant_id = %(tenant_id)s and session_id = %(session_id)s and state = 'LIVE'
        )
        and not exists (select true from purged_tenants where tenant_id = %(tenant_id)s)
), restored as (
    update entries
    set body = %(body)b::bytea, dropped_bytes = 0
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s and seq = %(seq)s
        and (select byte_count from found) > 0
), counted as (
    update transcripts
    set dropped_bytes = dropped_bytes - (select byte_count from found)
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s and (select byte_count from found) > 0
), unstubbed as (
    delete from stubs
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s and seq = %(seq)s
        and exists (select from found)
), releasing as (
    update payloads
    set is_releasing = true
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s and seq = %(seq)s
        and exists (select from found)
)
select byte_count from found;

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
limit (select %(row_count)s::bigint);

-- name: list_transcripts_with_inline_payloads
-- Lists transcripts with inline copies that have grown since a worker last dropped copies. Takes no
-- lock. Copies are looked up one transcript at a time: `exists` would be joined, and read all
-- copies of the tenant. Indexes: transcripts primary key, payloads_inline_idx.
select t.session_id
from transcripts t
where t.tenant_id = %(tenant_id)s and t.session_id > %(after_session_id)s and t.state = 'LIVE'
    and t.seq > t.inline_dropped_seq
    and (
        select true from payloads p
        where p.tenant_id = %(tenant_id)s and p.session_id = t.session_id and p.is_inline
            and not p.is_releasing
        limit 1
    )
order by t.session_id
limit (select %(row_count)s::bigint);

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
limit (select %(row_count)s::bigint);

-- name: list_releasing_payloads
-- Lists payloads whose blobs must be released. Takes no lock. Index: payloads_releasing_idx.
select blob_id, seq from payloads
where tenant_id = %(tenant_id)s and session_id = %(session_id)s and is_releasing
    and (%(seqs)s::bigint[] is null or seq = any(%(seqs)s::bigint[]))
limit (select %(row_count)s::bigint);
