{{/* What the mesh is made of. `service` names image, settings and schema; `calls` are the services it calls; `listeners` are database
     connections beside the pool; one with `pages` serves HTTP to browsers, and verifies and signs no token. The network policies, the targets and
     the connection budget follow from this. */}}
{{- define "spawnmesh.components" -}}
session: {service: session, mode: serve, calls: [attachment-blob, transcript, hook, model-router], listeners: 1, serves: true, database: true, clients: true}
session-worker: {service: session, mode: worker, calls: [attachment-blob, transcript, hook, model-router], listeners: 1, database: true}
attachment-blob: {service: attachment-blob, mode: serve, calls: [session], listeners: 1, serves: true, database: true, s3: true, clients: true}
attachment-blob-worker: {service: attachment-blob, mode: worker, calls: [], listeners: 1, database: true, s3: true}
transcript: {service: transcript, mode: serve, calls: [attachment-blob, model-router, hook, session], listeners: 1, serves: true, database: true, clients: true}
transcript-worker: {service: transcript, mode: worker, calls: [attachment-blob, model-router, hook], listeners: 1, database: true}
model-router: {service: model-router, mode: serve, calls: [session], listeners: 1, serves: true, database: true, clients: true, reaches: providers}
hook: {service: hook, mode: serve, calls: [session], listeners: 1, serves: true, database: true, clients: true, reaches: plugins}
hook-worker: {service: hook, mode: worker, calls: [], listeners: 1, database: true, reaches: plugins}
runner: {service: runner, mode: serve, calls: [session, transcript, model-router, attachment-blob, hook], listeners: 0}
{{- if .Values.console.enabled }}
console: {service: console, mode: serve, calls: [session, transcript, model-router, attachment-blob, hook], listeners: 0, pages: true}
{{- end }}
{{- end -}}

{{/* The values of a component: {root, component}. `migrate` and `client` are the components of jobs. */}}
{{- define "spawnmesh.valuesOf" -}}
{{- if has .component (list "console" "gateway") -}}
{{- toYaml (index .root.Values .component) -}}
{{- else if has .component (list "migrate" "client") -}}
{{- toYaml .root.Values.jobs -}}
{{- else -}}
{{- toYaml (index .root.Values.services .component) -}}
{{- end -}}
{{- end -}}

{{/* The path of the values of a component, for messages: {component}. */}}
{{- define "spawnmesh.pathOf" -}}
{{- if has .component (list "console" "gateway") }}{{ .component }}{{ else }}services.{{ .component }}{{ end -}}
{{- end -}}

{{/* SESSION for session, MODEL_ROUTER for model-router. */}}
{{- define "spawnmesh.prefix" -}}{{ . | replace "-" "_" | upper }}{{- end -}}

{{/* The Python package of a service. */}}
{{- define "spawnmesh.package" -}}spawnmesh_{{ . | replace "-" "_" }}{{- end -}}

{{- define "spawnmesh.selectorLabels" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "spawnmesh.labels" -}}
{{ include "spawnmesh.selectorLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: spawnmesh
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{- define "spawnmesh.image" -}}
{{- $image := .root.Values.image -}}
{{- if not (or $image.digests $image.tag) -}}
{{- fail "image.digests is empty: name the digests of all images, as docs/howto/install-on-kubernetes.md writes them in step 1; or, for a trial, a tag as image.tag" -}}
{{- end -}}
{{- if and $image.digests (not (hasKey $image.digests .service)) -}}
{{- fail (printf "image.digests has no %s: name the digest of every image that is used" .service) -}}
{{- end -}}
{{- include "spawnmesh.reference" (dict "repository" (printf "%s/%s" $image.repository .service) "digest" (get $image.digests .service) "tag" $image.tag) -}}
{{- end -}}

{{/* The image of a bundled server: {root, section}. */}}
{{- define "spawnmesh.bundledImage" -}}
{{- $image := (index .root.Values .section).bundled.image -}}
{{- if not (or $image.digest $image.tag) -}}
{{- fail (printf "%s.bundled.image has no digest: name that of %s; or, for a trial, a tag" .section $image.repository) -}}
{{- end -}}
{{- include "spawnmesh.reference" $image -}}
{{- end -}}

{{- define "spawnmesh.reference" -}}
{{- .repository -}}{{- if .digest }}@{{ .digest }}{{ else }}:{{ .tag }}{{ end -}}
{{- end -}}

{{- define "spawnmesh.host" -}}
{{- printf "%s.%s.svc.%s" .service .root.Release.Namespace .root.Values.clusterDomain -}}
{{- end -}}

{{/* gRPC resolves the headless name to every ready pod and takes them in turn. */}}
{{- define "spawnmesh.target" -}}dns:///{{ include "spawnmesh.host" . }}:50051{{- end -}}

{{/* How long until all clients that look for a name find the pods that there are: what name servers remember, the time that gRPC lets pass
     between two questions (5 s), and as much for the endpoints to be told of. */}}
{{- define "spawnmesh.namesSettleSeconds" -}}{{ add .Values.dnsTtlSeconds 10 }}{{- end -}}

{{/* How long a pod may take to go: {root, component, facts}. To be taken out of the clients' turn, for the calls that are still running (as long as its
     own settings say, where they do), and to send the last spans. */}}
{{- define "spawnmesh.leaveSeconds" -}}
{{- $own := (include "spawnmesh.valuesOf" . | fromYaml).settings -}}
{{- $drain := ternary (get $own "DRAIN_GRACE_SECONDS") .root.Values.drainGraceSeconds (hasKey $own "DRAIN_GRACE_SECONDS") -}}
{{- add (float64 $drain | ceil) 15 (ternary (include "spawnmesh.namesSettleSeconds" .root | int) 0 (or (hasKey .facts "serves") (hasKey .facts "pages"))) -}}
{{- end -}}

{{- define "spawnmesh.postgresqlSecret" -}}
{{- if .Values.postgresql.bundled.enabled }}postgresql-bundled{{ else }}{{ .Values.postgresql.existingSecret }}{{ end -}}
{{- end -}}

{{- define "spawnmesh.s3Secret" -}}
{{- if .Values.s3.bundled.enabled }}s3-bundled{{ else }}{{ .Values.s3.existingSecret }}{{ end -}}
{{- end -}}

{{/* Whether runners have MCP servers, and whether some may be at addresses; 'true', or nothing. */}}
{{- define "spawnmesh.hasMcp" -}}
{{- if or .Values.runner.mcp.servers .Values.runner.mcp.existingSecret }}true{{ end -}}
{{- end -}}

{{- define "spawnmesh.reachesMcp" -}}
{{- $reaches := not (empty .Values.runner.mcp.existingSecret) -}}
{{- range .Values.runner.mcp.servers }}{{ if .url }}{{ $reaches = true }}{{ end }}{{ end -}}
{{- if $reaches }}true{{ end -}}
{{- end -}}

{{- define "spawnmesh.tlsSecret" -}}
{{- if eq .root.Values.tls.mode "cert-manager" }}{{ .service }}-tls{{ else }}{{ .root.Values.tls.existingSecret }}{{ end -}}
{{- end -}}
