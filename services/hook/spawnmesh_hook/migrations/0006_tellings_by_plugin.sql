-- One telling of a plugin is found as fast as by the primary key: while statistics are stale, either index may be taken for it.

drop index tellings_plugin_idx;
create index tellings_plugin_idx on tellings (tenant_id, plugin, event_key);
