-- name: begin_snapshot
-- Must be the first statement of a transaction whose statements read one snapshot.
set transaction isolation level repeatable read, read only;

-- name: begin_writable_snapshot
-- Must be the first statement of a transaction whose statements read one snapshot, and which may
-- write. A write to a row that was changed since then fails.
set transaction isolation level repeatable read;
