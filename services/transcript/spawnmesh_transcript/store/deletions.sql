-- A page of rows is deleted as the range from its first key to its last: a range with two ends is
-- small for the planner, whatever it knows about the tenant.

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

-- name: delete_draft
-- Follows `mark_deleted`, whose lock keeps others from writing a draft. Index: draft_pieces primary
-- key.
delete from draft_pieces
where tenant_id = %(tenant_id)s and session_id = %(session_id)s;

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
with page as (
    select seq from entries
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s
    order by seq
    limit (select %(row_count)s::bigint)
)
delete from entries
where tenant_id = %(tenant_id)s and session_id = %(session_id)s
    and seq between (select min(seq) from page) and (select max(seq) from page);

-- name: delete_appends
-- Locks the rows that it deletes. Index: appends primary key.
with page as (
    select request_id from appends
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s
    order by request_id
    limit (select %(row_count)s::bigint)
)
delete from appends
where tenant_id = %(tenant_id)s and session_id = %(session_id)s
    and request_id between (select min(request_id) from page)
    and (select max(request_id) from page);

-- name: delete_search_pieces
-- Locks the rows that it deletes. Index: search_pieces primary key.
with page as (
    select seq, piece from search_pieces
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s
    order by seq, piece
    limit (select %(row_count)s::bigint)
)
delete from search_pieces t
using (select seq, piece from page order by seq desc, piece desc limit 1) last
where t.tenant_id = %(tenant_id)s and t.session_id = %(session_id)s
    and t.seq between (select min(seq) from page) and (select max(seq) from page)
    and (t.seq, t.piece) <= (last.seq, last.piece);

-- name: delete_stubs
-- Locks the rows that it deletes. Index: stubs primary key.
with page as (
    select seq from stubs
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s
    order by seq
    limit (select %(row_count)s::bigint)
)
delete from stubs
where tenant_id = %(tenant_id)s and session_id = %(session_id)s
    and seq between (select min(seq) from page) and (select max(seq) from page);

-- name: delete_summaries
-- Locks the rows that it deletes. Index: summaries primary key.
with page as (
    select seq from summaries
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s
    order by seq
    limit (select %(row_count)s::bigint)
)
delete from summaries
where tenant_id = %(tenant_id)s and session_id = %(session_id)s
    and seq between (select min(seq) from page) and (select max(seq) from page);

-- name: delete_activities
-- Follows `lock_activities`, since a recorder may have seen the transcript before. Locks the rows
-- that it deletes. Indexes: activities_session_idx, activities primary key.
with page as (
    select position from activities
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s and session_id <> ''
    order by position
    limit (select %(row_count)s::bigint)
)
delete from activities
where tenant_id = %(tenant_id)s and session_id = %(session_id)s and session_id <> ''
    and position between (select min(position) from page) and (select max(position) from page)
    and position = any(array(select position from page));

-- name: delete_payload_rows
-- Deletes payloads whose blobs were never put. Locks the rows that it deletes. Index: payloads
-- primary key.
with page as (
    select seq, block_index from payloads
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s
    order by seq, block_index
    limit (select %(row_count)s::bigint)
)
delete from payloads t
using (select seq, block_index from page order by seq desc, block_index desc limit 1) last
where t.tenant_id = %(tenant_id)s and t.session_id = %(session_id)s
    and t.seq between (select min(seq) from page) and (select max(seq) from page)
    and (t.seq, t.block_index) <= (last.seq, last.block_index);
