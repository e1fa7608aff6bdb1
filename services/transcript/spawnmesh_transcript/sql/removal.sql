-- name: keep_to_indexes
-- From here on, statements of the transaction find the rows of a page in the order of an index. Where the table has one index that begins with these keys, what is
-- deleted is a range up to the page's last row, and no list: to a planner that believes in few rows, as it does while it has counted nothing, joining all rows to
-- the page costs as little as looking each up. Where it has several, the range may be looked for in any of them, and the rows are deleted by `delete_at`.
set local enable_sort = off;
set local enable_seqscan = off;

-- name: bury_transcript
-- Locks the transcript's row, so that an append either commits before and is deleted, or finds nothing; and one that is being created is waited
-- for. Where there is none, the row is made all the same. Index: transcripts primary key.
insert into transcripts as t (tenant_id, session_id, incarnation, forked_from_session_id, state)
values (%(tenant_id)s, %(session_id)s, '', '', 'DELETED')
on conflict (tenant_id, session_id) do update
set incarnation = '', forked_from_session_id = '', seq = 0, chain_hash = '', newest_entry_id = '', writer_run_id = '', writer_epoch = 0,
    turn_count = 0, superseded_turn_count = 0, token_count = 0, logical_bytes = 0, dropped_bytes = 0, state = 'DELETED'
where t.state <> 'DELETED';

-- name: delete_import
-- Locks the row. Index: imports primary key.
delete from imports
where tenant_id = %(tenant_id)s and session_id = %(session_id)s;

-- name: delete_search_progress
-- Locks the row. Index: search_progress primary key.
delete from search_progress
where tenant_id = %(tenant_id)s and session_id = %(session_id)s;

-- name: delete_search_pieces
-- Locks what it deletes. Index: search_pieces primary key.
with page as materialized (
    select seq, piece from search_pieces
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s
    order by seq, piece
    limit %(row_count)s
)
delete from search_pieces
where tenant_id = %(tenant_id)s and session_id = %(session_id)s
    and (seq, piece) <= (select seq, piece from page offset (select greatest(count(*) - 1, 0) from page) limit 1);

-- name: delete_entries
-- Locks what it deletes. See the function for why it is called. Index: entries primary key.
select delete_at('entries', array(
    select ctid from entries
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s
    order by seq
    limit %(row_count)s
));

-- name: delete_appends
-- Locks what it deletes. Index: appends primary key.
with page as materialized (
    select idempotency_key from appends
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s
    order by idempotency_key
    limit %(row_count)s
)
delete from appends
where tenant_id = %(tenant_id)s and session_id = %(session_id)s
    and idempotency_key <= (select max(idempotency_key) from page);

-- name: purge_entries
-- Locks what it deletes. See the function for why it is called. Index: entries primary key.
select delete_at('entries', array(
    select ctid from entries
    where tenant_id = %(tenant_id)s
    order by session_id, seq
    limit %(row_count)s
));

-- name: purge_appends
-- Locks what it deletes. Index: appends primary key.
with page as materialized (
    select session_id, idempotency_key from appends
    where tenant_id = %(tenant_id)s
    order by session_id, idempotency_key
    limit %(row_count)s
)
delete from appends
where tenant_id = %(tenant_id)s
    and (session_id, idempotency_key) <= (select session_id, idempotency_key from page offset (select greatest(count(*) - 1, 0) from page) limit 1);

-- name: purge_search_progress
-- Locks what it deletes. Index: search_progress primary key.
with page as materialized (
    select session_id from search_progress
    where tenant_id = %(tenant_id)s
    order by session_id
    limit %(row_count)s
)
delete from search_progress
where tenant_id = %(tenant_id)s
    and session_id <= (select max(session_id) from page);

-- name: purge_search_pieces
-- Locks what it deletes. Index: search_pieces primary key.
with page as materialized (
    select session_id, seq, piece from search_pieces
    where tenant_id = %(tenant_id)s
    order by session_id, seq, piece
    limit %(row_count)s
)
delete from search_pieces
where tenant_id = %(tenant_id)s
    and (session_id, seq, piece) <= (select session_id, seq, piece from page offset (select greatest(count(*) - 1, 0) from page) limit 1);

-- name: purge_imports
-- Locks what it deletes. Index: imports primary key.
with page as materialized (
    select session_id from imports
    where tenant_id = %(tenant_id)s
    order by session_id
    limit %(row_count)s
)
delete from imports
where tenant_id = %(tenant_id)s
    and session_id <= (select max(session_id) from page);

-- name: purge_transcripts
-- Locks what it deletes; says of each whether it was there for its readers. Index: transcripts primary key.
with page as materialized (
    select session_id from transcripts
    where tenant_id = %(tenant_id)s
    order by session_id
    limit %(row_count)s
)
delete from transcripts
where tenant_id = %(tenant_id)s
    and session_id <= (select max(session_id) from page)
returning state <> 'DELETED' as was_live;

-- name: purge_stubs
-- Locks what it deletes. Index: stubs primary key.
with page as materialized (
    select session_id, seq from stubs
    where tenant_id = %(tenant_id)s
    order by session_id, seq
    limit %(row_count)s
)
delete from stubs
where tenant_id = %(tenant_id)s
    and (session_id, seq) <= (select session_id, seq from page offset (select greatest(count(*) - 1, 0) from page) limit 1);

-- name: purge_payloads
-- Locks what it deletes. The blob store gives up all that the tenant has by itself. See the function for why it is called. Index: payloads primary key.
select delete_at('payloads', array(
    select ctid from payloads
    where tenant_id = %(tenant_id)s
    order by blob_id
    limit %(row_count)s
));
