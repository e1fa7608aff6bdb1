"""Checks of `spawnmesh doctor --deep`: store a file, run a session, and check certificates, keys
and collector.
"""

import asyncio
from dataclasses import replace

from spawnmesh.model_router.v1 import model_router_service_pb2 as router_rpc
from spawnmesh.model_router.v1.model_router_service_pb2_grpc import ModelRouterServiceStub
from spawnmesh_client.attachment_uploads import upload_file
from spawnmesh_client.attachments import Attachment
from spawnmesh_client.pages import pages_of
from spawnmesh_client.wire import WireMesh
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_command.doctor.certificates import check_certificates
from spawnmesh_command.doctor.finding import Finding
from spawnmesh_command.doctor.telemetry import check_telemetry
from spawnmesh_command.doctor.trial_run import check_run
from spawnmesh_command.endpoints import Endpoints, token_minter
from spawnmesh_command.settings import CommandSettings

_UPLOAD_SECONDS = 30.0
_PROBE = Attachment("doctor.txt", b"Stored by `spawnmesh doctor` to see whether storing works.\n")


async def examine_deep(mesh: WireMesh, settings: CommandSettings, endpoints: Endpoints) -> list[Finding]:
    """Run every deep check.

    Create the tenant if it is missing, and leave it a small upload, which expires.
    """
    certificate = await check_certificates(endpoints.targets, settings)
    tenant = await _tenant(mesh, endpoints, settings.tenant)
    storage, providers = await _storage(mesh), await _providers(mesh)
    run = await _run(mesh, tenant, providers)
    return [certificate, tenant, storage, providers, run, await check_telemetry(settings.otlp_endpoint)]


async def _tenant(mesh: WireMesh, endpoints: Endpoints, tenant_id: str) -> Finding:
    """Create the tenant: that creates its bucket, with the keys that may create buckets."""
    if endpoints.key_file is None:
        return Finding("tenant", None, f"{tenant_id} is not made: that takes a signing key of this mesh")
    token = token_minter(endpoints).admin_token("doctor", 60.0)
    operator = WireMesh({"session": replace(mesh.service("session"), token=token)}, mesh.max_message_bytes)
    try:
        await operator.create_tenant(tenant_id)
    except MeshError as error:
        if error.reason is not Reason.ALREADY_EXISTS:
            advice = (
                "see the logs of session and attachment-blob:"
                " S3's endpoint, its keys, and the right to make buckets"
            )
            detail = f"{tenant_id} cannot be made ready: {error}"
            return Finding("tenant", False, detail, _advice_after(error, advice))
    return Finding("tenant", True, f"{tenant_id} is ready in every service, with its bucket")


async def _storage(mesh: WireMesh) -> Finding:
    """Upload a file into the bucket with STS credentials.

    The upload is complete once its hash was compared.
    """
    peer = mesh.services.get("attachment-blob")
    if peer is None:
        return Finding("storage", None, "not looked at: SPAWNMESH_ATTACHMENT_BLOB_TARGET is not set")
    try:
        async with asyncio.timeout(_UPLOAD_SECONDS):
            await upload_file(peer, _PROBE)
    except (MeshError, TimeoutError) as error:
        advice = "see the logs of attachment-blob: the STS endpoint, the role, and its trust policy"
        detail = f"a file cannot be stored: {error or 'no end after 30 s'}"
        return Finding("storage", False, detail, _advice_after(error, advice))
    return Finding("storage", True, "a file was stored in the tenant's bucket with the tenant's credentials")


async def _providers(mesh: WireMesh) -> Finding:
    peer = mesh.services.get("model-router")
    if peer is None:
        return Finding("providers", None, "not looked at: SPAWNMESH_MODEL_ROUTER_TARGET is not set")
    try:
        stub = ModelRouterServiceStub(peer.channel)
        pages = pages_of(peer, stub.ListProviderHealth, router_rpc.ListProviderHealthRequest())
        listed = [provider async for page in pages for provider in page.providers]
    except MeshError as error:
        advice = _advice_after(error, "see the log of model-router")
        return Finding("providers", False, f"cannot be listed: {error}", advice)
    if not listed:
        return Finding("providers", None, "none is configured, so no session can be run")
    lacking = [one.provider for one in listed if one.readable_credential_count < one.credential_count]
    if lacking:
        detail = f"keys cannot be read of {', '.join(lacking)}"
        return Finding(
            "providers",
            False,
            detail,
            "mount the files, or set the variables, that its configuration refers to",
        )
    return Finding("providers", True, f"the keys of {', '.join(one.provider for one in listed)} are there")


def _advice_after(error: Exception, advice: str) -> str:
    """Return the advice, unless a finding before has it: something else than S3 is down.

    S3 may answer the probe and refuse the tenant.
    """
    if not isinstance(error, MeshError) or error.reason is not Reason.DEPENDENCY_UNAVAILABLE:
        return advice
    return advice if error.facts.get("dependency") == "S3" else "see what is down above"


async def _run(mesh: WireMesh, tenant: Finding, providers: Finding) -> Finding:
    """Run a session, unless another finding already prevents it."""
    if tenant.ok is False:
        return Finding("run", None, "not tried: the tenant is not ready")
    if not providers.ok:
        return Finding("run", None, "not tried: no model is known to be there")
    return await check_run(mesh)
