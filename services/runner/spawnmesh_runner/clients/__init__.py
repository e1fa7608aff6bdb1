"""Clients of a runner: its peers, MCP servers, threads for file work, and workspaces on disk."""
