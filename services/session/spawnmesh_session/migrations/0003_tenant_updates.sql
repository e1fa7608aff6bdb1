-- Settings that change, a bound on the spawns of a session's life, and how much models are to think.

-- Also: somebody is telling the peers of the tenant's settings, or was cut off while doing so (kind SETTINGS, one row for each that does).
alter table dispatch drop constraint dispatch_kind_check;
alter table dispatch add constraint dispatch_kind_check check (kind in ('RUN', 'SPAWN', 'DELETE', 'PURGE', 'SETTINGS'));

-- spawn_count: children begun, those included that failed or were deleted. thinking: empty where the spawn did not say.
alter table sessions
    add column spawn_count bigint not null default 0,
    add column thinking    text   not null default '';

alter table agents add column thinking text not null default '';
