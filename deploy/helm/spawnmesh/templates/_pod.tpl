{{/* What is added to the pods of a component: the values of `pod`, and over them those of its own. Its own lists and
     its own affinity are instead of those of `pod`; maps have both. */}}
{{- define "spawnmesh.podAdditions" -}}
{{- $own := dig "pod" (dict) (include "spawnmesh.valuesOf" . | fromYaml) -}}
{{- $pod := mergeOverwrite (deepCopy .root.Values.pod) (deepCopy $own) -}}
{{- if hasKey $own "affinity" }}{{ $_ := set $pod "affinity" $own.affinity }}{{ end -}}
{{- toYaml $pod -}}
{{- end -}}

{{/* Labels and annotations of a Deployment: {root, component}. What `workload` adds is not on its pods. */}}
{{- define "spawnmesh.workloadMeta" -}}
{{- $own := dig "workload" (dict) (include "spawnmesh.valuesOf" . | fromYaml) -}}
{{- $added := mergeOverwrite (deepCopy .root.Values.workload) (deepCopy $own) -}}
labels:
  {{- include "spawnmesh.labels" . | nindent 2 }}
  {{- with $added.labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with $added.annotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Over what the pods of a component are spread: {root, component}. Pods of an earlier version are not counted. */}}
{{- define "spawnmesh.topologySpread" -}}
{{- $spread := .root.Values.topologySpread -}}
{{- if $spread.enabled }}
topologySpreadConstraints:
  {{- range $spread.topologyKeys }}
  - maxSkew: {{ $spread.maxSkew }}
    topologyKey: {{ . }}
    whenUnsatisfiable: {{ $spread.whenUnsatisfiable }}
    matchLabelKeys: [pod-template-hash]
    labelSelector:
      matchLabels: {{- include "spawnmesh.selectorLabels" $ | nindent 8 }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* What every pod of the mesh has in common: no rights in the cluster, none on the node; and where it may run, by `pod`. */}}
{{- define "spawnmesh.podCommon" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with .pod.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .pod.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .pod.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .pod.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

{{- define "spawnmesh.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* What libpq takes for a URL that does not say it. A file of authorities makes libpq verify with `require` too, so there is one only where it is wanted. */}}
{{- define "spawnmesh.postgresqlEnv" -}}
{{- $bundled := .Values.postgresql.bundled.enabled -}}
{{- $mode := ternary "disable" .Values.postgresql.sslMode $bundled -}}
- {name: PGSSLMODE, value: {{ $mode }}}
{{- if .Values.postgresql.caSecret }}
- {name: PGSSLROOTCERT, value: /run/secrets/postgresql-ca/ca.crt}
{{- else if hasPrefix "verify-" $mode }}
- {name: PGSSLROOTCERT, value: /etc/ssl/certs/ca-certificates.crt}
{{- end }}
{{- end -}}

{{/* The variables of a component: {root, component, facts}. Secrets are not among them; they are files of SECRETS_DIR. */}}
{{- define "spawnmesh.env" -}}
{{- $root := .root -}}
{{- $facts := .facts -}}
{{- $prefix := include "spawnmesh.prefix" $facts.service -}}
{{- $value := include "spawnmesh.valuesOf" . | fromYaml -}}
{{- $own := dict
  "LISTEN" (ternary "0.0.0.0:8080" "0.0.0.0:50051" (hasKey $facts "pages"))
  "HEALTH_LISTEN" "0.0.0.0:50052"
  "SPAN_JOURNAL_DIR" "/tmp/spans"
  "SECRETS_DIR" "/run/secrets/spawnmesh"
  "ENVIRONMENT" $root.Values.environment
  "LOG_LEVEL" $root.Values.logLevel
  "DRAIN_GRACE_SECONDS" (toString $root.Values.drainGraceSeconds) -}}
{{- if $facts.pages -}}
  {{- $own = merge $own (include "spawnmesh.consoleEnv" $root | fromYaml) -}}
{{- else -}}
  {{- $_ := set $own "SIGNING_KEY_FILE" "/run/secrets/tokens/signing.pem" -}}
  {{- $_ := set $own "TOKEN_AUDIENCE" $root.Values.tokens.audience -}}
  {{- $_ := set $own "CLIENT_ISSUERS" (toJson $root.Values.tokens.clientIssuers) -}}
  {{- $_ := set $own "MAX_TOKEN_LIFETIME_SECONDS" ($root.Values.tokens.maxLifetimeSeconds | int64 | toString) -}}
  {{- if $root.Values.tokens.jwksUrl -}}
    {{- $_ := set $own "JWKS_URL" $root.Values.tokens.jwksUrl -}}
  {{- else -}}
    {{- $_ := set $own "JWKS_FILE" "/run/secrets/tokens/jwks.json" -}}
  {{- end -}}
  {{- with $root.Values.callLimits }}{{ $_ := set $own "CALL_LIMITS" (toJson .) }}{{ end -}}
{{- end -}}
{{- with $root.Values.tokens.oidcIssuers }}{{ $_ := set $own "OIDC_ISSUERS" (toJson .) }}{{ end -}}
{{- if ne $root.Values.tls.mode "none" -}}
  {{- $_ := set $own "TLS_CERT_FILE" "/run/secrets/tls/tls.crt" -}}
  {{- $_ := set $own "TLS_KEY_FILE" "/run/secrets/tls/tls.key" -}}
  {{- $_ := set $own "TLS_CA_FILE" "/run/secrets/tls/ca.crt" -}}
{{- end -}}
{{- with $root.Values.telemetry.otlpEndpoint }}{{ $_ := set $own "OTLP_ENDPOINT" . }}{{ end -}}
{{- with $root.Values.telemetry.traceParentIssuers }}{{ $_ := set $own "TRACE_PARENT_ISSUERS" (toJson .) }}{{ end -}}
{{- if ne (float64 $root.Values.telemetry.traceSampleRatio) 1.0 }}{{ $_ := set $own "TRACE_SAMPLE_RATIO" $root.Values.telemetry.traceSampleRatio }}{{ end -}}
{{- if and (has $facts.service (list "model-router" "runner")) $root.Values.telemetry.traceContentMaxBytes }}{{ $_ := set $own "TRACE_CONTENT_MAX_BYTES" $root.Values.telemetry.traceContentMaxBytes }}{{ end -}}
{{- if $root.Values.telemetry.metrics.enabled }}{{ $_ := set $own "METRICS_LISTEN" "0.0.0.0:9464" }}{{ end -}}
{{- if $facts.database -}}
  {{- $_ := set $own "DATABASE_MAX_CONNECTIONS" (include "spawnmesh.poolSize" .) -}}
{{- end -}}
{{- range $facts.calls -}}
  {{- $_ := set $own (printf "%s_TARGET" (include "spawnmesh.prefix" .)) (include "spawnmesh.target" (dict "root" $root "service" .)) -}}
{{- end -}}
{{- if $facts.s3 -}}
  {{- $bundled := $root.Values.s3.bundled.enabled -}}
  {{- $_ := set $own "S3_ENDPOINT" (ternary "s3:8333" $root.Values.s3.endpoint $bundled) -}}
  {{- $_ := set $own "S3_SECURE" (ternary "false" (toString $root.Values.s3.secure) $bundled) -}}
  {{- $_ := set $own "S3_REGION" $root.Values.s3.region -}}
  {{- $_ := set $own "STS_ENDPOINT" (ternary "http://s3:8333" $root.Values.s3.stsEndpoint $bundled) -}}
  {{- $_ := set $own "STS_ROLE_ARN" (ternary "arn:aws:iam::role/TenantRole" $root.Values.s3.stsRoleArn $bundled) -}}
  {{- $_ := set $own "BUCKET_PREFIX" $root.Values.s3.bucketPrefix -}}
  {{- $_ := set $own "S3_CREDENTIALS" $root.Values.s3.credentials -}}
  {{- if eq $root.Values.s3.credentials "web_identity" -}}
    {{- $_ := set $own "S3_WEB_IDENTITY_TOKEN_FILE" "/run/secrets/s3-identity/token" -}}
    {{- $_ := set $own "S3_ROLE_ARN" $root.Values.s3.webIdentity.roleArn -}}
  {{- end -}}
{{- end -}}
{{- if eq $facts.service "model-router" }}{{ $_ := set $own "CONFIG_FILE" "/etc/spawnmesh/router.json" }}{{ end -}}
{{- if and (eq $facts.service "hook") $root.Values.hook.bundledPlugins }}{{ $_ := set $own "BUNDLED_PLUGINS_FILE" "/etc/spawnmesh/plugins.json" }}{{ end -}}
{{- if and (eq $facts.service "hook") $root.Values.hook.webhookCaSecret }}{{ $_ := set $own "WEBHOOK_CA_FILE" "/run/secrets/webhook-ca/ca.crt" }}{{ end -}}
{{- if eq $facts.service "runner" }}{{ $_ := set $own "WORKSPACE_ROOT" "/var/lib/spawnmesh/workspaces" }}{{ end -}}
{{- if and (eq $facts.service "runner") (include "spawnmesh.hasMcp" $root) }}{{ $_ := set $own "MCP_CONFIG_FILE" "/etc/spawnmesh/mcp.json" }}{{ end -}}
{{- if and (eq $facts.service "runner") $root.Values.runner.mcp.unsandboxedStdioServers }}{{ $_ := set $own "UNSANDBOXED_STDIO_SERVERS" "true" }}{{ end -}}
{{- range $name, $setting := $value.settings }}{{ $_ := set $own $name $setting }}{{ end -}}
{{- range $name, $setting := $own }}
- name: {{ $prefix }}_{{ $name }}
  {{- /* A number is told as JSON has it: as text of its own, a million would be 1e+06, which no process takes for one. */}}
  value: {{ ternary $setting (toJson $setting) (kindIs "string" $setting) | quote }}
{{- end }}
{{- if $facts.database }}
{{ include "spawnmesh.postgresqlEnv" $root }}
{{- end }}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- name: OTEL_RESOURCE_ATTRIBUTES
  value: k8s.pod.name=$(POD_NAME),k8s.namespace.name=$(POD_NAMESPACE)
{{- end -}}

{{- define "spawnmesh.mounts" -}}
- {name: tmp, mountPath: /tmp}
- {name: secrets, mountPath: /run/secrets/spawnmesh, readOnly: true}
{{- if not .facts.pages }}
- {name: tokens, mountPath: /run/secrets/tokens, readOnly: true}
{{- end }}
{{- if ne .root.Values.tls.mode "none" }}
- {name: tls, mountPath: /run/secrets/tls, readOnly: true}
{{- end }}
{{- if and .facts.database .root.Values.postgresql.caSecret }}
- {name: postgresql-ca, mountPath: /run/secrets/postgresql-ca, readOnly: true}
{{- end }}
{{- if .facts.s3 }}
{{- include "spawnmesh.s3IdentityMount" .root }}
{{- end }}
{{- if eq .facts.service "model-router" }}
- {name: router-config, mountPath: /etc/spawnmesh, readOnly: true}
{{- if .root.Values.modelRouter.providerSecret }}
- {name: providers, mountPath: /run/secrets/providers, readOnly: true}
{{- end }}
{{- end }}
{{- if and (eq .facts.service "hook") .root.Values.hook.bundledPlugins }}
- {name: hook-config, mountPath: /etc/spawnmesh, readOnly: true}
{{- end }}
{{- if and (eq .facts.service "hook") .root.Values.hook.webhookCaSecret }}
- {name: webhook-ca, mountPath: /run/secrets/webhook-ca, readOnly: true}
{{- end }}
{{- if eq .facts.service "runner" }}
- {name: workspaces, mountPath: /var/lib/spawnmesh/workspaces}
{{- if include "spawnmesh.hasMcp" .root }}
- {name: runner-mcp, mountPath: /etc/spawnmesh, readOnly: true}
{{- end }}
{{- if .root.Values.runner.mcp.credentialsSecret }}
- {name: mcp, mountPath: /run/secrets/mcp, readOnly: true}
{{- end }}
{{- end }}
{{- if .facts.pages }}
- {name: console, mountPath: /run/secrets/console, readOnly: true}
{{- end }}
{{- end -}}

{{/* A pod gets the keys that it uses and no others of each secret. */}}
{{- define "spawnmesh.volumes" -}}
{{- $root := .root -}}
{{- $facts := .facts -}}
- name: tmp
  {{- /* The files of forms that browsers send wait there until they are uploaded. */}}
  emptyDir: {sizeLimit: {{ ternary "1Gi" "256Mi" (hasKey $facts "pages") }}}
- name: secrets
{{- if $facts.database }}
  projected:
    defaultMode: 0440
    sources: {{- include "spawnmesh.databaseSecret" (dict "root" $root "service" $facts.service "owner" false) | nindent 6 }}
      {{- if $facts.s3 }}
      {{- include "spawnmesh.s3Keys" $root | nindent 6 }}
      {{- end }}
{{- else }}
  emptyDir: {sizeLimit: 1Mi}
{{- end }}
{{- if not $facts.pages }}
- name: tokens
  secret:
    secretName: {{ $root.Values.tokens.existingSecret }}
    defaultMode: 0440
    items:
      - {key: {{ $facts.service }}.pem, path: signing.pem}
      {{- if not $root.Values.tokens.jwksUrl }}
      - {key: jwks.json, path: jwks.json}
      {{- end }}
{{- end }}
{{- if ne $root.Values.tls.mode "none" }}
- name: tls
  secret: {secretName: {{ include "spawnmesh.tlsSecret" (dict "root" $root "service" $facts.service) }}, defaultMode: 0440}
{{- end }}
{{- if and $facts.database $root.Values.postgresql.caSecret }}
- name: postgresql-ca
  secret: {secretName: {{ $root.Values.postgresql.caSecret }}, defaultMode: 0440}
{{- end }}
{{- if $facts.s3 }}
{{- include "spawnmesh.s3IdentityVolume" $root }}
{{- end }}
{{- if eq $facts.service "model-router" }}
- name: router-config
  configMap: {name: model-router-config}
{{- with $root.Values.modelRouter.providerSecret }}
- name: providers
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- end }}
{{- if and (eq $facts.service "hook") $root.Values.hook.bundledPlugins }}
- name: hook-config
  configMap: {name: hook-config}
{{- end }}
{{- if and (eq $facts.service "hook") $root.Values.hook.webhookCaSecret }}
- name: webhook-ca
  secret: {secretName: {{ $root.Values.hook.webhookCaSecret }}, defaultMode: 0440, items: [{key: ca.crt, path: ca.crt}]}
{{- end }}
{{- if eq $facts.service "runner" }}
- name: workspaces
  emptyDir: {sizeLimit: {{ $root.Values.services.runner.workspaceSize }}}
{{- if $root.Values.runner.mcp.existingSecret }}
- name: runner-mcp
  secret: {secretName: {{ $root.Values.runner.mcp.existingSecret }}, defaultMode: 0440, items: [{key: mcp.json, path: mcp.json}]}
{{- else if $root.Values.runner.mcp.servers }}
- name: runner-mcp
  configMap: {name: runner-mcp}
{{- end }}
{{- with $root.Values.runner.mcp.credentialsSecret }}
- name: mcp
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- end }}
{{- if $facts.pages }}
- name: console
  projected:
    defaultMode: 0440
    sources: {{- include "spawnmesh.consoleSecrets" $root | nindent 6 }}
{{- end }}
{{- end -}}

{{/* The URLs of one service, as the files that its settings are read from. */}}
{{- define "spawnmesh.databaseSecret" -}}
{{- $prefix := include "spawnmesh.prefix" .service -}}
- secret:
    name: {{ include "spawnmesh.postgresqlSecret" .root }}
    items:
      - {key: {{ .service }}-url, path: {{ $prefix }}_DATABASE_URL}
      {{- if .root.Values.postgresql.pooled }}
      - {key: {{ .service }}-direct-url, path: {{ $prefix }}_DATABASE_DIRECT_URL}
      {{- end }}
      {{- if .owner }}
      - {key: {{ .service }}-owner-url, path: {{ $prefix }}_DATABASE_OWNER_URL}
      {{- end }}
{{- end -}}

{{/* The keys of S3, as files likewise; nothing where there are none. */}}
{{- define "spawnmesh.s3Keys" -}}
{{- if eq .Values.s3.credentials "keys" -}}
- secret:
    name: {{ include "spawnmesh.s3Secret" . }}
    items:
      - {key: access-key, path: ATTACHMENT_BLOB_S3_ACCESS_KEY}
      - {key: secret-key, path: ATTACHMENT_BLOB_S3_SECRET_KEY}
{{- end -}}
{{- end -}}

{{/* The token of the pod's account for STS, in place of keys. The kubelet replaces it before it expires. */}}
{{- define "spawnmesh.s3IdentityMount" -}}
{{- if eq .Values.s3.credentials "web_identity" }}
- {name: s3-identity, mountPath: /run/secrets/s3-identity, readOnly: true}
{{- end -}}
{{- end -}}

{{- define "spawnmesh.s3IdentityVolume" -}}
{{- if eq .Values.s3.credentials "web_identity" }}
- name: s3-identity
  projected:
    defaultMode: 0440
    sources:
      - serviceAccountToken: {path: token, audience: {{ .Values.s3.webIdentity.audience | quote }}, expirationSeconds: 3600}
{{- end -}}
{{- end -}}
