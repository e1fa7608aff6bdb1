"""The paths of sets inside a workspace."""

import secrets

HOME = (".spawnmesh", "attachments")


def rel_dir_of(set_id: str) -> str:
    """Return the directory of the set, relative to the workspace."""
    return "/".join([*HOME, set_id])


def staging_prefix(set_id: str) -> str:
    """Return the prefix of temporary directories of this set, which are being filled or removed.

    A set id contains no dot, so that the prefix belongs to one set.
    """
    return f".staging-{set_id}."


def staging_name(set_id: str) -> str:
    """Return a new random name beside the set, which an attacker cannot guess."""
    return staging_prefix(set_id) + secrets.token_hex(8)
