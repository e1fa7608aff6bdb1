{{/* Egress to what a value of networkPolicy names: {to, ports}. */}}
{{- define "spawnmesh.egress" -}}
- ports:
    {{- range .ports }}
    - {port: {{ . }}, protocol: TCP}
    {{- end }}
  {{- with .to }}
  to: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{- define "spawnmesh.egressDns" -}}
- ports:
    {{- range .Values.networkPolicy.dns.ports }}
    - {port: {{ . }}, protocol: UDP}
    - {port: {{ . }}, protocol: TCP}
    {{- end }}
  {{- with .Values.networkPolicy.dns.to }}
  to: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{- define "spawnmesh.egressPostgresql" -}}
{{- if .Values.postgresql.bundled.enabled -}}
- ports: [{port: 5432, protocol: TCP}]
  to:
    - podSelector: {matchLabels: {{ include "spawnmesh.selectorLabels" (dict "root" . "component" "postgresql") | fromYaml | toJson }}}
{{- else -}}
{{- include "spawnmesh.egress" .Values.networkPolicy.postgresql -}}
{{- end -}}
{{- end -}}

{{- define "spawnmesh.egressS3" -}}
{{- if .Values.s3.bundled.enabled -}}
- ports: [{port: 8333, protocol: TCP}]
  to:
    - podSelector: {matchLabels: {{ include "spawnmesh.selectorLabels" (dict "root" . "component" "s3") | fromYaml | toJson }}}
{{- else -}}
{{- include "spawnmesh.egress" .Values.networkPolicy.s3 -}}
{{- if eq .Values.s3.credentials "aws" }}
# The agent of EKS Pod Identity, on the node.
- ports: [{port: 80, protocol: TCP}]
  to: [{ipBlock: {cidr: 169.254.170.23/32}}, {ipBlock: {cidr: "fd00:ec2::23/128"}}]
{{- end -}}
{{- end -}}
{{- end -}}
