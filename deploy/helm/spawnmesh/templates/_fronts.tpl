{{/* What of the cluster sends calls to the gateway or the console, and ends their TLS. */}}

{{/* Refuses a front that could send nothing: {root, component}. */}}
{{- define "spawnmesh.checkFront" -}}
{{- $value := include "spawnmesh.valuesOf" . | fromYaml -}}
{{- $front := ternary (printf "%s.ingress.enabled" .component) (printf "%s.parentRefs" .component) $value.ingress.enabled -}}
{{- if and $value.parentRefs $value.ingress.enabled -}}
{{- fail (printf "%s.ingress.enabled and %s.parentRefs are two fronts for one address: keep one of them" .component .component) -}}
{{- end -}}
{{- if or $value.parentRefs $value.ingress.enabled -}}
{{- if and .root.Values.networkPolicy.enabled (not $value.from) -}}
{{- fail (printf "%s.from is empty, and %s needs the peers that send calls, the pods of its controller: nothing would get through" .component $front) -}}
{{- end -}}
{{- if $value.tlsSecret -}}
{{- fail (printf "%s.tlsSecret has no use with %s, which ends TLS" .component $front) -}}
{{- end -}}
{{- if and $value.ingress.enabled (eq .component "gateway") (not $value.hostnames) -}}
{{- fail "gateway.hostnames is empty, and gateway.ingress.enabled needs the names that it takes calls for" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* A route of the Gateway API: {root, component, hosts}. */}}
{{- define "spawnmesh.route" -}}
{{- $value := include "spawnmesh.valuesOf" . | fromYaml -}}
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata:
  name: {{ .component }}
  namespace: {{ .root.Release.Namespace }}
  labels: {{- include "spawnmesh.labels" . | nindent 4 }}
spec:
  parentRefs: {{- toYaml $value.parentRefs | nindent 4 }}
  {{- with .hosts }}
  hostnames: {{- toYaml . | nindent 4 }}
  {{- end }}
  rules:
    - backendRefs: [{name: {{ .component }}, port: 80}]
      # Streams, and pages that show a run live, last for as long as someone looks.
      timeouts: {request: 0s}
{{- end -}}

{{/* An Ingress: {root, component, hosts}. */}}
{{- define "spawnmesh.ingress" -}}
{{- $ingress := (include "spawnmesh.valuesOf" . | fromYaml).ingress -}}
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: {{ .component }}
  namespace: {{ .root.Release.Namespace }}
  labels: {{- include "spawnmesh.labels" . | nindent 4 }}
  {{- with $ingress.annotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- with $ingress.className }}
  ingressClassName: {{ . }}
  {{- end }}
  tls:
    - hosts: {{- toYaml .hosts | nindent 8 }}
      {{- with $ingress.tlsSecret }}
      secretName: {{ . }}
      {{- end }}
  rules:
    {{- range .hosts }}
    - host: {{ . | quote }}
      http:
        paths:
          - path: /
            pathType: Prefix
            backend: {service: {name: {{ $.component }}, port: {number: 80}}}
    {{- end }}
{{- end -}}
