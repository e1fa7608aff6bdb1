"""The edges that the network policies let through, read from the rendered objects."""

from tests.support.deploy.rendering import Object, of_kind

GRPC = 50051
COMPONENT = "app.kubernetes.io/component"


def component_of(peer: Object) -> str:
    """The workload that a peer means; '' where it is none of ours."""
    labels: dict[str, str] = peer.get("podSelector", {}).get("matchLabels", {})
    return labels.get(COMPONENT, "")


def ports_of(rule: Object) -> set[int]:
    """The ports of a rule."""
    return {port["port"] for port in rule["ports"]}


def allowed_out(*values: str) -> set[tuple[str, str]]:
    """(caller, called) by what callers may send to."""
    return {
        (name, component_of(peer))
        for name, policy in of_kind("NetworkPolicy", *values).items()
        for rule in policy["spec"].get("egress", [])
        if GRPC in ports_of(rule)
        for peer in rule["to"]
    }


def allowed_in(*values: str) -> set[tuple[str, str]]:
    """(caller, called) by what the called may be sent by; callers from elsewhere are ''."""
    return {
        (component_of(peer), name)
        for name, policy in of_kind("NetworkPolicy", *values).items()
        for rule in policy["spec"].get("ingress", [])
        if GRPC in ports_of(rule)
        for peer in rule["from"]
    }


def call_edges(*values: str) -> set[tuple[str, str]]:
    """Which service may call which; a worker counts as its service, and the command of `helm test` not at all."""
    through = allowed_out(*values) & allowed_in(*values)
    return {(caller.removesuffix("-worker"), called) for caller, called in through if caller != "client"}
