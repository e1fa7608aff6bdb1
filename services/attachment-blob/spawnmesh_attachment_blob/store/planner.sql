-- name: prefer_index_scans
-- For the rest of the transaction, statements read the rows of a page in the order of an index,
-- also when the planner's statistics are out of date.
set local enable_sort = off;
set local enable_seqscan = off;
