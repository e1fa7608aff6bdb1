"""Settings of the sign-in at an identity provider: what is read, and what is refused in one line."""

import json

import pytest
from spawnmesh_console.settings import ConsoleSettings
from spawnmesh_runtime.settings import load_settings

COMPLETE = {
    "PUBLIC_URL": "https://console.example.com",
    "SIGN_IN_ISSUER": "https://login.example.com/realms/acme",
    "SIGN_IN_CLIENT_ID": "console",
}


def read(monkeypatch: pytest.MonkeyPatch, **changed: str) -> ConsoleSettings:
    targets = {
        f"{service}_TARGET": "localhost:1"
        for service in ("SESSION", "TRANSCRIPT", "MODEL_ROUTER", "ATTACHMENT_BLOB", "HOOK")
    }
    for name, value in {**targets, **COMPLETE, **changed}.items():
        monkeypatch.setenv(f"CONSOLE_{name}", value)
    return load_settings(ConsoleSettings)


def test_defaults_are_the_access_token_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = read(monkeypatch)
    assert (settings.sign_in_token, settings.sign_in_scopes) == ("access", "openid")
    assert settings.sign_in_client_secret_file is None
    assert settings.sign_in_parameters == {}


def test_issuer_on_this_machine_is_for_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = read(monkeypatch, SIGN_IN_ISSUER="http://127.0.0.1:9000", PUBLIC_URL="http://localhost:8700")
    assert settings.sign_in_issuer == "http://127.0.0.1:9000"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"SIGN_IN_ISSUER": "http://login.example.com"}, "SIGN_IN_ISSUER: must start with https://"),
        ({"SIGN_IN_ISSUER": "https://login.example.com/?realm=a"}, "SIGN_IN_ISSUER: must be a URL without"),
        ({"SIGN_IN_ISSUER": "login.example.com"}, "SIGN_IN_ISSUER: must be a URL without"),
        ({"SIGN_IN_CLIENT_ID": ""}, "sign_in_issuer needs sign_in_client_id"),
        ({"PUBLIC_URL": ""}, "sign_in_issuer needs public_url"),
        ({"PUBLIC_URL": "http://console.example.com"}, "needs a public_url with https://"),
        ({"SIGN_IN_SCOPES": "profile email"}, "SIGN_IN_SCOPES: must be names"),
        ({"SIGN_IN_SCOPES": "openid  email"}, "SIGN_IN_SCOPES: must be names"),
        ({"SIGN_IN_TOKEN": "refresh"}, "SIGN_IN_TOKEN: "),
        (
            {"SIGN_IN_PARAMETERS": json.dumps({"state": "x"})},
            "SIGN_IN_PARAMETERS: state is set by the console",
        ),
        ({"SIGN_IN_PARAMETERS": json.dumps({"max_age": 5})}, "SIGN_IN_PARAMETERS.max_age".upper()),
    ],
)
def test_settings_that_cannot_work_are_refused(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, str], said: str
) -> None:
    with pytest.raises(SystemExit) as refused:
        read(monkeypatch, **changed)
    assert said in str(refused.value)
