"""A client of MCP servers: their configuration, transports, schemas and results."""
