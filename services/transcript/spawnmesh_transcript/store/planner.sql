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

-- name: keep_to_indexes
-- Makes the following statements of the transaction find the rows of a page in the order of an
-- index. If one index alone begins with these keys, a page is deleted as a range up to its last
-- row and not as a list: without statistics the planner may join all rows to a list. If several
-- do, `delete_rows_at` deletes the rows.
set local enable_sort = off;
set local enable_seqscan = off;
