-- name: find_output_set
-- Takes no lock. Index: output_sets_pkey.
select * from output_sets where tenant_id = %(tenant_id)s and set_id = %(set_id)s

-- name: begin_output_set
-- The transaction has locked the session and the run. Inserts nothing if the set was begun before.
-- Locks the run. Index: output_sets_pkey, runs_pkey.
with begun as (
    insert into output_sets (tenant_id, set_id, session_id, run_id, request_id)
    values (%(tenant_id)s, %(set_id)s, %(session_id)s, %(run_id)s, %(request_id)s)
    on conflict (tenant_id, set_id) do nothing
    returning run_id
)
update runs set output_begun_count = output_begun_count + 1
where tenant_id = %(tenant_id)s and run_id in (select run_id from begun)

-- name: publish_output_set
-- The transaction has locked the session and the run, and has read the time before. Returns no row
-- if the set is published, or was not begun. Locks the set and the run. Index: output_sets_pkey,
-- runs_pkey.
with published as (
    update output_sets set files = %(files)s, file_count = %(file_count)s, position = %(position)s,
                           publish_time = %(publish_time)s
    where tenant_id = %(tenant_id)s and set_id = %(set_id)s and position is null
    returning *
), counted as (
    update runs set output_set_count = output_set_count + 1,
                    output_file_count = output_file_count + %(file_count)s,
                    output_total_bytes = output_total_bytes + %(total_bytes)s
    where tenant_id = %(tenant_id)s and run_id in (select run_id from published)
)
select * from published

-- name: list_output_sets
-- Takes no lock. The published sets of a session behind a position: the first of the page that fit
-- into %(max_bytes)s, but at least one, and the size of the page. An empty text does not filter. A
-- file counts a KiB, which is more than it has, and only the files of the sets that fit are read. A
-- limit is a subquery, so that the planner expects to need a tenth of the rows.
-- Index: output_sets_session_idx, output_sets_pkey.
with page as (
    select set_id, position, sum(1024 * (1 + file_count)) over (order by position) as bytes
    from (
        select set_id, position, file_count from output_sets
        where tenant_id = %(tenant_id)s and session_id = %(session_id)s and position > %(after_position)s
          and (%(run_id)s = '' or run_id = %(run_id)s)
          and (%(request_id)s = '' or request_id = %(request_id)s)
        order by position
        limit (select %(limit)s::bigint)
    ) asked
)
select o.*, (select count(*) from page) as page_count
from page
cross join lateral (
    select * from output_sets where tenant_id = %(tenant_id)s and set_id = page.set_id limit 1
) o
where page.bytes <= %(max_bytes)s or page.position = (select min(position) from page)
order by page.position

-- name: list_published_names
-- Takes no lock. The first files that a run has published. Index: output_sets_session_idx.
select o.set_id, f.file ->> 'name' as name, (f.file ->> 'size_bytes')::bigint as size_bytes
from (
    select set_id, position, files from output_sets
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s and run_id = %(run_id)s and position > 0
    order by position
    limit (select %(limit)s::bigint)
) o
cross join lateral jsonb_array_elements(o.files) with ordinality as f (file, number)
order by o.position, f.number
limit (select %(limit)s::bigint)

-- name: blank_output_sets
-- Locks the rows. Removes every text of a user. Index: output_sets_session_idx, output_sets_pkey.
update output_sets set request_id = '', files = '[]', file_count = 0
where tenant_id = %(tenant_id)s and set_id = any (array(
    select o.set_id from unnest(%(session_ids)s::text[]) asked (session_id)
    cross join lateral (
        select set_id from output_sets
        where tenant_id = %(tenant_id)s and session_id = asked.session_id
        order by position
    ) o))

-- name: list_output_set_ids
-- Takes no lock. Sets that were only begun are last. Index: output_sets_session_idx.
select set_id from output_sets
where tenant_id = %(tenant_id)s and session_id = %(session_id)s
order by position limit (select %(limit)s::bigint)

-- name: delete_output_sets
-- Locks the rows. Index: output_sets_pkey.
delete from output_sets where tenant_id = %(tenant_id)s and set_id = any (%(set_ids)s)
