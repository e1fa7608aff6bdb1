-- name: begin_snapshot
-- Must be the first statement of a transaction whose statements read one snapshot. Includes
-- `keep_index_order`.
set transaction isolation level repeatable read, read only;
set local enable_sort = off;

-- name: keep_index_order
-- Makes the following statements of the transaction read rows in the order of an index. Without
-- statistics the planner believes that transcripts are short, and may otherwise take another
-- index, read the whole transcript and sort or filter it.
set local enable_sort = off;
