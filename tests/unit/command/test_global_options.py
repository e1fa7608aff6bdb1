"""Options of `spawnmesh` itself, before and behind the names of commands."""

import re
from importlib.metadata import version
from typing import Any

import pytest

from tests.support.command.command_tree import commands
from tests.support.command.fake_mesh import SESSION_ID, Ended, invoke, mesh, spawnmesh, unset

__all__ = ["mesh", "unset"]

GLOBAL = ("--tenant", "--data", "--url", "--session-target", "--hook-target")


def test_every_command_takes_them() -> None:
    found = dict(commands(spawnmesh()))
    assert len(found) > 60
    missing = [
        (names, option)
        for names, command in found.items()
        for option in GLOBAL
        if option not in {each for param in command.params for each in param.opts}
    ]
    assert missing == []


def test_help_names_things_in_snake_case() -> None:
    """As the contracts do: a hook, a field of a filter, a state. Names of services keep their dashes."""
    services = {"attachment-blob", "model-router"}
    texts = {
        names: " ".join([command.help or "", *(str(getattr(one, "help", "")) for one in command.params)])
        for names, command in commands(spawnmesh())
    }
    quoted = {names: set(re.findall(r"`([a-z]+(?:-[a-z]+)+)`", text)) for names, text in texts.items()}
    assert {names: found - services for names, found in quoted.items() if found - services} == {}
    assert "`create_time desc`" in texts["sessions",]


async def test_a_tenant_stands_before_or_behind_the_command(mesh: Any) -> None:
    await mesh.run("--tenant", "before", "sessions")
    await mesh.run("sessions", "--tenant=behind")
    await mesh.run("sessions", "delete", SESSION_ID, "--tenant", "deep")
    await mesh.run("sessions", "--tenant", "group", "delete", SESSION_ID)
    await mesh.run("--tenant", "first", "sessions", "--tenant", "last")
    assert mesh.sessions.tenants == ["before", "behind", "deep", "group", "last"]


async def test_an_option_of_the_command_keeps_its_meaning(mesh: Any) -> None:
    """`token revoke --tenant` names the tenant of the token."""
    revoked = await mesh.run("token", "revoke", "tok_" + "0" * 26, "--admin", "--tenant", "of-the-token")
    assert revoked.exit_code == 0, revoked.stderr
    ((_, request),) = mesh.tokens.revoked
    assert request.tenant_id == "of-the-token"


async def test_a_name_behind_two_dashes_is_no_option(mesh: Any) -> None:
    await mesh.run("send", SESSION_ID, "--", "--tenant")
    (request,) = mesh.sessions.requests
    assert (request.text, mesh.sessions.tenants) == ("--tenant", ["demo"])


@pytest.mark.usefixtures("unset")
def test_version_is_that_of_the_package() -> None:
    assert invoke("--version") == Ended(0, f"spawnmesh {version('spawnmesh-command')}\n", "")


@pytest.mark.parametrize("arguments", [(), ("sessions",), ("sessions", "delete")])
def test_help_has_a_short_name(arguments: tuple[str, ...]) -> None:
    assert invoke(*arguments, "-h") == invoke(*arguments, "--help")
