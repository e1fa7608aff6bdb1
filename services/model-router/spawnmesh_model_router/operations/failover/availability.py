"""Decide which candidates may be called now, with which credential, and record their failures."""

from collections import OrderedDict, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from spawnmesh_model_router.clients.credentials import Credential, CredentialSource
from spawnmesh_model_router.domain.answer import ProviderFailed
from spawnmesh_model_router.domain.audience import TenantFailure
from spawnmesh_model_router.domain.candidates import (
    Candidate,
    Capability,
    ModelRef,
    Ready,
    Skipped,
    SkipReason,
    Verdict,
    assess,
)
from spawnmesh_model_router.domain.cooldown import Audience, Cooldown, CooldownTarget, Scope, scope_of
from spawnmesh_model_router.domain.reasons import FailoverReason
from spawnmesh_model_router.domain.rotation import blocking_cooldown, other_credential, pick_credential
from spawnmesh_model_router.domain.router_config import RouterConfig
from spawnmesh_model_router.operations.cooldown_cache import CooldownCache

_MAX_RETRY_AFTER_SECONDS = 86_400.0  # The rules of cooldowns allow less.
# The number of probes that are remembered. One that is forgotten can be repeated too soon.
_MAX_PROBES = 20_000


@dataclass(frozen=True, slots=True)
class FailureRecord:
    """A failure, the credential of the call, and its time on the monotonic clock."""

    failed: ProviderFailed
    credential: Credential
    time: float

    def seconds_to_wait(self, now: float) -> float | None:
        """Return the rest of the wait that the provider asked for; None if it asked for none."""
        asked = self.failed.retry_after_seconds
        return None if asked is None else max(self.time + asked - now, 0.0)


class Availability:
    """Judges candidates by the configuration, the readable credentials and the cooldowns."""

    def __init__(self, config: RouterConfig, source: CredentialSource, cooldowns: CooldownCache) -> None:
        self._config = config
        self._source = source
        self._cooldowns = cooldowns
        self._use_count = 0
        self._last_uses: defaultdict[str, dict[str, int]] = defaultdict(dict)
        self._last_probes: OrderedDict[tuple[str, ModelRef], datetime] = OrderedDict()

    def assess(
        self,
        candidate: Candidate,
        ref: ModelRef,
        needs: frozenset[Capability],
        tenant_id: str,
        now: datetime,
    ) -> Ready | Verdict:
        """Return Ready if the candidate, the configured model `ref`, may be called for the tenant,
        or its verdict.
        """
        cooldown = self.cooldown_of(ref, tenant_id, now)
        verdict = assess(
            candidate,
            offers=self._config.models[str(ref)].offers,
            needs=needs,
            cooldown=cooldown,
            now=now,
            last_probe=self._last_probe(ref, tenant_id, cooldown),
        )
        if isinstance(verdict, Ready) and not self._credentials(ref.provider):
            return Skipped(SkipReason.NO_CREDENTIAL)
        return verdict

    def record_probe(self, ref: ModelRef, tenant_id: str, now: datetime) -> None:
        """Record a call to a candidate in cooldown, so that no other probe follows soon."""
        cooldown = self.cooldown_of(ref, tenant_id, now)
        key = (_prober(tenant_id, cooldown), ref)
        self._last_probes[key] = now
        self._last_probes.move_to_end(key)
        if len(self._last_probes) > _MAX_PROBES:
            self._last_probes.popitem(last=False)

    def cooldown_of(self, ref: ModelRef, tenant_id: str, now: datetime) -> Cooldown | None:
        """Return the cooldown that blocks the model for the tenant; None if none does."""
        targets = (CooldownTarget(Scope.MODEL, str(ref)), CooldownTarget(Scope.PROVIDER, ref.provider))
        shared = [self._cooldowns.get(target, tenant_id) for target in targets]
        own = (
            self._credential_cooldown(ref, tenant_id, fingerprint)
            for fingerprint in self._credentials(ref.provider)
        )
        return blocking_cooldown(shared, own, now)

    def credential_for(self, ref: ModelRef, tenant_id: str, now: datetime) -> Credential | None:
        """Return the credential for the tenant's next call; None if no credential can be read."""
        provider, known = ref.provider, self._credentials(ref.provider)
        cooldowns = self._credential_cooldowns(ref, tenant_id, known)
        chosen = pick_credential(tuple(known), self._last_uses[provider], cooldowns, now)
        return self._used(provider, known[chosen]) if chosen is not None else None

    def other_credential(
        self, ref: ModelRef, tenant_id: str, reason: FailoverReason, used: Collection[str], now: datetime
    ) -> Credential | None:
        """Return a credential that may succeed after `reason`; None if there is none.

        `used` are the fingerprints of the credentials that failed.
        """
        provider, known = ref.provider, self._credentials(ref.provider)
        chosen = other_credential(
            reason,
            tuple(known),
            used,
            self._last_uses[provider],
            self._credential_cooldowns(ref, tenant_id, known),
            now,
        )
        return self._used(provider, known[chosen]) if chosen is not None else None

    def record_failure(self, ref: ModelRef, tenant_id: str, failure: FailureRecord, now: datetime) -> None:
        """Start or extend the cooldown that the failure of the tenant's call causes.

        Its reason decides whether that is of the model, the credential or the provider, or none.
        """
        failed = failure.failed
        if failed.is_about_request:
            return
        target = self._target(ref, failed.reason, failure.credential)
        if target is not None:
            seconds = failed.retry_after_seconds
            retry_after = (
                timedelta(seconds=min(seconds, _MAX_RETRY_AFTER_SECONDS)) if seconds is not None else None
            )
            evidence = TenantFailure(tenant_id, failed.reason, now, failed.is_conclusive)
            self._cooldowns.record_failure(target, evidence, retry_after)

    def rests_credential(self, ref: ModelRef, failure: FailureRecord) -> bool:
        """Return whether the failure's cooldown is the credential's own."""
        target = self._target(ref, failure.failed.reason, failure.credential)
        return target is not None and target.scope is Scope.CREDENTIAL

    def record_success(
        self, ref: ModelRef, tenant_id: str, credential: Credential, begin_time: datetime
    ) -> None:
        """Forget failures of the model, the credential and the provider from before the tenant's
        call began. The failures of other tenants stay theirs.
        """
        for target in (
            CooldownTarget(Scope.MODEL, str(ref)),
            credential_target(ref.provider, credential.fingerprint),
            credential_target(ref.provider, credential.fingerprint, ref.model),
            CooldownTarget(Scope.PROVIDER, ref.provider),
        ):
            self._cooldowns.record_success(target, tenant_id, begin_time)

    def numbered_credentials(self, provider: str) -> dict[int, str]:
        """Return the fingerprints of the readable credentials, by their number in the
        configuration.

        The first number is 1.
        """
        references = enumerate(self._config.providers[provider].credentials, 1)
        read = {number: self._source.read(reference) for number, reference in references}
        return {
            number: credential.fingerprint for number, credential in read.items() if credential is not None
        }

    def _credentials(self, provider: str) -> dict[str, Credential]:
        """Return the readable credentials by fingerprint.

        Two references to one key are one credential.
        """
        read = map(self._source.read, self._config.providers[provider].credentials)
        return {credential.fingerprint: credential for credential in read if credential is not None}

    def _last_probe(self, ref: ModelRef, tenant_id: str, cooldown: Cooldown | None) -> datetime | None:
        return self._last_probes.get((_prober(tenant_id, cooldown), ref))

    def _credential_cooldowns(
        self, ref: ModelRef, tenant_id: str, fingerprints: Iterable[str]
    ) -> dict[str, Cooldown]:
        found = {one: self._credential_cooldown(ref, tenant_id, one) for one in fingerprints}
        return {fingerprint: cooldown for fingerprint, cooldown in found.items() if cooldown is not None}

    def _credential_cooldown(self, ref: ModelRef, tenant_id: str, fingerprint: str) -> Cooldown | None:
        """Return the tenant's cooldown of the credential at the model; of two, the one that ends
        later.
        """
        targets = (
            credential_target(ref.provider, fingerprint),
            credential_target(ref.provider, fingerprint, ref.model),
        )
        cooldowns = (self._cooldowns.get(target, tenant_id) for target in targets)
        found = [cooldown for cooldown in cooldowns if cooldown is not None]
        return max(found, key=lambda one: one.until, default=None)

    def _target(self, ref: ModelRef, reason: FailoverReason, credential: Credential) -> CooldownTarget | None:
        """Return the target of the cooldown that the reason causes; None if it causes none.

        In a pool, a rate limit concerns the credential at this model: providers count by model.
        """
        if reason is FailoverReason.RATE_LIMIT and len(self._credentials(ref.provider)) > 1:
            return credential_target(ref.provider, credential.fingerprint, ref.model)
        match scope_of(reason):
            case Scope.MODEL:
                return CooldownTarget(Scope.MODEL, str(ref))
            case Scope.CREDENTIAL:
                return credential_target(ref.provider, credential.fingerprint)
            case Scope.PROVIDER:
                return CooldownTarget(Scope.PROVIDER, ref.provider)
        return None

    def _used(self, provider: str, credential: Credential) -> Credential:
        self._use_count += 1
        self._last_uses[provider][credential.fingerprint] = self._use_count
        return credential


def _prober(tenant_id: str, cooldown: Cooldown | None) -> str:
    """Return the tenant whose probes of the cooldown exclude each other; empty for all tenants."""
    return tenant_id if cooldown is not None and cooldown.audience is Audience.TENANT else ""


def credential_target(provider: str, fingerprint: str, model: str = "") -> CooldownTarget:
    """Return the cooldown target of a credential, or of the credential at one model."""
    return CooldownTarget(Scope.CREDENTIAL, "/".join(filter(None, (provider, fingerprint, model))))
