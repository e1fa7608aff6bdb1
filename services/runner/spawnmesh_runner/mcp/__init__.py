"""Tools of MCP servers: which there are, says the operator; which of them an agent has, says its profile."""
