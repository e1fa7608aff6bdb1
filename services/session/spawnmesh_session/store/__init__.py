"""The tables of this service: a module for each group of tables, with its statements beside it."""
