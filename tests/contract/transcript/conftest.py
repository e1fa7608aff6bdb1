"""Fixtures of the contract tests of the transcript service."""

from tests.support.attachment_blob.fixtures import blobs
from tests.support.transcript.commands import command
from tests.support.transcript.compaction import compacting, compaction_service
from tests.support.transcript.compaction_stage import compaction_mesh, scripted_model, stage
from tests.support.transcript.faulty_blobs import faulty, faulty_blobs
from tests.support.transcript.fixtures import service, session, superuser
from tests.support.transcript.payloads import cut_off
from tests.support.transcript.tier import tier_service, tiered
from tests.support.transcript.tier_sessions import away, database, filled, old, tier_session
from tests.support.transcript.workers import only_tenant_with_work, workers

__all__ = [
    "away",
    "blobs",
    "command",
    "compacting",
    "compaction_mesh",
    "compaction_service",
    "cut_off",
    "database",
    "faulty",
    "faulty_blobs",
    "filled",
    "old",
    "only_tenant_with_work",
    "scripted_model",
    "service",
    "session",
    "stage",
    "superuser",
    "tier_service",
    "tier_session",
    "tiered",
    "workers",
]
