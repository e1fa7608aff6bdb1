"""Settings of a client, and TLS files that it cannot use."""

from pathlib import Path

import pytest
from spawnmesh_calls.tls_files import TlsUnusable
from spawnmesh_client.connections import ClientTlsFiles
from spawnmesh_client.settings import ClientSettings
from spawnmesh_client.wire import connect_wire

from tests.support.runtime.authority import Authority, Mounted


def test_settings_come_from_the_environment() -> None:
    variables = {
        "SPAWNMESH_TLS_CERT_FILE": "a",
        "SPAWNMESH_TLS_KEY_FILE": "b",
        "SPAWNMESH_MAX_MESSAGE_BYTES": "2048",
    }
    assert ClientSettings.from_environment(variables) == ClientSettings(Path("a"), Path("b"), None, 2048)
    assert ClientSettings.from_environment({}) == ClientSettings()


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"TLS_CERT_FILE": "a"}, "come together"),
        ({"MAX_MESSAGE_BYTES": "10"}, "max_message_bytes must be"),
    ],
)
def test_settings_that_exclude_each_other_are_refused(variables: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ClientSettings.from_environment({f"SPAWNMESH_{name}": value for name, value in variables.items()})


def test_renewal_is_used_once_its_key_fits(tmp_path: Path) -> None:
    authority, mounted = Authority("ours"), Mounted(tmp_path / "tls")
    mounted.put(authority.leaf("client-1"), authority)
    files = ClientTlsFiles(*mounted.settings.values())
    first, fresh = files.current(), authority.leaf("client-2")
    mounted.write("tls.crt", fresh.certificate)
    assert files.current() is first
    mounted.write("tls.key", fresh.key)
    assert files.current().chain == fresh.certificate


async def test_unusable_files_are_named_without_their_paths(tmp_path: Path) -> None:
    authority, mounted = Authority("ours"), Mounted(tmp_path / "tls")
    mounted.put(authority.leaf("client"), authority)
    refusals = {}
    for name, content in {
        "tls.key": authority.leaf("other").key,
        "tls.crt": b"none",
        "ca.crt": b"none",
    }.items():
        former = (mounted.folder / name).read_bytes()
        mounted.write(name, content)
        with pytest.raises(TlsUnusable) as refused:
            async with connect_wire(
                session="127.0.0.1:1", token="t", settings=ClientSettings(**mounted.settings)
            ):
                pass
        refusals[name] = str(refused.value)
        mounted.write(name, former)
    assert refusals == {
        "tls.key": "tls_key_file is not the key of the certificate in tls_cert_file",
        "tls.crt": "tls_cert_file and tls_key_file are not a certificate and its key in PEM without a password",
        "ca.crt": "tls_ca_file is not a certificate in PEM",
    }
