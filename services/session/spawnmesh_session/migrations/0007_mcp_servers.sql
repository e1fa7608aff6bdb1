-- MCP servers that agents name. A replica of the release before writes none, and leaves those that are there.

alter table agents add column mcp_servers text[] not null default '{}';
