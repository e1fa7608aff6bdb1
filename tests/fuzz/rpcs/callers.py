"""The tenant that the fuzzer acts for, and tokens of all kinds of callers, one of which opens the RPC."""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spawnmesh_runtime.caller import ROLES, CallerKind, ClientRole
from spawnmesh_runtime.methods import CallPolicy
from spawnmesh_runtime.tokens import TokenMinter

_SECONDS = 3_600.0
_ANOTHER_CALLER = 0.05
"""The part of the calls with a token that need not open the RPC."""


@dataclass(frozen=True)
class Identity:
    """A tenant, and a run of it."""

    keys: Path
    tenant_id: str
    session_id: str
    run_id: str
    epoch: int

    @property
    def fields(self) -> dict[str, Any]:
        """The values of fields with these names."""
        return {
            "tenant_id": self.tenant_id,
            "session_id": self.session_id,
            "parent_session_id": self.session_id,
            "run_id": self.run_id,
            "epoch": self.epoch,
            "page_size": 5,
            "page_token": "",
        }

    def token_for(self, policy: CallPolicy, rng: random.Random, *, plugin: str = "") -> str:
        """Return a token that opens the RPC, or now and then any other; of a client with any role.

        `plugin` is the endpoint if a plugin serves the RPC.
        """
        if plugin:
            return self._minter("hook").service_token(self.tenant_id, plugin=plugin)
        if rng.random() < _ANOTHER_CALLER:
            return self._token(
                rng.choice(list(CallerKind)), rng.choice(sorted(policy.services) or ["hook"]), rng
            )
        service = rng.choice(sorted(policy.services) or [""])
        if policy.without_tenant:
            return self._minter(service).mesh_token()
        kinds = sorted(policy.callers)
        if CallerKind.ADMIN in policy.callers:
            kinds.append(CallerKind.CLIENT)  # A client with the role opens what operators of the mesh may.
        return self._token(rng.choice(kinds), service, rng, at_least=policy.role)

    def _token(
        self, kind: CallerKind, service: str, rng: random.Random, *, at_least: ClientRole = ClientRole.NONE
    ) -> str:
        issuer = {CallerKind.RUN: "session", CallerKind.RUNNER: "runner", CallerKind.SERVICE: service}
        minter = self._minter(issuer.get(kind, "client"))
        match kind:
            case CallerKind.CLIENT:
                return minter.client_token(self.tenant_id, "fuzzer", _SECONDS, role=_role(at_least, rng))
            case CallerKind.ADMIN:
                return minter.admin_token("fuzzer", _SECONDS)
            case CallerKind.RUN:
                return minter.run_token(self.tenant_id, self.session_id, self.run_id, self.epoch, _SECONDS)
            case CallerKind.SERVICE:
                return minter.service_token(self.tenant_id)
            case CallerKind.RUNNER:
                return minter.runner_token(tenants=[self.tenant_id])

    def _minter(self, issuer: str) -> TokenMinter:
        return TokenMinter(issuer, self.keys / f"{issuer}.pem")


def _role(at_least: ClientRole, rng: random.Random) -> ClientRole:
    """Return a role that is high enough, or in one of eight cases any role."""
    roles = sorted(ROLES.values())
    return rng.choice(roles if rng.random() < 1 / 8 else [role for role in roles if role >= at_least])
