"""Who of a chain may be asked now, and with which credential."""

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from spawnmesh_model_router.config import RouterConfig
from spawnmesh_model_router.cooldowns import Cooldowns
from spawnmesh_model_router.credentials import Credential, CredentialSource
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
from spawnmesh_model_router.domain.cooldown import Cooldown, Scope, scope_of
from spawnmesh_model_router.domain.reasons import FailoverReason
from spawnmesh_model_router.domain.rotation import other_credential, pick_credential, resting
from spawnmesh_model_router.providers.answer import ProviderFailed
from spawnmesh_model_router.store import Target


@dataclass(frozen=True, slots=True)
class Blame:
    """A failure, and the credential it was met with."""

    failed: ProviderFailed
    credential: Credential


class Availability:
    """Judges candidates by the configuration, the keys that can be read and the cooldowns, and moves the latter."""

    def __init__(self, config: RouterConfig, source: CredentialSource, cooldowns: Cooldowns) -> None:
        self._config = config
        self._source = source
        self._cooldowns = cooldowns
        self._use_count = 0
        self._last_uses: defaultdict[str, dict[str, int]] = defaultdict(dict)
        self._last_probes: dict[ModelRef, datetime] = {}

    def assess(
        self, candidate: Candidate, ref: ModelRef, needs: frozenset[Capability], now: datetime
    ) -> Ready | Verdict:
        """Whether the candidate, which is the listed model `ref`, may be asked, or its verdict."""
        verdict = assess(
            candidate,
            offers=self._config.models[str(ref)].offers,
            needs=needs,
            cooldown=self.cooldown_of(ref, now),
            now=now,
            last_probe=self._last_probes.get(ref),
        )
        if isinstance(verdict, Ready) and not self._credentials(ref.provider):
            return Skipped(SkipReason.NO_CREDENTIAL)
        return verdict

    def note_probe(self, ref: ModelRef, now: datetime) -> None:
        """The candidate is asked although it rests; others leave it alone for a while."""
        self._last_probes[ref] = now

    def cooldown_of(self, ref: ModelRef, now: datetime) -> Cooldown | None:
        """What keeps the model from being asked."""
        shared = (Target(Scope.MODEL, str(ref)), Target(Scope.PROVIDER, ref.provider))
        own = (_credential_target(ref.provider, one) for one in self._credentials(ref.provider).values())
        return resting(map(self._cooldowns.of, shared), map(self._cooldowns.of, own), now)

    def credential_for(self, provider: str, now: datetime) -> Credential | None:
        """The one whose turn it is; None where none can be read."""
        known = self._credentials(provider)
        chosen = pick_credential(tuple(known), self._last_uses[provider], self._resting(provider, known.values()), now)
        return self._used(provider, known[chosen]) if chosen is not None else None

    def other_credential(
        self, provider: str, reason: FailoverReason, used: Collection[str], now: datetime
    ) -> Credential | None:
        """One that may do better at the same candidate than those of the fingerprints `used`; None where there is none."""
        known = self._credentials(provider)
        chosen = other_credential(
            reason,
            tuple(known),
            used,
            self._last_uses[provider],
            self._resting(provider, known.values()),
            now,
        )
        return self._used(provider, known[chosen]) if chosen is not None else None

    def rest(self, ref: ModelRef, blame: Blame, now: datetime) -> None:
        """Rests what the failure is about: the model, the credential, the provider, or nothing."""
        if blame.failed.is_about_request:
            return
        reason = blame.failed.reason
        target = _target(ref, reason, blame.credential)
        if target is not None:
            seconds = blame.failed.retry_after_seconds
            retry_after = timedelta(seconds=min(seconds, 86400.0)) if seconds is not None else None
            self._cooldowns.fail(target, reason, now, retry_after)

    def answered(self, ref: ModelRef, credential: Credential, begin_time: datetime) -> None:
        """The model, its credential and its provider work: earlier failures of theirs are forgotten."""
        for target in (
            Target(Scope.MODEL, str(ref)),
            _credential_target(ref.provider, credential),
            Target(Scope.PROVIDER, ref.provider),
        ):
            self._cooldowns.succeed(target, begin_time)

    def cooldowns(self) -> dict[Target, Cooldown]:
        """Everything that rests or has rested."""
        return self._cooldowns.all()

    async def clear(self, target: Target) -> bool:
        """Ends a rest and forgets its failures, in the database too. Whether there was one."""
        return await self._cooldowns.clear(target)

    def numbered_credentials(self, provider: str) -> dict[int, str]:
        """The fingerprints of the credentials that can be read, by their place in the configuration, from 1."""
        references = enumerate(self._config.providers[provider].credentials, 1)
        read = {number: self._source.read(reference) for number, reference in references}
        return {number: credential.fingerprint for number, credential in read.items() if credential is not None}

    def _credentials(self, provider: str) -> dict[str, Credential]:
        """By fingerprint: two references to one key are one credential."""
        read = map(self._source.read, self._config.providers[provider].credentials)
        return {credential.fingerprint: credential for credential in read if credential is not None}

    def _resting(self, provider: str, credentials: Iterable[Credential]) -> dict[str, Cooldown]:
        found = {one.fingerprint: self._cooldowns.of(_credential_target(provider, one)) for one in credentials}
        return {fingerprint: cooldown for fingerprint, cooldown in found.items() if cooldown is not None}

    def _used(self, provider: str, credential: Credential) -> Credential:
        self._use_count += 1
        self._last_uses[provider][credential.fingerprint] = self._use_count
        return credential


def credential_target(provider: str, fingerprint: str) -> Target:
    """What rests with a credential."""
    return Target(Scope.CREDENTIAL, f"{provider}/{fingerprint}")


def _credential_target(provider: str, credential: Credential) -> Target:
    return credential_target(provider, credential.fingerprint)


def _target(ref: ModelRef, reason: FailoverReason, credential: Credential) -> Target | None:
    match scope_of(reason):
        case Scope.MODEL:
            return Target(Scope.MODEL, str(ref))
        case Scope.CREDENTIAL:
            return _credential_target(ref.provider, credential)
        case Scope.PROVIDER:
            return Target(Scope.PROVIDER, ref.provider)
    return None
