"""The call of a tool: its types, its arguments and outcome, and the registry of the tools."""
