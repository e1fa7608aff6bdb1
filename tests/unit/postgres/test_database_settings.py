"""A malformed database setting is named in the error, and its value is not shown."""

import pytest
from spawnmesh_attachment_blob.settings import AttachmentBlobSettings
from spawnmesh_hook.settings import HookSettings
from spawnmesh_model_router.settings import ModelRouterSettings
from spawnmesh_postgres.database_url import is_database_url
from spawnmesh_runtime.settings import ProcessSettings, load_settings
from spawnmesh_session.settings import SessionSettings
from spawnmesh_transcript.settings import TranscriptSettings

SETTINGS = (AttachmentBlobSettings, HookSettings, ModelRouterSettings, SessionSettings, TranscriptSettings)
MALFORMED = (
    "postgresql://app:Tr0ub4dor%Zsecret@db/spawnmesh",
    "app:Tr0ub4dor@db:5432/spawnmesh",
    "Tr0ub4dor",
    "postgresql://app:Tr0ub4dor@db-1:5432,db-2:5432/spawnmesh?target_session_attr=read-write",
)
SEVERAL_HOSTS = "postgresql://app:pw@db-1:5432,db-2:5432/spawnmesh?target_session_attrs=read-write"


def told(settings: type[ProcessSettings]) -> str:
    with pytest.raises(SystemExit) as caught:
        load_settings(settings)
    return str(caught.value.code)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", ["DATABASE_URL", "DATABASE_OWNER_URL", "DATABASE_DIRECT_URL"])
@pytest.mark.parametrize("url", MALFORMED)
def test_malformed_url(
    monkeypatch: pytest.MonkeyPatch, settings: type[ProcessSettings], name: str, url: str
) -> None:
    name = f"{settings.model_config.get('env_prefix')}{name}"
    monkeypatch.setenv(name, url)
    line = told(settings)
    assert f"{name}: is not a PostgreSQL URL" in line
    assert "Tr0ub4dor" not in line


def test_url_may_name_several_hosts() -> None:
    assert is_database_url(SEVERAL_HOSTS)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("count", ["0", "1001", "many"])
def test_impossible_number_of_connections(
    monkeypatch: pytest.MonkeyPatch, settings: type[ProcessSettings], count: str
) -> None:
    name = f"{settings.model_config.get('env_prefix')}DATABASE_MAX_CONNECTIONS"
    monkeypatch.setenv(name, count)
    assert f"{name}: " in told(settings)
