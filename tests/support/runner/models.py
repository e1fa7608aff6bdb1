"""A model router whose answers are scripted."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from spawnmesh.model_router.v1 import generation_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as router_pb
from spawnmesh.model_router.v1 import model_router_service_pb2_grpc as router_grpc
from spawnmesh_core.errors import MeshError

from tests.support.model_router.answers import said


class ScriptedModels(router_grpc.ModelRouterServiceServicer):
    def __init__(self, mesh: Any) -> None:
        self.mesh = mesh

    async def Generate(
        self, request: router_pb.GenerateRequest, context: Any
    ) -> AsyncIterator[router_pb.GenerateResponse]:
        mesh = self.mesh
        mesh.prompts.append(request)
        if mesh.refusals.get("Generate"):
            raise mesh.refusals["Generate"].popleft()
        await asyncio.sleep(mesh.router_wait_seconds)
        for attempt in mesh.run_events.before_answer:
            yield said(attempt_failed=attempt)
        yield said(attempt_started=router_pb.AttemptStarted(number=1, model=request.model))
        held = mesh.hold_model  # A test may put another one in its place as soon as a piece is there.
        for piece in mesh.spoken_first:
            if isinstance(piece, str):
                piece = router_pb.GenerationEvent(text_delta=router_pb.TextDelta(text=piece))
            yield router_pb.GenerateResponse(events=[piece])
        mesh.model_called.set()
        mesh.on_generate()
        held = held or mesh.hold_model
        if held is not None:
            try:
                await held.wait()
            except asyncio.CancelledError:
                mesh.model_cancelled = True
                raise
        answer = mesh.answers.popleft()
        if isinstance(answer, MeshError):
            raise answer
        yield said(completion=generation_pb2.Completion(message=answer))
