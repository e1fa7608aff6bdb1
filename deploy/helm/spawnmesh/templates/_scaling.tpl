{{/* What makes and removes pods of a component: {root, component}. A HorizontalPodAutoscaler, or a ScaledObject from which KEDA makes one. */}}
{{- define "spawnmesh.scaler" -}}
{{- $scaling := (include "spawnmesh.valuesOf" . | fromYaml).autoscaling -}}
{{- $at := printf "%s.autoscaling" (include "spawnmesh.pathOf" .) -}}
{{- if gt (int $scaling.minReplicas) (int $scaling.maxReplicas) -}}
{{- fail (printf "%s.minReplicas is %d, above maxReplicas, which is %d" $at (int $scaling.minReplicas) (int $scaling.maxReplicas)) -}}
{{- end -}}
{{- $by := $scaling.by | default "cpu" -}}
{{- if and (ne $by "cpu") (not .root.Values.telemetry.metrics.enabled) -}}
{{- fail (printf "%s.by is %s, and telemetry.metrics.enabled is false: nobody would know how many runs wait" $at $by) -}}
{{- end -}}
{{- if and (eq $by "keda") (not $scaling.keda.serverAddress) -}}
{{- fail (printf "%s.keda.serverAddress is empty: it is the address of Prometheus, which KEDA asks how many runs wait" $at) -}}
{{- end -}}
{{- if and (eq $by "external") (not $scaling.externalMetric.name) -}}
{{- fail (printf "%s.externalMetric.name is empty: it is the name by which the cluster's metrics API has the demand for slots" $at) -}}
{{- end -}}
{{- $meta := dict "name" .component "namespace" .root.Release.Namespace "labels" (include "spawnmesh.labels" . | fromYaml) -}}
{{- $target := dict "apiVersion" "apps/v1" "kind" "Deployment" "name" .component -}}
{{- if eq $by "keda" -}}
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {{- toYaml $meta | nindent 2 }}
spec:
  scaleTargetRef: {{- toYaml $target | nindent 4 }}
  minReplicaCount: {{ $scaling.minReplicas }}
  maxReplicaCount: {{ $scaling.maxReplicas }}
  pollingInterval: 15
  # While Prometheus cannot be asked, no pod is removed.
  fallback: {failureThreshold: 3, replicas: {{ $scaling.minReplicas }}, behavior: currentReplicasIfHigher}
  advanced:
    horizontalPodAutoscalerConfig:
      name: {{ .component }}
      behavior: {{- include "spawnmesh.scalingBehavior" $scaling | nindent 8 }}
  triggers:
    - type: prometheus
      metricType: AverageValue
      metadata:
        serverAddress: {{ $scaling.keda.serverAddress | quote }}
        query: {{ include "spawnmesh.slotDemand" .root | quote }}
        threshold: {{ include "spawnmesh.slotsPerRunner" .root | quote }}
        # Nothing is known of the queue: that is no reason to remove pods.
        ignoreNullValues: "false"
        {{- if $scaling.keda.authModes }}
        authModes: {{ $scaling.keda.authModes | quote }}
        {{- end }}
      {{- with $scaling.keda.authenticationRef }}
      authenticationRef: {{- toYaml . | nindent 8 }}
      {{- end }}
{{- else -}}
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {{- toYaml $meta | nindent 2 }}
spec:
  scaleTargetRef: {{- toYaml $target | nindent 4 }}
  minReplicas: {{ $scaling.minReplicas }}
  maxReplicas: {{ $scaling.maxReplicas }}
  behavior: {{- include "spawnmesh.scalingBehavior" $scaling | nindent 4 }}
  metrics:
    {{- if eq $by "external" }}
    - type: External
      external:
        metric:
          name: {{ $scaling.externalMetric.name }}
          {{- with $scaling.externalMetric.labels }}
          selector: {matchLabels: {{ toJson . }}}
          {{- end }}
        target: {type: AverageValue, averageValue: {{ include "spawnmesh.slotsPerRunner" .root | quote }}}
    {{- else }}
    - type: Resource
      resource: {name: cpu, target: {type: Utilization, averageUtilization: {{ $scaling.targetCPUPercent }}}}
    {{- end }}
{{- end -}}
{{- end -}}

{{/* Up at once: twice as many pods in half a minute, and four at least. Down slowly: a tenth in a minute, when nothing has asked for more for as
     long as `stabilizationSeconds`. A pod that is removed takes as long to go as its drain. */}}
{{- define "spawnmesh.scalingBehavior" -}}
scaleUp:
  stabilizationWindowSeconds: 0
  selectPolicy: Max
  policies:
    - {type: Percent, value: 100, periodSeconds: 30}
    - {type: Pods, value: 4, periodSeconds: 30}
scaleDown:
  stabilizationWindowSeconds: {{ .stabilizationSeconds }}
  selectPolicy: Max
  policies:
    - {type: Percent, value: 10, periodSeconds: 60}
    - {type: Pods, value: 1, periodSeconds: 60}
{{- end -}}

{{/* The slots that the runs ask for, in PromQL: those that are used, and one for each run that waits for a runner. Without runners it is the queue; without
     the queue it is nothing. */}}
{{- define "spawnmesh.slotDemand" -}}
{{- $in := printf "namespace=%q" .Release.Namespace -}}
(sum(spawnmesh_runner_slots{ {{- $in }}, spawnmesh_runner_slot_state="used"}) or vector(0)) + max(spawnmesh_session_runs{ {{- $in }}, spawnmesh_session_run_state="waiting"})
{{- end -}}

{{/* How many slots of a runner may be asked for before there is one more: all but the free ones that are wanted, and but those that one tenant alone cannot
     use, since its runs would wait for them and ask for no pod. */}}
{{- define "spawnmesh.slotsPerRunner" -}}
{{- $runner := .Values.services.runner -}}
{{- $slots := get $runner.settings "MAX_RUNS" | default 8 | int -}}
{{- $reserved := ternary 1 0 (ge $slots 4) -}}
{{- if hasKey $runner.settings "RESERVED_RUNS" }}{{ $reserved = get $runner.settings "RESERVED_RUNS" | int }}{{ end -}}
{{- $wanted := divf (mulf $slots (sub 100 (int $runner.autoscaling.freeSlotPercent))) 100 -}}
{{- $most := sub $slots $reserved -}}
{{- $thousandths := mulf 1000 (minf $wanted $most) | ceil | int -}}
{{- if eq (mod $thousandths 1000) 0 }}{{ div $thousandths 1000 }}{{ else }}{{ divf $thousandths 1000 }}{{ end -}}
{{- end -}}
