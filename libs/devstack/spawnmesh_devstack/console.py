"""The console of a mesh on this machine: its process, and links that sign a person in."""

import json
import os
from pathlib import Path
from urllib.parse import urlencode

from cryptography.fernet import Fernet
from spawnmesh_command.endpoints import MESH_FILE
from spawnmesh_console.clients.sign_in_file import offer_token

from spawnmesh_devstack.failures import StackError

CONSOLE = "console"
SIGN_IN_NAME = "console-sign-in.json"
_COOKIE_KEY_NAME = "console-cookie.key"


def console_variables(data_dir: Path) -> dict[str, str]:
    """Return the console's own variables, and make the key of its cookies if there is none: people
    stay signed in when the console or the mesh starts again.
    """
    key_file = data_dir / "keys" / _COOKIE_KEY_NAME
    if not key_file.exists() or not key_file.stat().st_size:
        half = key_file.with_name(f".{key_file.name}.new")
        descriptor = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(Fernet.generate_key())
        half.rename(key_file)
    return {"COOKIE_KEY_FILE": str(key_file), "SIGN_IN_FILE": str(data_dir / SIGN_IN_NAME)}


def sign_in_link(address: str, data_dir: Path, token: str, path: str = "") -> str:
    """Return a link that signs in with the token, once, and leads to the path of the console. An
    earlier link ends.
    """
    query = {"code": offer_token(data_dir / SIGN_IN_NAME, token), **({"next": path} if path else {})}
    return f"{address}/sign-in?{urlencode(query, safe='/')}"


def running_console(data_dir: Path) -> str:
    """Return the address of the console of the mesh that runs on the directory, such as
    `http://127.0.0.1:8700`. Raises StackError without one.
    """
    try:
        address = json.loads((data_dir / MESH_FILE).read_bytes())["console"]
    except (OSError, ValueError, KeyError):
        address = None
    if not isinstance(address, str):
        raise StackError(f"no mesh with a console runs on {data_dir}: `spawnmesh up` starts one")
    return address
