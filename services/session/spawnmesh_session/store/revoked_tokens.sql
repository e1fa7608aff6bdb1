-- name: revoke_token
-- Locks the row. A later expiry replaces an earlier one. Returns the expiry; no row if the tenant
-- has reached the limit of revoked tokens of clients, which concurrent calls may exceed by a few.
-- domain.revocations explains both. Index: revoked_tokens_pkey.
insert into revoked_tokens as r (tenant_id, token_id, is_run, expire_time)
select %(tenant_id)s, %(token_id)s, false,
       least(greatest(coalesce(%(expire_time)s::timestamptz, 'infinity'), now()) + %(kept_for)s::interval,
             now() + %(max_lifetime)s::interval)
where %(limit)s > (
    select count(*) from revoked_tokens
    where tenant_id = %(tenant_id)s and not is_run and token_id <> %(token_id)s and expire_time > now())
on conflict (tenant_id, token_id) do update
set expire_time = greatest(r.expire_time, excluded.expire_time), change = excluded.change
returning expire_time

-- name: notify_of_revocation
-- The replicas are notified when the transaction commits.
select pg_notify('token_revoked' || suffix, '') from _spawnmesh_channels

-- name: read_position
-- Takes no lock. Every transaction before the position has ended; the next statement sees it.
select (pg_snapshot_xmin(pg_current_snapshot())::text)::bigint as position

-- name: list_revoked_tokens
-- Takes no lock, in the scope of all tenants. A page of the tokens after this one, in the order of
-- their transactions, that have not expired. Index: revoked_tokens_change_idx.
select tenant_id, token_id, expire_time, change, is_run from revoked_tokens
where (change, tenant_id, token_id) > (%(change)s, %(after_tenant_id)s, %(after_token_id)s)
  and expire_time > now()
order by change, tenant_id, token_id limit %(limit)s

-- name: prune_revoked_tokens
-- Locks the oldest rows, in the scope of all tenants, and skips those that are locked. Index:
-- revoked_tokens_expire_idx, revoked_tokens_pkey.
with expired as (
    select tenant_id, token_id from revoked_tokens where expire_time < now()
    order by expire_time limit %(limit)s for update skip locked
)
delete from revoked_tokens r using expired
where r.tenant_id = expired.tenant_id and r.token_id = expired.token_id
