"""Make the secrets of a mesh on one machine: `python -m spawnmesh_command.one_machine FOLDER …`.

`deploy/compose.yaml` runs it as its first step. Each folder below FOLDER is a volume that one
container or one step has, and holds what it needs and nothing else. Secrets that are there stay.
"""

import argparse
import json
import os
import secrets
import sys
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable
from pathlib import Path

from spawnmesh_runtime.key_files import make_keys

SERVICES = ("session", "attachment-blob", "transcript", "model-router", "hook")
_SIGNERS = (*SERVICES, "runner")
_DATABASE = "spawnmesh"
_ACCESS_KEY = "spawnmesh"
ROLE_ARN = "arn:aws:iam::role/TenantRole"
"""The role of the S3 server that is assumed for tenants."""
_ADMIN_ARN = "arn:aws:iam::000000000000:user/admin"
_ACCOUNT = 10001  # That of the images.


def make_secrets(folder: Path, postgresql: str) -> None:
    """Write the files. `postgresql` is the server's `host:port`."""
    keys = folder / "keys"
    make_keys(keys)
    _write_database(folder, postgresql)
    _write_s3(folder)
    for service in _SIGNERS:
        _write(folder / service / "signing.pem", (keys / f"{service}.pem").read_text())
        _write(folder / service / "jwks.json", (keys / "jwks.json").read_text())
    _write(folder / "migrate" / "jwks.json", (keys / "jwks.json").read_text())
    _write(folder / "client" / "client.pem", (keys / "client.pem").read_text())
    _write(folder / "console" / "cookie-keys", _kept(keys / "cookie-key", _cookie_key) + "\n")


def _write_database(folder: Path, postgresql: str) -> None:
    database = folder / "database"
    password = _kept(folder / "keys" / "postgresql-password", _password)
    # The server reads it as an account of its own image.
    _write(folder / "postgresql" / "admin-password", password, mode=0o444)
    _write(database / "admin-url", f"postgresql://postgres:{password}@{postgresql}/postgres")
    for service in SERVICES:
        role, prefix = service.replace("-", "_"), service.replace("-", "_").upper()
        urls = {
            kind: f"postgresql://{user}:{_kept(folder / 'keys' / f'{user}-password', _password)}"
            f"@{postgresql}/{_DATABASE}"
            for kind, user in (("url", role), ("owner-url", f"{role}_owner"))
        }
        for kind, url in urls.items():
            _write(database / f"{service}-{kind}", url)
        _write(folder / service / f"{prefix}_DATABASE_URL", urls["url"])
        _write(folder / "migrate" / f"{prefix}_DATABASE_URL", urls["url"])
        _write(folder / "migrate" / f"{prefix}_DATABASE_OWNER_URL", urls["owner-url"])


def _write_s3(folder: Path) -> None:
    """Write the configuration of SeaweedFS, and its administrator's keys for attachment-blob."""
    secret_key = _kept(folder / "keys" / "s3-secret-key", _password)
    admin = {
        "name": "admin",
        "credentials": [{"accessKey": _ACCESS_KEY, "secretKey": secret_key}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    anything = {"Effect": "Allow", "Action": ["s3:*"], "Resource": ["*"]}
    # Not "*", which includes the credentials of tenants.
    trusted = {"Effect": "Allow", "Principal": {"AWS": [_ADMIN_ARN]}, "Action": ["sts:AssumeRole"]}
    signing_key = _kept(folder / "keys" / "sts-signing-key", lambda: b64encode(os.urandom(32)).decode())
    iam = {
        "sts": {
            "tokenDuration": "1h",
            "maxSessionLength": "12h",
            "issuer": "seaweedfs-sts",
            "signingKey": signing_key,
        },
        "policy": {"defaultEffect": "Deny", "storeType": "memory"},
        "roleStore": {"storeType": "memory"},
        "policies": [{"name": "TenantData", "document": {"Version": "2012-10-17", "Statement": [anything]}}],
        "roles": [
            {
                "roleName": "TenantRole",
                "roleArn": ROLE_ARN,
                "attachedPolicies": ["TenantData"],
                "trustPolicy": {"Version": "2012-10-17", "Statement": [trusted]},
            }
        ],
    }
    _write(folder / "s3" / "s3.json", json.dumps({"identities": [admin]}))
    _write(folder / "s3" / "iam.json", json.dumps(iam))
    for reader in ("attachment-blob", "migrate"):
        _write(folder / reader / "ATTACHMENT_BLOB_S3_ACCESS_KEY", _ACCESS_KEY)
        _write(folder / reader / "ATTACHMENT_BLOB_S3_SECRET_KEY", secret_key)


def _password() -> str:
    return secrets.token_hex(24)


def _cookie_key() -> str:
    return urlsafe_b64encode(os.urandom(32)).decode()


def _kept(file: Path, make: Callable[[], str]) -> str:
    """Return the content of the file, which is made once."""
    if not file.exists():
        _write(file, make())
    return file.read_text()


def _write(file: Path, content: str, mode: int = 0o400) -> None:
    """Write a complete file for the account of the images, or leave the former one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    whole = file.with_suffix(".new")
    whole.unlink(missing_ok=True)
    descriptor = os.open(whole, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(content)
    _give(whole)
    whole.rename(file)


def _give(path: Path) -> None:
    if os.geteuid() == 0:
        os.chown(path, _ACCOUNT, _ACCOUNT)


def main(arguments: list[str]) -> None:
    """Make the secrets, and give volumes to the account of the images."""
    parser = argparse.ArgumentParser(prog="spawnmesh_command.one_machine", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--postgresql", required=True, metavar="HOST:PORT")
    parser.add_argument("--give", action="append", default=[], type=Path, metavar="FOLDER")
    given = parser.parse_args(arguments)
    make_secrets(given.folder, given.postgresql)
    for folder in given.give:
        _give(folder)
    print(f"the secrets of the mesh are in {given.folder}")


if __name__ == "__main__":
    main(sys.argv[1:])
