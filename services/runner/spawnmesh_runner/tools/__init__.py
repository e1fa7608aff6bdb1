"""What an agent can do: one file for each tool, and the registry that lists them."""
