-- name: list_primary_keys
-- Takes no lock. Reads the catalogue: the columns of each table's primary key, in their order.
select c.relname as table_name, array_agg(a.attname::text order by k.position) as columns
from pg_index i
join pg_class c on c.oid = i.indrelid
cross join unnest(i.indkey) with ordinality as k (attnum, position)
join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum
where i.indisprimary and c.relnamespace = current_schema()::regnamespace
group by c.relname;
