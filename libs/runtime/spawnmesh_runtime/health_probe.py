"""Ask a process on this machine whether it serves.

Usage: `python -m spawnmesh_runtime.health_probe HOST:PORT`. Exits with code 0 if it does. For what
starts containers and knows no health checks of gRPC.
"""

import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

_SECONDS = 3.0


def is_serving(address: str) -> bool:
    """Return whether the server at the address says that it serves, in plain text."""
    with grpc.insecure_channel(address) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=_SECONDS
            )
        except grpc.RpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def main(arguments: list[str]) -> None:
    """Exit with code 1 if the server does not serve."""
    if len(arguments) != 1:
        raise SystemExit("usage: python -m spawnmesh_runtime.health_probe HOST:PORT")
    if not is_serving(arguments[0]):
        raise SystemExit(f"{arguments[0]} does not serve")


if __name__ == "__main__":
    main(sys.argv[1:])
