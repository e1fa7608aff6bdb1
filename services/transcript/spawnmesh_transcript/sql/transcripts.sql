-- name: insert_transcript
-- Waits for a transaction that inserts or deletes the same one. Index: transcripts primary key.
insert into transcripts (tenant_id, session_id, incarnation, forked_from_session_id, parent_session_id)
values (%(tenant_id)s, %(session_id)s, %(incarnation)s, %(forked_from_session_id)s, %(parent_session_id)s)
on conflict do nothing
returning incarnation;

-- name: begin_transcript
-- A transaction of its own. See the function for what it waits for and its indexes.
select *
from begin_transcript(
    set_config('spawnmesh.tenant', %(tenant_id)s, true), %(session_id)s, %(incarnation)s, %(parent_session_id)s, %(service)s, %(entries)s, %(bodies)b
);

-- name: write_entries
-- The transaction must hold the transcript's row: it has just inserted it. See the function for its cost.
select incarnation, seq, chain_hash, writer_run_id, writer_epoch
from write_entries(
    (select t from transcripts t where t.tenant_id = %(tenant_id)s and t.session_id = %(session_id)s), '', 0, %(service)s, '', %(entries)s, %(bodies)b, 1
);

-- name: append_entries
-- A transaction of its own for all the calls, made one after the other. Locks each transcript's row until commit. See the function for its outcomes and its
-- indexes.
select * from append_together(set_config('spawnmesh.tenant', %(tenant_id)s, true), %(calls)s, %(bodies)b, %(waits)s);

-- name: append_plain
-- A transaction of its own for all the calls. Locks the rows of transcripts until commit, and waits for none. See the function for what it makes and its indexes.
select * from append_plain(set_config('spawnmesh.tenant', %(tenant_id)s, true), %(calls)s, %(bodies)b);

-- name: scan_window
-- A transaction of its own. No lock. See the function for its cost and its indexes.
select *
from scan_behind_fence(set_config('spawnmesh.tenant', %(tenant_id)s, true), %(session_id)s, %(from_seq)s, %(row_count)s, %(max_bytes)s);

-- name: read_transcript
-- No lock. Index: transcripts primary key.
select incarnation, forked_from_session_id, seq, chain_hash, writer_run_id, writer_epoch, turn_count, superseded_turn_count, token_count
from transcripts
where tenant_id = %(tenant_id)s and session_id = %(session_id)s and state = 'LIVE' and not is_purged(%(tenant_id)s);

-- name: has_begun
-- No lock. Whatever its state. Index: transcripts primary key.
select from transcripts where tenant_id = %(tenant_id)s and session_id = %(session_id)s;

-- name: is_deleted
-- No lock. Index: transcripts primary key.
select from transcripts
where tenant_id = %(tenant_id)s and session_id = %(session_id)s and state = 'DELETED';

-- name: acquire_writer
-- A transaction of its own. See the function for its lock and its index.
select * from acquire_writer(set_config('spawnmesh.tenant', %(tenant_id)s, true), %(session_id)s, %(run_id)s, %(epoch)s);

-- name: release_writer
-- A transaction of its own. See the function for its lock and its index.
select * from release_writer(set_config('spawnmesh.tenant', %(tenant_id)s, true), %(session_id)s, %(run_id)s, %(epoch)s);
