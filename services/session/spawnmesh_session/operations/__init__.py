"""The verbs that need several tables or peers, a module for each."""
