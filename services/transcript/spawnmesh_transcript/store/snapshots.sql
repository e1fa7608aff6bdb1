-- name: begin_snapshot
-- Must be the first statement of a transaction whose statements read one snapshot.
set transaction isolation level repeatable read, read only;
