{{/* The reasons of runs that end without an answer because of what their tenant did or set: a regular expression, whose
     empty part is a run that succeeded. Every other reason is the mesh's, also one that is added later. */}}
{{- define "spawnmesh.tenantsReasons" -}}
|AGENT_NOT_SPAWNABLE|APPROVAL_EXPIRED|ATTACHMENT_SET_STATE|BUDGET_EXCEEDED|INTERRUPTED|KILLED|MCP_SERVER_NOT_OFFERED|MODEL_REFUSED|NO_PROGRESS|OUTPUT_LIMIT_REACHED|PLUGIN_FAILED|RATE_LIMITED|RUN_TIMEOUT|SESSION_BUDGET_EXCEEDED|TURN_LIMIT_EXCEEDED|UNKNOWN_AGENT|UNKNOWN_MODEL|UNKNOWN_TENANT|_OTHER
{{- end -}}

{{/* The service level objectives. `all` and `failed` are selectors of one counter; `percent` of `all` do not fail in
     30 days. */}}
{{- define "spawnmesh.objectives" -}}
{{- $namespace := printf "namespace=%q" .Release.Namespace -}}
{{- $spawns := printf "rpc_server_call_duration_seconds_count{%s, rpc_method=\"spawnmesh.session.v1.SessionService/SpawnSession\"" $namespace -}}
{{- $runs := printf "spawnmesh_session_runs_ended_total{%s" $namespace -}}
{{- with .Values.telemetry.metrics.objectives -}}
- name: spawns
  alert: SpawnmeshSpawnsMissObjective
  percent: {{ .spawnsServed }}
  noun: spawns
  all: {{ printf "%s}" $spawns | quote }}
  failed: {{ printf "%s, rpc_response_status_code=~\"INTERNAL|UNKNOWN|UNAVAILABLE|DATA_LOSS|DEADLINE_EXCEEDED\"}" $spawns | quote }}
- name: runs
  alert: SpawnmeshRunsMissObjective
  percent: {{ .runsNotFailed }}
  noun: runs
  all: {{ printf "%s}" $runs | quote }}
  failed: {{ printf "%s, error_type!~%q}" $runs (include "spawnmesh.tenantsReasons" $) | quote }}
{{- end -}}
{{- end -}}

{{/* Rules of one objective: the share that failed in each window, and alerts that fire when it would use up the 30 days'
     budget in 2 or 5 days (critical), or in 10 or 30 (warning). The short window ends an alert soon after the cause is
     gone. Ten failures in the long window are the least. */}}
{{- define "spawnmesh.objectiveRules" -}}
{{- $root := .root -}}
{{- $one := .objective -}}
{{- $namespace := $root.Release.Namespace -}}
{{- range list "5m" "30m" "1h" "2h" "6h" "1d" "3d" }}
- record: spawnmesh:{{ $one.name }}:failed_ratio_rate{{ . }}
  expr: (sum(rate({{ $one.failed }}[{{ . }}])) or vector(0)) / sum(rate({{ $one.all }}[{{ . }}]))
  labels: {namespace: {{ $namespace }}}
{{- end }}
{{- $paces := list
      (dict "alert" $one.alert "severity" "critical" "for" "2m" "days" "five days or less"
        "pairs" (list (list "1h" "5m" "14.4") (list "6h" "30m" "6")))
      (dict "alert" (printf "%sSlowly" $one.alert) "severity" "warning" "for" "30m" "days" "thirty days or less"
        "pairs" (list (list "1d" "2h" "3") (list "3d" "6h" "1"))) }}
{{- range $paces }}
- alert: {{ .alert }}
  expr: |
    {{- range $number, $pair := .pairs }}
    {{ if $number }}or {{ end -}}
    (spawnmesh:{{ $one.name }}:failed_ratio_rate{{ index $pair 0 }}{namespace={{ $namespace | quote }}} > {{ index $pair 2 }} * (1 - {{ $one.percent }} / 100)
      and spawnmesh:{{ $one.name }}:failed_ratio_rate{{ index $pair 1 }}{namespace={{ $namespace | quote }}} > {{ index $pair 2 }} * (1 - {{ $one.percent }} / 100)
      and on () sum(increase({{ $one.failed }}[{{ index $pair 0 }}])) >= 10)
    {{- end }}
  for: {{ .for }}
  labels: {severity: {{ .severity }}}
  annotations:
    summary: "Too many {{ $one.noun }} fail"
    description: "{{ "{{ $value | humanizePercentage }}" }} of the {{ $one.noun }} fail. The objective is {{ $one.percent }} % without failure, and what it allows in thirty days is used up in {{ .days }} at this rate."
    runbook: objectives.md
{{- end }}
{{- end -}}

{{/* The alerts of files/alerts.yaml with the values of this release. */}}
{{- define "spawnmesh.alerts" -}}
{{- $metrics := .Values.telemetry.metrics -}}
{{- .Files.Get "files/alerts.yaml"
      | replace "$NAMESPACE" .Release.Namespace
      | replace "$TENANTS_REASONS" (include "spawnmesh.tenantsReasons" .)
      | replace "$WARNING_DAYS" (toString $metrics.certificateDays.warning)
      | replace "$CRITICAL_DAYS" (toString $metrics.certificateDays.critical) -}}
{{- end -}}

{{/* Rules as text, with `runbook_url` beside `runbook` if the release has an address for the pages. */}}
{{- define "spawnmesh.withRunbookUrls" -}}
{{- $url := .root.Values.telemetry.metrics.runbookUrl -}}
{{- if $url -}}
{{- regexReplaceAll "( +)runbook: ([a-z0-9-]+)\\.md" .rules (printf "${1}runbook: ${2}.md\n${1}runbook_url: %s" (replace "%s" "${2}" $url)) -}}
{{- else -}}
{{- .rules -}}
{{- end -}}
{{- end -}}
