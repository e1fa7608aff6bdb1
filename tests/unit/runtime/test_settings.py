"""Settings from the environment."""

import pytest
from pydantic_settings import SettingsConfigDict
from spawnmesh_runtime.settings import ProcessSettings, load_settings


class HookSettings(ProcessSettings):
    model_config = SettingsConfigDict(env_prefix="HOOK_")

    workers: int = 1


def test_variables_are_read_by_the_services_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK_LISTEN", "[::1]:50051")
    monkeypatch.setenv("HOOK_WORKERS", "3")
    monkeypatch.setenv("HOOK_CLIENT_ISSUERS", '["idp", "client"]')
    monkeypatch.setenv("LISTEN", "elsewhere:1")
    settings = load_settings(HookSettings)
    assert (settings.listen_host, settings.listen_port, settings.workers) == ("::1", 50051, 3)
    assert settings.client_issuers == ["idp", "client"]


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("LISTEN", "secret", "HOOK_LISTEN: must be host:port"),
        ("LISTEN", "a:70000", "HOOK_LISTEN: must be host:port"),
        (
            "JWKS_URL",
            "file:///secret",
            "HOOK_JWKS_URL: must start with https:// unless its host is this machine",
        ),
        (
            "JWKS_URL",
            "http://keys.example.com/jwks.json",
            "HOOK_JWKS_URL: must start with https:// unless its host is this machine",
        ),
        ("TLS_CERT_FILE", "/secret", "HOOK_*: tls_cert_file and tls_key_file come together"),
        ("TLS_CA_FILE", "/secret", "HOOK_*: tls_ca_file needs tls_cert_file and tls_key_file"),
        ("CLIENT_ISSUERS", "secret", "a list or a number cannot be read"),
        (
            "OIDC_ISSUERS",
            '[{"issuer": "https://a.example.com", "audience": "x", "jwks_url": "http://secret.example.com"}]',
            "HOOK_OIDC_ISSUERS.0.JWKS_URL: must start with https:// unless its host is this machine",
        ),
    ],
)
def test_invalid_setting_is_named_and_its_value_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, line: str
) -> None:
    monkeypatch.setenv(f"HOOK_{name}", value)
    with pytest.raises(SystemExit) as caught:
        load_settings(HookSettings)
    assert caught.value.code == f"invalid settings: {line}"


def test_every_invalid_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK_WORKERS", "many")
    monkeypatch.setenv("HOOK_DRAIN_GRACE_SECONDS", "-1")
    with pytest.raises(SystemExit) as caught:
        load_settings(HookSettings)
    assert "HOOK_WORKERS: " in str(caught.value.code)
    assert "HOOK_DRAIN_GRACE_SECONDS: " in str(caught.value.code)
