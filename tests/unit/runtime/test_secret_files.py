"""Settings from mounted files, and health on a separate port."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from pydantic import SecretStr
from pydantic_settings import SettingsConfigDict
from spawnmesh_calls.wire_errors import error_from
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.ports import free_ports
from spawnmesh_runtime.health import LIVE, Health, open_health
from spawnmesh_runtime.interceptors.observe import DeniedCalls
from spawnmesh_runtime.metrics import NO_METRICS
from spawnmesh_runtime.settings import ProcessSettings, load_settings

from tests.support.captured_logs import captured_events
from tests.support.waiting import eventually


class HookSettings(ProcessSettings):
    model_config = SettingsConfigDict(env_prefix="HOOK_")

    database_url: str
    key: SecretStr = SecretStr("")


def test_variable_that_is_not_set_is_read_from_the_file_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "HOOK_DATABASE_URL").write_text("postgresql://hook\n")
    (tmp_path / "hook_key").write_text("hush")
    (tmp_path / "SESSION_LISTEN").write_text("nobody's")
    monkeypatch.setenv("HOOK_SECRETS_DIR", str(tmp_path))
    settings = load_settings(HookSettings)
    assert (settings.database_url, settings.key.get_secret_value()) == ("postgresql://hook", "hush")
    monkeypatch.setenv("HOOK_DATABASE_URL", "postgresql://other")
    assert load_settings(HookSettings).database_url == "postgresql://other"


def test_mounted_secret_that_is_wrong_is_named_and_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "HOOK_DATABASE_URL").write_text("postgresql://hook")
    (tmp_path / "HOOK_LISTEN").write_text("hush")
    monkeypatch.setenv("HOOK_SECRETS_DIR", str(tmp_path))
    with pytest.raises(SystemExit, match=r"^invalid settings: HOOK_LISTEN: must be host:port$"):
        load_settings(HookSettings)


def test_directory_of_secrets_that_is_not_there_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK_SECRETS_DIR", str(tmp_path / "none"))
    with pytest.raises(SystemExit, match=r"^invalid settings: HOOK_SECRETS_DIR: is not a directory$"):
        load_settings(HookSettings)


def opened(address: str) -> AbstractAsyncContextManager[Health]:
    """Answer health checks at the address."""
    return open_health("hook", ProcessSettings(health_listen=address), NO_METRICS.meter, DeniedCalls())


async def test_process_is_live_at_once_and_ready_when_it_says_so() -> None:
    (port,) = free_ports(1)
    serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
    async with (
        opened(f"127.0.0.1:{port}") as health,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        check = health_pb2_grpc.HealthStub(channel).Check

        async def status(service: str) -> int:
            answer = await check(health_pb2.HealthCheckRequest(service=service), timeout=60)
            return int(answer.status)

        assert (await status(LIVE), await status("")) == (serving, not_serving)
        await health.ready()
        assert await status("") == serving
        await health.not_ready()
        assert (await status(LIVE), await status("")) == (serving, not_serving)


async def test_garbage_on_the_health_port_is_refused_with_a_reason_and_logged() -> None:
    (port,) = free_ports(1)
    with captured_events() as events:
        async with (
            opened(f"127.0.0.1:{port}"),
            grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary("/grpc.health.v1.Health/Check")(b"\xff", timeout=60)
            assert error_from("hook", caught.value).reason is Reason.INVALID_REQUEST
            await eventually(lambda: events)
    assert [(event["code"], event["reason"]) for event in events] == [("INVALID_ARGUMENT", "INVALID_REQUEST")]


async def test_health_port_that_cannot_be_had_ends_the_process_with_one_line() -> None:
    async with opened("127.0.0.1:0"):
        with pytest.raises(SystemExit, match=r"^hook: cannot answer health checks on 192\.0\.2\.1:1: "):
            async with opened("192.0.2.1:1"):
                pass
