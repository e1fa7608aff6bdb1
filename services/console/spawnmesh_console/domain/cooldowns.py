"""Providers, their cooldowns, and the models that can be called, in words."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from spawnmesh_console.domain.states import ShownState

_REASONS = {
    "RATE_LIMIT": "too many requests",
    "OVERLOADED": "the provider had no capacity",
    "BILLING": "the account has no credit",
    "AUTH": "the credential was refused",
    "AUTH_PERMANENT": "the credential is permanently invalid",
    "TIMEOUT": "no answer in time",
    "SERVER_ERROR": "an internal failure of the provider",
    "TLS_CERTIFICATE": "the provider's certificate is not trusted",
    "CONTEXT_OVERFLOW": "the request is longer than the context window",
    "FORMAT": "the provider did not accept the format of the request",
    "MODEL_NOT_FOUND": "the provider has no such model",
    "SESSION_EXPIRED": "the conversation at the provider no longer exists",
    "EMPTY_RESPONSE": "the model returned no content",
    "NO_ERROR_DETAILS": "the provider failed without details",
    "UNCLASSIFIED": "an error that no rule knows",
    "UNKNOWN": "no readable error",
    "NO_FAILOVER": "the request itself was at fault",
}
_CAN_BE_CALLED = ShownState("can be called", "succeeded")
_COOLING = ShownState("cooling down", "queued")
_NO_CREDENTIAL = ShownState("no credential", "failed")
_PARTLY = ShownState("partly cooling down", "queued")


@dataclass(frozen=True, slots=True)
class CooldownView:
    """A cooldown, named as in the contracts. One that is over counts for the length of the next.

    `start` is its newest failure that counted.
    """

    scope: str
    target: str
    start: datetime
    until: datetime
    reason: str
    failure_count: int
    tenant_id: str

    @property
    def subject(self) -> str:
        """The thing that is not called."""
        return subject_of(self.scope, self.target)

    @property
    def cause(self) -> str:
        """The failure that caused it."""
        return reason_words(self.reason)

    @property
    def is_configured(self) -> bool:
        """False for a credential that is no longer configured: its cooldown cannot be ended."""
        return self.scope != "CREDENTIAL" or self.target.split("/")[1:2] != ["0"]

    def is_over(self, now: datetime) -> bool:
        """Return whether the cooldown has ended."""
        return self.until <= now


@dataclass(frozen=True, slots=True)
class ProviderView:
    """A provider with its credentials and its cooldowns."""

    name: str
    credential_count: int
    readable_credential_count: int
    cooldowns: tuple[CooldownView, ...]

    def state(self, now: datetime) -> ShownState:
        """Return whether calls of the provider are possible."""
        if not self.readable_credential_count:
            return _NO_CREDENTIAL
        active = [one for one in self.cooldowns if not one.is_over(now)]
        if any(one.scope == "PROVIDER" for one in active):
            return _COOLING
        return _PARTLY if active else _CAN_BE_CALLED


def model_state(model: str, providers: Sequence[ProviderView], now: datetime) -> ShownState:
    """Return whether calls of the model, `provider/model`, are possible."""
    name = model.partition("/")[0]
    for provider in providers:
        if provider.name != name:
            continue
        if not provider.readable_credential_count:
            return _NO_CREDENTIAL
        for one in provider.cooldowns:
            if not one.is_over(now) and (one.scope, one.target) in (("MODEL", model), ("PROVIDER", name)):
                return _COOLING
    return _CAN_BE_CALLED


def subject_of(scope: str, target: str) -> str:
    """Return the target of a cooldown in words."""
    if scope == "MODEL":
        return f"model {target}"
    if scope == "PROVIDER":
        return f"all models of {target}"
    provider, _, rest = target.partition("/")
    number, _, model = rest.partition("/")
    credential = (
        f"credential {number} of {provider}"
        if number != "0"
        else f"a credential of {provider} that is no longer configured"
    )
    return f"{credential}, at {model}" if model else credential


def reason_words(reason: str) -> str:
    """Return the reason of a failed call, such as `RATE_LIMIT`, in words."""
    return _REASONS.get(reason, reason.replace("_", " ").lower())
