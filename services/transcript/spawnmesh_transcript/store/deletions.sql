-- name: mark_deleted
-- Turns the transcript's row into that of a deleted one, or inserts such a row. Locks the row:
-- an append commits before, and is deleted, or finds no transcript. Waits for a creation in
-- progress. Index: transcripts primary key.
insert into transcripts as t (tenant_id, session_id, incarnation, forked_from_session_id, state)
values (%(tenant_id)s, %(session_id)s, '', '', 'DELETED')
on conflict (tenant_id, session_id) do update
set incarnation = '', forked_from_session_id = '', seq = 0, chain_hash = '', newest_entry_id = '',
    writer_run_id = '', writer_epoch = 0, turn_count = 0, superseded_turn_count = 0, token_count = 0,
    logical_bytes = 0, dropped_bytes = 0, state = 'DELETED'
where t.state <> 'DELETED';

-- name: delete_import
-- Locks the row. Index: imports primary key.
delete from imports
where tenant_id = %(tenant_id)s and session_id = %(session_id)s;

-- name: delete_search_progress
-- Locks the row. Index: search_progress primary key.
delete from search_progress
where tenant_id = %(tenant_id)s and session_id = %(session_id)s;

-- name: delete_entries
-- Locks the rows that it deletes. Index: entries primary key.
select delete_rows_at('entries', array(
    select ctid from entries
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s
    order by seq
    limit %(row_count)s
));

-- name: delete_appends
-- Locks the rows that it deletes. Index: appends primary key.
with page as materialized (
    select idempotency_key from appends
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s
    order by idempotency_key
    limit %(row_count)s
)
delete from appends
where tenant_id = %(tenant_id)s and session_id = %(session_id)s
    and idempotency_key <= (select max(idempotency_key) from page);

-- name: delete_search_pieces
-- Locks the rows that it deletes. Index: search_pieces primary key.
with page as materialized (
    select seq, piece from search_pieces
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s
    order by seq, piece
    limit %(row_count)s
)
delete from search_pieces
where tenant_id = %(tenant_id)s and session_id = %(session_id)s
    and (seq, piece)
    <= (select seq, piece from page offset (select greatest(count(*) - 1, 0) from page) limit 1);

-- name: delete_stubs
-- Locks the rows that it deletes. Index: stubs primary key.
with page as materialized (
    select seq from stubs
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s
    order by seq
    limit %(row_count)s
)
delete from stubs
where tenant_id = %(tenant_id)s and session_id = %(session_id)s
    and seq <= (select max(seq) from page);

-- name: delete_summaries
-- Locks the rows that it deletes. Index: summaries primary key.
with page as materialized (
    select seq from summaries
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s
    order by seq
    limit %(row_count)s
)
delete from summaries
where tenant_id = %(tenant_id)s and session_id = %(session_id)s
    and seq <= (select max(seq) from page);

-- name: delete_activities
-- Waits for recorders of the tenant. Locks the rows that it deletes. Index:
-- activities_session_idx.
select delete_activities(%(tenant_id)s, %(session_id)s, %(row_count)s);

-- name: delete_payload_rows
-- Deletes payloads whose blobs were never put. Locks the rows that it deletes. Index:
-- payloads_session_idx.
select delete_rows_at('payloads', array(
    select ctid from payloads
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s
    order by seq, block_index
    limit %(row_count)s
));
