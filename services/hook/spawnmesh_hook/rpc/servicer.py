"""The gRPC servicers. They forward each RPC to its module. The tenant is always the caller's."""

from dataclasses import dataclass
from typing import Any

from grpc import aio
from spawnmesh.hook.v1 import compaction_pb2, delivery_target_pb2
from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh.hook.v1 import native_stop_pb2 as native_pb
from spawnmesh.hook.v1 import run_hook_service_pb2 as run_pb
from spawnmesh.hook.v1 import webhook_service_pb2 as webhook_pb
from spawnmesh.hook.v1.hook_service_pb2_grpc import HookServiceServicer
from spawnmesh.hook.v1.run_hook_service_pb2_grpc import RunHookServiceServicer
from spawnmesh.hook.v1.webhook_service_pb2_grpc import WebhookServiceServicer
from spawnmesh_runtime.caller import current_caller

from spawnmesh_hook.operations.time_budget import TimeBudget, budget_within
from spawnmesh_hook.rpc.delete_plugin import delete_plugin
from spawnmesh_hook.rpc.delete_webhook import delete_webhook
from spawnmesh_hook.rpc.dependencies import Dependencies
from spawnmesh_hook.rpc.dispatch_before_agent_finalize import dispatch_before_agent_finalize
from spawnmesh_hook.rpc.dispatch_before_compaction import dispatch_before_compaction
from spawnmesh_hook.rpc.dispatch_before_model_resolve import dispatch_before_model_resolve
from spawnmesh_hook.rpc.dispatch_before_prompt_build import dispatch_before_prompt_build
from spawnmesh_hook.rpc.dispatch_before_spawn import dispatch_before_spawn
from spawnmesh_hook.rpc.dispatch_before_tool_call import dispatch_before_tool_call
from spawnmesh_hook.rpc.dispatch_delivery_target import dispatch_delivery_target
from spawnmesh_hook.rpc.get_plugin import get_plugin
from spawnmesh_hook.rpc.get_spawn_decision import get_spawn_decision
from spawnmesh_hook.rpc.get_webhook import get_webhook
from spawnmesh_hook.rpc.list_active_hooks import list_active_hooks
from spawnmesh_hook.rpc.list_deliveries import list_deliveries
from spawnmesh_hook.rpc.list_plugins import list_plugins
from spawnmesh_hook.rpc.list_webhook_deliveries import list_webhook_deliveries
from spawnmesh_hook.rpc.list_webhooks import list_webhooks
from spawnmesh_hook.rpc.pause_plugin import pause_plugin
from spawnmesh_hook.rpc.pause_webhook import pause_webhook
from spawnmesh_hook.rpc.publish_events import publish_events
from spawnmesh_hook.rpc.relay_native_stop import relay_native_stop
from spawnmesh_hook.rpc.replay_webhook_deliveries import replay_webhook_deliveries
from spawnmesh_hook.rpc.resume_plugin import resume_plugin
from spawnmesh_hook.rpc.resume_webhook import resume_webhook
from spawnmesh_hook.rpc.rotate_webhook_secret import rotate_webhook_secret
from spawnmesh_hook.rpc.test_plugin import test_plugin
from spawnmesh_hook.rpc.test_webhook import test_webhook
from spawnmesh_hook.rpc.update_plugin import update_plugin
from spawnmesh_hook.rpc.update_webhook import update_webhook

Context = aio.ServicerContext[Any, Any]


@dataclass(frozen=True)
class HookServicer(HookServiceServicer):
    """HookService."""

    deps: Dependencies

    async def UpdatePlugin(
        self, request: pb.UpdatePluginRequest, context: Context
    ) -> pb.UpdatePluginResponse:
        return await update_plugin(request, current_caller(), self.deps)

    async def GetPlugin(self, request: pb.GetPluginRequest, context: Context) -> pb.GetPluginResponse:
        return await get_plugin(request, current_caller(), self.deps)

    async def ListPlugins(self, request: pb.ListPluginsRequest, context: Context) -> pb.ListPluginsResponse:
        return await list_plugins(request, current_caller(), self.deps)

    async def PausePlugin(self, request: pb.PausePluginRequest, context: Context) -> pb.PausePluginResponse:
        return await pause_plugin(request, current_caller(), self.deps)

    async def ResumePlugin(
        self, request: pb.ResumePluginRequest, context: Context
    ) -> pb.ResumePluginResponse:
        return await resume_plugin(request, current_caller(), self.deps)

    async def DeletePlugin(
        self, request: pb.DeletePluginRequest, context: Context
    ) -> pb.DeletePluginResponse:
        return await delete_plugin(request, current_caller(), self.deps)

    async def TestPlugin(self, request: pb.TestPluginRequest, context: Context) -> pb.TestPluginResponse:
        return await test_plugin(request, current_caller(), self.deps, _budget(context))

    async def DispatchBeforeSpawn(
        self, request: pb.DispatchBeforeSpawnRequest, context: Context
    ) -> pb.DispatchBeforeSpawnResponse:
        return await dispatch_before_spawn(request, current_caller(), self.deps, _budget(context))

    async def GetSpawnDecision(
        self, request: pb.GetSpawnDecisionRequest, context: Context
    ) -> pb.GetSpawnDecisionResponse:
        return await get_spawn_decision(request, current_caller(), self.deps)

    async def DispatchBeforeAgentFinalize(
        self, request: pb.DispatchBeforeAgentFinalizeRequest, context: Context
    ) -> pb.DispatchBeforeAgentFinalizeResponse:
        return await dispatch_before_agent_finalize(request, current_caller(), self.deps, _budget(context))

    async def DispatchDeliveryTarget(
        self, request: delivery_target_pb2.DispatchDeliveryTargetRequest, context: Context
    ) -> delivery_target_pb2.DispatchDeliveryTargetResponse:
        return await dispatch_delivery_target(request, current_caller(), self.deps, _budget(context))

    async def DispatchBeforeCompaction(
        self, request: compaction_pb2.DispatchBeforeCompactionRequest, context: Context
    ) -> compaction_pb2.DispatchBeforeCompactionResponse:
        return await dispatch_before_compaction(request, current_caller(), self.deps, _budget(context))

    async def PublishEvents(
        self, request: pb.PublishEventsRequest, context: Context
    ) -> pb.PublishEventsResponse:
        return await publish_events(request, current_caller(), self.deps)

    async def ListDeliveries(
        self, request: pb.ListDeliveriesRequest, context: Context
    ) -> pb.ListDeliveriesResponse:
        return await list_deliveries(request, current_caller(), self.deps)

    async def RelayNativeStop(
        self, request: native_pb.RelayNativeStopRequest, context: Context
    ) -> native_pb.RelayNativeStopResponse:
        return await relay_native_stop(request, current_caller(), self.deps, _budget(context))


@dataclass(frozen=True)
class WebhookServicer(WebhookServiceServicer):
    """WebhookService."""

    deps: Dependencies

    async def UpdateWebhook(
        self, request: webhook_pb.UpdateWebhookRequest, context: Context
    ) -> webhook_pb.UpdateWebhookResponse:
        return await update_webhook(request, current_caller(), self.deps)

    async def GetWebhook(
        self, request: webhook_pb.GetWebhookRequest, context: Context
    ) -> webhook_pb.GetWebhookResponse:
        return await get_webhook(request, current_caller(), self.deps)

    async def ListWebhooks(
        self, request: webhook_pb.ListWebhooksRequest, context: Context
    ) -> webhook_pb.ListWebhooksResponse:
        return await list_webhooks(request, current_caller(), self.deps)

    async def PauseWebhook(
        self, request: webhook_pb.PauseWebhookRequest, context: Context
    ) -> webhook_pb.PauseWebhookResponse:
        return await pause_webhook(request, current_caller(), self.deps)

    async def ResumeWebhook(
        self, request: webhook_pb.ResumeWebhookRequest, context: Context
    ) -> webhook_pb.ResumeWebhookResponse:
        return await resume_webhook(request, current_caller(), self.deps)

    async def DeleteWebhook(
        self, request: webhook_pb.DeleteWebhookRequest, context: Context
    ) -> webhook_pb.DeleteWebhookResponse:
        return await delete_webhook(request, current_caller(), self.deps)

    async def RotateWebhookSecret(
        self, request: webhook_pb.RotateWebhookSecretRequest, context: Context
    ) -> webhook_pb.RotateWebhookSecretResponse:
        return await rotate_webhook_secret(request, current_caller(), self.deps)

    async def TestWebhook(
        self, request: webhook_pb.TestWebhookRequest, context: Context
    ) -> webhook_pb.TestWebhookResponse:
        return await test_webhook(request, current_caller(), self.deps)

    async def ListWebhookDeliveries(
        self, request: webhook_pb.ListWebhookDeliveriesRequest, context: Context
    ) -> webhook_pb.ListWebhookDeliveriesResponse:
        return await list_webhook_deliveries(request, current_caller(), self.deps)

    async def ReplayWebhookDeliveries(
        self, request: webhook_pb.ReplayWebhookDeliveriesRequest, context: Context
    ) -> webhook_pb.ReplayWebhookDeliveriesResponse:
        return await replay_webhook_deliveries(request, current_caller(), self.deps)


@dataclass(frozen=True)
class RunHookServicer(RunHookServiceServicer):
    """RunHookService. Session and run are always the caller's too."""

    deps: Dependencies

    async def ListActiveHooks(
        self, request: run_pb.ListActiveHooksRequest, context: Context
    ) -> run_pb.ListActiveHooksResponse:
        return await list_active_hooks(request, current_caller(), self.deps)

    async def DispatchBeforeModelResolve(
        self, request: run_pb.DispatchBeforeModelResolveRequest, context: Context
    ) -> run_pb.DispatchBeforeModelResolveResponse:
        return await dispatch_before_model_resolve(request, current_caller(), self.deps, _budget(context))

    async def DispatchBeforePromptBuild(
        self, request: run_pb.DispatchBeforePromptBuildRequest, context: Context
    ) -> run_pb.DispatchBeforePromptBuildResponse:
        return await dispatch_before_prompt_build(request, current_caller(), self.deps, _budget(context))

    async def DispatchBeforeToolCall(
        self, request: run_pb.DispatchBeforeToolCallRequest, context: Context
    ) -> run_pb.DispatchBeforeToolCallResponse:
        return await dispatch_before_tool_call(request, current_caller(), self.deps, _budget(context))


def _budget(context: Context) -> TimeBudget:
    return budget_within(context.time_remaining())
