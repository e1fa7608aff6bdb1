"""Write the matrix of RPCs and identities into docs/architecture/security.md.

`python libs/protos/call_matrix.py` writes it from the call policies in the contracts, which the
interceptor of every server reads too. With `--check` it exits 1 if the page has another matrix.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from google.protobuf.descriptor import MethodDescriptor
from spawnmesh_calls.contracts import mesh_services
from spawnmesh_runtime.caller import CallerKind, ClientRole
from spawnmesh_runtime.methods import CallPolicy, policy_of
from spawnmesh_runtime.tokens import SERVICES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "architecture" / "security.md"
BEGIN, END = "<!-- The call matrix begins. `make protos` writes it. -->\n", "<!-- The call matrix ends. -->\n"

NO_TOKEN, PLUGIN_TOKEN = "no token", "hook, for a plugin"
ROLES = {f"client: {role.name.lower()}": role for role in ClientRole if role}
KINDS = [kind.value for kind in CallerKind if kind not in (CallerKind.CLIENT, CallerKind.SERVICE)]
IDENTITIES = [NO_TOKEN, *ROLES, *KINDS, *sorted(SERVICES), PLUGIN_TOKEN]

PLUGIN_SERVICE = "spawnmesh.hook.v1.HookHandlerService"
"""Plugins serve it. They accept tokens for their own endpoint, and no token of the mesh."""


def outcome(method: MethodDescriptor, identity: str) -> str:
    """Return the cell of an RPC and an identity, as the page explains it."""
    if identity == NO_TOKEN:
        return "missing"
    if (identity == PLUGIN_TOKEN) != (method.containing_service.full_name == PLUGIN_SERVICE):
        return "invalid"
    policy = policy_of(method)
    if identity in ROLES:
        return _outcome_of_role(policy, ROLES[identity])
    if identity in KINDS:
        return "yes" if CallerKind(identity) in policy.callers else "-"
    service = "hook" if identity == PLUGIN_TOKEN else identity
    if service not in policy.services:
        return "-"
    return "no tenant" if policy.without_tenant else "yes"


def _outcome_of_role(policy: CallPolicy, role: ClientRole) -> str:
    if CallerKind.CLIENT in policy.callers:
        return "yes" if role >= policy.role else "role"
    return "yes" if role is ClientRole.ADMIN and CallerKind.ADMIN in policy.callers else "-"


def render_matrix() -> str:
    """Return the matrix as a Markdown table, with a line for each service and each RPC."""
    return "".join(f"| {' | '.join(cells)} |\n" for cells in _rows())


def _rows() -> Iterator[list[str]]:
    yield ["RPC", *IDENTITIES]
    yield ["---"] * (1 + len(IDENTITIES))
    for service in mesh_services():
        yield [f"**{service.full_name.removeprefix('spawnmesh.')}**", *[""] * len(IDENTITIES)]
        for method in service.methods:
            yield [method.name, *(outcome(method, identity) for identity in IDENTITIES)]


def updated(page: str) -> str:
    """Return the page with the current matrix. Raises ValueError if it lacks the markers."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError("the page lacks the markers of the matrix")
    return f"{before}{begin}\n{render_matrix()}\n{end}{after}"


def main(arguments: list[str]) -> None:
    page = PAGE.read_text()
    if arguments == ["--check"]:
        if page != updated(page):
            sys.exit(f"the call matrix of {PAGE.name} differs from the contracts; run `make protos`")
        print("call matrix: up to date")
    else:
        PAGE.write_text(updated(page))
        print(f"call matrix of {PAGE.name} written")


if __name__ == "__main__":
    main(sys.argv[1:])
