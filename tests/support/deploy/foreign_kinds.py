"""Kinds of other projects in the chart, for which Kubernetes itself has no schemas."""

FOREIGN = {
    "ServiceMonitor": {
        *("selector.matchLabels", "endpoints.port", "endpoints.interval"),
        *("endpoints.relabelings.sourceLabels", "endpoints.relabelings.targetLabel"),
    },
    "PrometheusRule": {"groups.name"} | {f"groups.rules.{field}" for field in ("alert", "record", "expr", "for", "labels", "annotations")},
    "HTTPRoute": {
        *("parentRefs.name", "parentRefs.namespace", "hostnames"),
        *("rules.backendRefs.name", "rules.backendRefs.port", "rules.timeouts.request"),
    },
    "GRPCRoute": {
        *("parentRefs.name", "parentRefs.namespace", "hostnames"),
        *("rules.matches.method.type", "rules.matches.method.service"),
        *(f"rules.matches.headers.{field}" for field in ("type", "name", "value")),
        *("rules.backendRefs.name", "rules.backendRefs.port"),
    },
    "BackendTLSPolicy": {
        *(f"targetRefs.{field}" for field in ("group", "kind", "name")),
        *(f"validation.caCertificateRefs.{field}" for field in ("group", "kind", "name")),
        "validation.hostname",
    },
    "ExternalSecret": {
        *("refreshInterval", "secretStoreRef.name", "secretStoreRef.kind"),
        *("target.name", "target.creationPolicy", "target.deletionPolicy"),
        *("dataFrom.extract.key", "dataFrom.extract.version"),
    },
    "ScaledObject": {
        *("scaleTargetRef.apiVersion", "scaleTargetRef.kind", "scaleTargetRef.name"),
        *("minReplicaCount", "maxReplicaCount", "pollingInterval"),
        *("fallback.failureThreshold", "fallback.replicas", "fallback.behavior"),
        *("advanced.horizontalPodAutoscalerConfig.name", "advanced.horizontalPodAutoscalerConfig.behavior"),
        *("triggers.type", "triggers.metricType", "triggers.metadata"),
        *("triggers.authenticationRef.name", "triggers.authenticationRef.kind"),
    },
    "Certificate": {
        *("secretName", "issuerRef.name", "issuerRef.kind", "issuerRef.group", "usages", "dnsNames", "ipAddresses"),
        *("privateKey.algorithm", "privateKey.size", "privateKey.rotationPolicy"),
    },
}  # fmt: skip
"""The fields that the chart may use of each, from the reference of its project."""
OPEN = {
    "selector.matchLabels",
    "triggers.metadata",
    "advanced.horizontalPodAutoscalerConfig.behavior",
    "groups.rules.labels",
    "groups.rules.annotations",
}  # The members of these have free names, or those of a kind of Kubernetes.
