-- name: lock_operations
-- One call at a time starts an operation of the tenant, so that the limit holds. Takes an advisory
-- lock until the transaction ends.
select pg_advisory_xact_lock(
    hashtextextended(current_schema() || ' operations of ' || %(tenant_id)s::text, 0)
)

-- name: find_operation_of_request
-- Takes no lock. Index: operations_tenant_id_method_request_id_key.
select operation_id, method, request, subject, response, position, step_count, done_count, total_count,
       retry_reason, error, create_time, update_time, cancel_time, end_time
from operations where tenant_id = %(tenant_id)s and method = %(method)s and request_id = %(request_id)s

-- name: count_open_operations
-- Takes no lock. Counts up to %(limit)s. Index: operations_open_idx.
select count(*) as count from (
    select from operations where tenant_id = %(tenant_id)s and end_time is null limit %(limit)s
) as counted

-- name: insert_operation
-- Inserts an open operation. The caller has the lock of `lock_operations`, and has found none with
-- this request_id. Index: operations_pkey.
insert into operations (tenant_id, operation_id, method, request_id, request, subject, position)
values (%(tenant_id)s, %(operation_id)s, %(method)s, %(request_id)s, %(request)s, %(subject)s, %(position)s)
returning operation_id, method, request, subject, response, position, step_count, done_count, total_count,
          retry_reason, error, create_time, update_time, cancel_time, end_time

-- name: delete_old_operations
-- Deletes finished operations but the %(kept_count)s newest, some at a time. Locks the rows. Index:
-- operations_end_idx, operations_pkey.
delete from operations
where tenant_id = %(tenant_id)s and operation_id = any (array(
    select operation_id from operations where tenant_id = %(tenant_id)s and end_time is not null
    order by end_time desc offset %(kept_count)s limit 10
))

-- name: find_operation
-- Takes no lock. Index: operations_pkey.
select operation_id, method, request, subject, response, position, step_count, done_count, total_count,
       retry_reason, error, create_time, update_time, cancel_time, end_time
from operations where tenant_id = %(tenant_id)s and operation_id = %(operation_id)s

-- name: list_operations
-- Takes no lock. A page, newest first: ids begin with the time of their creation. Reads on past
-- operations that `is_done` and `methods` leave out, of which there are few. Index: operations_pkey.
select operation_id, method, request, subject, response, position, step_count, done_count, total_count,
       retry_reason, error, create_time, update_time, cancel_time, end_time
from operations
where tenant_id = %(tenant_id)s and operation_id < %(before_id)s
  and method = any (%(methods)s::text[])
  and (%(is_done)s::boolean is null or (end_time is not null) = %(is_done)s)
order by operation_id desc
limit %(limit)s

-- name: advance_operation
-- Records a step, and with a time from now on the end. Locks the row. Returns no row, and does
-- nothing, if another worker recorded a step meanwhile, or if the operation ended. Index:
-- operations_pkey.
update operations
set response = %(response)s, position = %(position)s, done_count = %(done_count)s,
    total_count = %(total_count)s, step_count = step_count + 1, retry_reason = '', update_time = now(),
    end_time = now() + %(ends_in)s::interval
where tenant_id = %(tenant_id)s and operation_id = %(operation_id)s and step_count = %(step_count)s
  and end_time is null
returning operation_id, method, request, subject, response, position, step_count, done_count, total_count,
          retry_reason, error, create_time, update_time, cancel_time, end_time

-- name: fail_operation
-- Ends an operation with an error. Locks the row. Does nothing if it ended, or if another worker
-- recorded a step meanwhile. Index: operations_pkey.
update operations
set error = %(error)s, retry_reason = '', end_time = now(), update_time = now()
where tenant_id = %(tenant_id)s and operation_id = %(operation_id)s and step_count = %(step_count)s
  and end_time is null

-- name: note_retry
-- Records why the newest step failed. Locks the row. Index: operations_pkey.
update operations set retry_reason = %(retry_reason)s
where tenant_id = %(tenant_id)s and operation_id = %(operation_id)s and step_count = %(step_count)s
  and end_time is null

-- name: cancel_operation
-- Requests the end of an open operation. Locks the row. Index: operations_pkey.
update operations set cancel_time = least(cancel_time, now())
where tenant_id = %(tenant_id)s and operation_id = %(operation_id)s and end_time is null

-- name: delete_operation
-- Deletes an operation that has ended. Locks the row. Index: operations_pkey.
delete from operations
where tenant_id = %(tenant_id)s and operation_id = %(operation_id)s and end_time is not null

-- name: notify_waiters
-- Wakes the calls that wait for the operation, when the transaction commits. A statement of its own:
-- on Citus, an update runs at another node.
select pg_notify('operations' || (select suffix from _spawnmesh_channels), %(operation_id)s)
