-- name: delete_entry
-- Locks the row. Index: run_queue_pkey.
delete from run_queue where tenant_id = %(tenant_id)s and run_id = %(run_id)s

-- name: take_claimable_runs
-- Takes at most %(limit)s claimable runs of sessions with one of the distinct %(runtimes)s, in the
-- scope of every tenant. Takes runs of the distinct %(tenants)s and %(agents)s only; null means all
-- of them. Returns the runs and how long each has been claimable. Returns at least
-- one row, which is without a run if none was taken. domain.run_shares explains which are taken.
--   - Locks the rows taken and skips the rows that another claim holds.
--   - Fair over tenants: the rank of a run is its place in its tenant's queue plus the runs that
--     the tenant has leased, of every runtime. No tenant gets more than max_running_run_count. The
--     lowest rank for its tenant's run_weight is first.
--   - Leaves %(reserved)s of the %(limit)s to runs of rank 1, the first of a tenant that has none
--     leased.
--   - Leases each run and uses one attempt, so that a claimer that dies counts as a lost runner.
--     claim_run counts the attempts that are used.
--   - Uses no attempt of a run whose lease has expired if the service has not been serving for as
--     long as a lease lasts: then the attempt before may only have met an outage.
--   - If a tenant has more runs than it may have at once, only the claim with the tenant's advisory
--     lock takes runs of it. It counts the leased runs after that, with count_leased_runs, which
--     sees the runs that other claims took since the statement began. The claims of another
--     tenant share the lock, for a run may be queued after the statement began: then the tenant is
--     left out if it has_more_runs by now. The lock is taken only if a run of the tenant is chosen.
--   - taken_until is the end of the lease. claim_run and undo_take do nothing if the entry has
--     another one by then: the lease has ended, and another claim may have taken the run.
--   - others_took is true if another claim had such a lock, or was faster: look again soon.
--   - Reads the queue tenant by tenant, runtime by runtime and agent by agent, however many runs
--     wait.
-- Index: run_queue_runtime_due_idx or run_queue_agent_due_idx, run_queue_tenant_due_idx,
-- run_queue_pkey, tenants_pkey.
with served as (
    select tenant_id, max_running_run_count, run_weight from tenant_directory
    where %(tenants)s::text[] is null
    union all
    select tenant_id, max_running_run_count, run_weight from tenant_directory
    where tenant_id = any (%(tenants)s::text[])
), due as materialized (
    select t.tenant_id, t.max_running_run_count as cap, t.run_weight as weight,
           t.max_running_run_count < (select count(*) from (
               select from run_queue d
               where d.tenant_id = t.tenant_id and d.due_time >= '-infinity' and not d.parked
               limit t.max_running_run_count::bigint + 1
           ) counted) as is_crowded
    from served t
    where (select true
           from unnest(%(runtimes)s::text[]) as wanted (runtime)
           cross join lateral (
               (select true from run_queue d
                where %(agents)s::text[] is null
                  and d.tenant_id = t.tenant_id and d.runtime = wanted.runtime
                  and d.runtime >= '' and d.due_time <= now() and d.expire_time > now()
                  and d.attempts_left > 0
                order by d.due_time limit 1)
               union all
               select true
               from unnest(%(agents)s::text[]) as agent (agent_id)
               cross join lateral (
                   select from run_queue d
                   where d.tenant_id = t.tenant_id and d.runtime = wanted.runtime
                     and d.agent_id = agent.agent_id
                     and d.agent_id >= '' and d.due_time <= now() and d.expire_time > now()
                     and d.attempts_left > 0
                   order by d.due_time limit 1
               ) of_agent
           ) found
           limit 1)
), reserved as materialized (
    select tenant_id, cap, weight, is_crowded,
           case when is_crowded
                then pg_try_advisory_xact_lock(hashtextextended('hand out runs of ' || tenant_id, 0))
                else true end as is_ours
    from due
), waiting as materialized (
    select tenant_id, cap, weight, is_crowded, count_leased_runs(tenant_id) as leased
    from reserved where is_ours
), candidates as (
    select w.tenant_id, w.cap, w.weight, d.run_id, d.due_time,
           w.leased + row_number() over (partition by w.tenant_id order by d.due_time) as rank
    from waiting w
    cross join unnest(%(runtimes)s::text[]) as wanted (runtime)
    cross join lateral (
        (select run_id, due_time from run_queue
         where %(agents)s::text[] is null
           and tenant_id = w.tenant_id and runtime = wanted.runtime and runtime >= ''
           and due_time <= now() and expire_time > now() and attempts_left > 0
         order by due_time limit %(limit)s * 2)
        union all
        select of_agent.run_id, of_agent.due_time
        from unnest(%(agents)s::text[]) as agent (agent_id)
        cross join lateral (
            select run_id, due_time from run_queue
            where tenant_id = w.tenant_id and runtime = wanted.runtime
              and agent_id = agent.agent_id and agent_id >= ''
              and due_time <= now() and expire_time > now() and attempts_left > 0
            order by due_time limit %(limit)s * 2
        ) of_agent
    ) d
), placed as (
    select tenant_id, run_id, rank,
           row_number() over (order by rank / weight::double precision, due_time) as place
    from candidates where rank <= cap
), admitted as (
    select tenant_id, run_id, place from placed
    where rank = 1 or place <= %(limit)s::bigint - %(reserved)s::bigint
), chosen as (
    select c.tenant_id, c.run_id, now() - d.due_time as wait, d.leased as was_leased,
           case when d.leased
                     and coalesce((select served_for from served_time), interval '0')
                         < %(lease_ttl)s::interval
                then 0 else 1 end as used_attempts
    from (select tenant_id, run_id from admitted order by place) c
    cross join lateral (
        select due_time, leased from run_queue
        where tenant_id = c.tenant_id and run_id = c.run_id
          and due_time <= now() and expire_time > now() and attempts_left > 0
        for update skip locked
    ) d
    limit %(limit)s
), ours as materialized (
    select tenant_id from waiting
    where case when tenant_id not in (select tenant_id from chosen) then false
               when is_crowded then true
               when pg_try_advisory_xact_lock_shared(hashtextextended('hand out runs of ' || tenant_id, 0))
               then not has_more_runs(tenant_id, cap)
               else false end
), taken as (
    update run_queue d
    set due_time = now() + %(lease_ttl)s::interval, leased = true,
        attempts_left = attempts_left - chosen.used_attempts
    from chosen
    where d.tenant_id = chosen.tenant_id and d.run_id = chosen.run_id
      and chosen.tenant_id = any (array(select tenant_id from ours))
    returning d.tenant_id, d.run_id, chosen.wait, chosen.was_leased, chosen.used_attempts,
              d.due_time as taken_until
)
select others.took as others_took,
       t.tenant_id, t.run_id, t.wait, t.was_leased, t.used_attempts, t.taken_until
from (
    select coalesce((select bool_or(not is_ours) from reserved), false)
           or (select count(*) from taken)
              < (select least(count(*), %(limit)s) from admitted) as took
) others
left join taken t on true

-- name: extend_lease
-- Sets the lease to end after lease_ttl. Returns no row, and does nothing, unless a runner holds
-- the run at the epoch. Locks the entry, and nothing of `runs`: whatever claims, releases or ends
-- the run writes or deletes the entry in the same transaction. If this statement waits for such a
-- transaction, it tests the epoch again in the entry as that one left it. So it never extends the
-- lease of a run that was ended, released or claimed by another runner. Index: run_queue_pkey.
update run_queue set due_time = now() + %(lease_ttl)s::interval
where tenant_id = %(tenant_id)s and run_id = %(run_id)s and epoch = %(epoch)s
returning due_time as end_time, expire_time - now() as time_left

-- name: read_news
-- Takes no lock. The number of unread messages, `is_urgent` if one of them interrupts the turn, and
-- `is_interrupted` if the run must end. Index: inbox_messages_unread_idx, runs_pkey.
select count(*) as unread, coalesce(bool_or(is_urgent), false) as is_urgent,
       coalesce((select interrupt_time is not null from runs
                 where tenant_id = %(tenant_id)s and run_id = %(run_id)s), false) as is_interrupted
from inbox_messages
where tenant_id = %(tenant_id)s and session_id = %(session_id)s and acknowledge_time is null and position >= 0

-- name: undo_take
-- The entry is as before the take: due now, with the attempts that were used. was_leased: it is an
-- expired lease, which its runner may still extend. Notifies runners when the transaction commits.
-- Does nothing unless the entry still has the lease of the take, which claim_run compares alike.
-- Locks the entry. Index: run_queue_pkey.
with undone as (
    update run_queue set due_time = now(), leased = %(was_leased)s,
                         epoch = case when %(was_leased)s then epoch else 0 end,
                         attempts_left = attempts_left + %(used_attempts)s
    where tenant_id = %(tenant_id)s and run_id = %(run_id)s and due_time is not distinct from %(taken_until)s
    returning tenant_id
)
select pg_notify('run_queued' || (select suffix from _spawnmesh_channels), tenant_id) from undone

-- name: release_entry
-- Makes the run of a runner claimable after the pause. The run has used so many attempts: one that
-- a claim used since it took the expired lease of the runner is given back, for this claim can end
-- in no attempt. Locks the entry; the transaction has locked the session before. Index:
-- run_queue_pkey.
update run_queue set due_time = now() + %(pause)s::interval, leased = false, epoch = 0,
                     attempts_left = max_attempts - %(attempt_count)s
where tenant_id = %(tenant_id)s and run_id = %(run_id)s

-- name: park_entry
-- The run cannot be claimed, and expires when the time for its wait is over, also if the sweep has
-- just taken it. A run that is parked already has waited since then. Locks the entry; the
-- transaction has locked the session before. Index: run_queue_pkey.
update run_queue set due_time = %(expire_time)s, expire_time = %(expire_time)s, again_time = null,
                     leased = false, parked = true, for_budget = %(for_budget)s, epoch = 0,
                     park_time = coalesce(park_time, now()),
                     attempts_left = max_attempts - %(attempt_count)s
where tenant_id = %(tenant_id)s and run_id = %(run_id)s

-- name: count_parked_runs
-- Takes no lock. Index: run_queue_parked_idx.
select count(*) as parked_count
from (select from run_queue where tenant_id = %(tenant_id)s and parked limit %(limit)s) counted

-- name: unpark_entry
-- The run can be claimed again, until its deadline. Locks the entry; the transaction has locked the
-- session before. Index: run_queue_pkey.
update run_queue set due_time = now(), expire_time = %(deadline_time)s, again_time = null, parked = false,
                     for_budget = false, park_time = null
where tenant_id = %(tenant_id)s and run_id = %(run_id)s

-- name: set_attempts
-- The run has used so many attempts. Locks the entry; the transaction has locked the session
-- before. Index: run_queue_pkey.
update run_queue set attempts_left = max_attempts - %(attempt_count)s
where tenant_id = %(tenant_id)s and run_id = %(run_id)s

-- name: notify_runners
-- Runners are notified when the transaction commits.
select pg_notify('run_queued' || (select suffix from _spawnmesh_channels), %(tenant_id)s)

-- name: notify_runners_of_place
-- Runners are notified when the transaction commits, if the tenant had as many running runs as it
-- may have before a run of it ended, and another run waits. Index: run_queue_tenant_due_idx,
-- tenants_pkey.
select pg_notify('run_queued' || (select suffix from _spawnmesh_channels), %(tenant_id)s) from tenants t
where t.tenant_id = %(tenant_id)s
  and (select true from run_queue
       where tenant_id = %(tenant_id)s and due_time between '-infinity' and now()
       order by due_time limit 1)
  and t.max_running_run_count <= 1 + (select count(*) from (
          select from run_queue
          where tenant_id = %(tenant_id)s and leased and due_time >= '-infinity'
            and due_time > now()
          limit t.max_running_run_count
      ) running)

-- name: take_lost_runs
-- Takes at most %(limit)s runs that no runner can finish, in the scope of every tenant: the
-- deadline has passed, or the lease has expired, no attempt is left, and the service has been
-- serving for as long as a lease lasts (`domain.run_shares.is_lost`). `domain.runs.outcome_of_lost`
-- decides how each ends, when it is locked. Takes at most %(share)s of a tenant, round-robin over
-- tenants, and the longest lost first. Locks each entry, skips those that others hold, and makes it
-- due again after %(again_in)s: the runs are put behind all others, so that a run that cannot be
-- ended does not hold up the rest. Index: run_queue_tenant_expiring_idx,
-- run_queue_tenant_last_attempt_idx, run_queue_pkey.
with recursive live as (
    (select d.tenant_id from run_queue d where d.expire_time >= '-infinity'
     order by d.tenant_id limit 1)
    union all
    select (select d.tenant_id from run_queue d
            where d.expire_time >= '-infinity' and d.tenant_id > l.tenant_id
            order by d.tenant_id limit 1)
    from live l where l.tenant_id is not null
), chosen as (
    select l.tenant_id, lost.run_id
    from live l
    cross join lateral (
        (select d.run_id, greatest(d.expire_time, d.again_time) as since from run_queue d
         where d.tenant_id = l.tenant_id and d.expire_time >= '-infinity'
           and greatest(d.expire_time, d.again_time) between '-infinity' and now()
         order by greatest(d.expire_time, d.again_time) limit %(share)s)
        union all
        (select d.run_id, d.due_time from run_queue d
         where d.tenant_id = l.tenant_id and d.attempts_left <= 0
           and d.due_time between '-infinity' and now() and d.expire_time > now()
           and (select served_for from served_time) >= %(lease_ttl)s::interval
         order by d.due_time limit %(share)s)
    ) lost
    where l.tenant_id is not null
    order by row_number() over (partition by l.tenant_id order by lost.since), lost.since
    limit %(limit)s
), locked as (
    select d.tenant_id, d.run_id
    from chosen c
    cross join lateral (
        select tenant_id, run_id from run_queue
        where tenant_id = c.tenant_id and run_id = c.run_id
          and (greatest(expire_time, again_time) <= now()
               or expire_time > now() and attempts_left <= 0 and due_time <= now())
        for update skip locked
    ) d
)
update run_queue d
set due_time = greatest(d.due_time, now() + %(again_in)s::interval),
    again_time = now() + %(again_in)s::interval
from locked l
where d.tenant_id = l.tenant_id and d.run_id = l.run_id
returning d.tenant_id, d.run_id, d.due_time

-- name: lock_lost_entry
-- Locks the entry of a run that take_lost_runs took: a heartbeat waits until the transaction ends.
-- The deadline is compared with the time of the statement, because the transaction may have waited
-- for the lock of the run. is_untouched: the run was not extended, claimed or released since the
-- take. Returns no row if the run has ended. Index: run_queue_pkey.
select expire_time <= statement_timestamp() as is_past_deadline, attempts_left,
       due_time = %(taken_due_time)s as is_untouched
from run_queue
where tenant_id = %(tenant_id)s and run_id = %(run_id)s
for update

-- name: get_lease_end
-- Takes no lock. Returns no row unless a runner has the run. Index: run_queue_pkey.
select due_time from run_queue where tenant_id = %(tenant_id)s and run_id = %(run_id)s and leased

-- name: lock_entry
-- Locks the entry of a run that is locked: a heartbeat waits until the transaction ends. is_held:
-- its lease has not expired. Returns no row if the run has ended. Index: run_queue_pkey.
select leased and due_time > statement_timestamp() as is_held from run_queue
where tenant_id = %(tenant_id)s and run_id = %(run_id)s
for update

-- name: count_live_runs
-- Takes no lock; reads in the scope of every tenant. Index: run_queue_tenant_due_idx, or the whole
-- table. The ages are those of the oldest run that may be claimed now, by runtime, and of the
-- oldest wait for a person; null without one.
select count(*) filter (where not parked and not (leased and due_time > now())) as waiting,
       count(*) filter (where leased and due_time > now()) as held,
       count(*) filter (where parked and not for_budget) as waiting_approval,
       count(*) filter (where for_budget) as waiting_budget,
       extract(epoch from now() - min(due_time) filter (
           where runtime = 'SUBAGENT' and not parked and due_time <= now()
       ))::float8 as subagent_age,
       extract(epoch from now() - min(due_time) filter (
           where runtime = 'EXTERNAL' and not parked and due_time <= now()
       ))::float8 as external_age,
       extract(epoch from now() - min(park_time) filter (
           where parked and not for_budget
       ))::float8 as approval_age
from run_queue
