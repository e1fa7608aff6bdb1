"""The matrix of RPCs and identities in docs/architecture/security.md, and a token of each identity."""

from pathlib import Path

from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.caller import ROLES
from spawnmesh_runtime.tokens import HarnessClaim, TokenMinter

_PAGE = Path(__file__).resolve().parents[3] / "docs" / "architecture" / "security.md"
PLUGIN_SERVICE, PLUGIN = "spawnmesh.hook.v1.HookHandlerService", "grpc://plugin:7000"
TENANT, SECONDS = "acme", 60.0

DENIALS = {
    ("UNAUTHENTICATED", Reason.TOKEN_MISSING): "missing",
    ("UNAUTHENTICATED", Reason.TOKEN_INVALID): "invalid",
    ("PERMISSION_DENIED", Reason.CALLER_NOT_ALLOWED): "-",
    ("PERMISSION_DENIED", Reason.ROLE_MISSING): "role",
}


def read_matrix() -> dict[str, dict[str, str]]:
    """Return the cells of the page by RPC and identity."""
    _, _, table = _PAGE.read_text().partition("<!-- The call matrix begins.")
    table, _, _ = table.partition("<!-- The call matrix ends.")
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    (_, *identities), _, *rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]
    matrix: dict[str, dict[str, str]] = {}
    service = ""
    for name, *cells in rows:
        if name.startswith("**"):
            service = name.strip("*")
        else:
            matrix[f"spawnmesh.{service}.{name}"] = dict(zip(identities, cells, strict=True))
    return matrix


def identity_token(keys: Path, identity: str) -> str:
    """Return a valid token of the identity, which is in the matrix or a harness; none for
    `no token`.
    """

    def minter(issuer: str) -> TokenMinter:
        return TokenMinter(issuer, keys / f"{issuer}.pem")

    match identity:
        case "no token":
            return ""
        case role if role.startswith("client: "):
            held = ROLES[role.removeprefix("client: ")]
            return minter("client").client_token(TENANT, "mallory", SECONDS, role=held)
        case "admin":
            return minter("client").admin_token("mallory", SECONDS)
        case "run":
            return minter("session").run_token(TENANT, "ses_1", "run_1", 1, SECONDS)
        case "runner":
            return minter("runner").runner_token()
        case "harness that claims":
            return minter("client").runner_token("mallory", SECONDS, tenants=[TENANT])
        case "harness with a run":
            return minter("session").run_token(
                TENANT, "ses_1", "run_1", 1, SECONDS, harness=HarnessClaim("tok_1", "")
            )
        case "hook, for a plugin":
            return minter("hook").service_token(TENANT, plugin=PLUGIN)
        case service:
            return minter(service).service_token(TENANT)
