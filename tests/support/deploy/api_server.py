"""The part of the API server of Kubernetes that Helm asks before it installs: which kinds there are,
and which objects.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.deploy.rendering import Object

_KINDS = {
    "v1": ("Pod", "Service", "Secret", "ConfigMap", "ServiceAccount", "PersistentVolumeClaim"),
    "apps/v1": ("Deployment", "StatefulSet"),
    "batch/v1": ("Job", "CronJob"),
    "networking.k8s.io/v1": ("NetworkPolicy",),
    "policy/v1": ("PodDisruptionBudget",),
}
_NOT_FOUND = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}


@contextmanager
def serving_api(secrets: dict[str, Object]) -> Iterator[str]:
    """Serve an API whose cluster has these secrets, by their names, and nothing else. Yield its
    address.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = _content(self.path.partition("?")[0], secrets)
            body = json.dumps(_NOT_FOUND if content is None else content).encode()
            self.send_response(404 if content is None else 200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def _content(path: str, secrets: dict[str, Object]) -> Object | None:
    places = {f"/{'apis' if '/' in version else 'api'}/{version}": version for version in _KINDS}
    match path:
        case "/version":
            return {"major": "1", "minor": "31", "gitVersion": "v1.31.0"}
        case "/api":
            return {"kind": "APIVersions", "versions": ["v1"]}
        case "/apis":
            return {
                "kind": "APIGroupList",
                "apiVersion": "v1",
                "groups": [_group(one) for one in _KINDS if "/" in one],
            }
        case "/openapi/v3":
            return {"paths": {place[1:]: {"serverRelativeURL": f"/openapi/v3{place}"} for place in places}}
        case _ if path in places:
            return _resources(places[path])
        case _ if path.startswith("/openapi/v3/"):
            return _checks_fields(places[path.removeprefix("/openapi/v3")])
        case _:
            return secrets.get(path.rpartition("/secrets/")[2])


def _group(version: str) -> Object:
    served = {"groupVersion": version, "version": version.partition("/")[2]}
    return {"name": version.partition("/")[0], "versions": [served], "preferredVersion": served}


def _resources(version: str) -> Object:
    resources = [
        {
            "name": kind.lower().replace("policy", "policie") + "s",
            "singularName": kind.lower(),
            "namespaced": True,
            "kind": kind,
            "verbs": ["get", "list", "create", "patch"],
        }
        for kind in _KINDS[version]
    ]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources}


def _checks_fields(version: str) -> Object:
    """Say that the server itself refuses unknown fields: Helm then has no need of its schemas."""
    parameter = {"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}
    group = version.rpartition("/")[0]
    paths = {
        f"/{kind}": {
            "patch": {
                "x-kubernetes-action": "patch",
                "x-kubernetes-group-version-kind": {"group": group, "version": "v1", "kind": kind},
                "parameters": [parameter],
                "responses": {},
            }
        }
        for kind in _KINDS[version]
    }
    return {"openapi": "3.0.0", "info": {"title": "api", "version": "1"}, "paths": paths}
