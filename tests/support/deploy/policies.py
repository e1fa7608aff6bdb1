"""The calls that the rendered network policies allow."""

from tests.support.deploy.rendering import Object, of_kind

GRPC = 50051
COMPONENT = "app.kubernetes.io/component"


def component_of(peer: Object) -> str:
    """Return the workload that a peer selects, or '' for a peer outside the chart."""
    labels: dict[str, str] = peer.get("podSelector", {}).get("matchLabels", {})
    return labels.get(COMPONENT, "")


def ports_of(rule: Object) -> set[int]:
    """Return the ports of a rule."""
    return {port["port"] for port in rule["ports"]}


def allowed_out(*values: str) -> set[tuple[str, str]]:
    """Return (caller, callee) by the egress rules of callers."""
    return {
        (name, component_of(peer))
        for name, policy in of_kind("NetworkPolicy", *values).items()
        for rule in policy["spec"].get("egress", [])
        if GRPC in ports_of(rule)
        for peer in rule["to"]
    }


def allowed_in(*values: str) -> set[tuple[str, str]]:
    """Return (caller, callee) by the ingress rules of callees; '' is a caller outside the chart."""
    return {
        (component_of(peer), name)
        for name, policy in of_kind("NetworkPolicy", *values).items()
        for rule in policy["spec"].get("ingress", [])
        if GRPC in ports_of(rule)
        for peer in rule["from"]
    }


def call_edges(*values: str) -> set[tuple[str, str]]:
    """Return (caller, callee) of the services. A worker counts as its service; `helm test` is left out."""
    through = allowed_out(*values) & allowed_in(*values)
    return {(caller.removesuffix("-worker"), called) for caller, called in through if caller != "client"}
