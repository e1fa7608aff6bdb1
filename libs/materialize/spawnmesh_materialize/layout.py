"""Where sets lie inside a workspace."""

import secrets

HOME = (".spawnmesh", "attachments")


def rel_dir_of(set_id: str) -> str:
    return "/".join([*HOME, set_id])


def passing_prefix(set_id: str) -> str:
    """Begins the name of every directory of this set that is being filled or taken away; no set id holds a dot."""
    return f".passing-{set_id}."


def passing_name(set_id: str) -> str:
    """A fresh name beside the set, unknown to whoever might want to be there first."""
    return passing_prefix(set_id) + secrets.token_hex(8)
