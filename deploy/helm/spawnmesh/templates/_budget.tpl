{{/* How long a pod has to have been ready before another one goes: {root, component, facts}. Of what is called, until every name server tells of it; of what
     nobody calls, until the one before is gone, so that no two of them hold connections beside those that stay. */}}
{{- define "spawnmesh.minReadySeconds" -}}
{{- if hasKey .facts "serves" }}{{ include "spawnmesh.namesSettleSeconds" .root }}{{ else }}{{ include "spawnmesh.leaveSeconds" . }}{{ end -}}
{{- end -}}

{{/* Pods of a component at their most, while all of them are replaced: as many as autoscaling makes, those that are still going, of which there is a
     new one each time that a pod has been ready for long enough, and one that comes; which does not come any more when the last one goes. */}}
{{- define "spawnmesh.mostPods" -}}
{{- $value := index .root.Values.services .component -}}
{{- $pods := ternary $value.autoscaling.maxReplicas $value.replicas $value.autoscaling.enabled | int -}}
{{- $going := divf (include "spawnmesh.leaveSeconds" . | float64) (include "spawnmesh.minReadySeconds" . | float64) | ceil | int -}}
{{- add $pods (min $pods (add $going 1)) -}}
{{- end -}}

{{/* The size of a component's database pool: its own `connections`, else an equal share for every pod that has none, of 2 to 32.
     Refuses to render where the connections of all pods at their most are more than PostgreSQL lets in. */}}
{{- define "spawnmesh.poolSize" -}}
{{- $root := .root -}}
{{- $taken := 0 -}}
{{- $sharing := 0 -}}
{{- range $component, $facts := fromYaml (include "spawnmesh.components" $root) -}}
  {{- if $facts.database -}}
    {{- $pods := include "spawnmesh.mostPods" (dict "root" $root "component" $component "facts" $facts) | int -}}
    {{- $own := (index $root.Values.services $component).connections -}}
    {{- $taken = add $taken (mul $pods (add $facts.listeners (default 0 $own))) -}}
    {{- if not $own }}{{ $sharing = add $sharing $pods }}{{ end -}}
  {{- end -}}
{{- end -}}
{{- $room := sub $root.Values.postgresql.maxConnections $root.Values.postgresql.reservedConnections -}}
{{- $left := sub $room $taken -}}
{{- if lt (int64 $left) (int64 (mul 2 $sharing)) -}}
  {{- fail (printf "the pods at their most need %d database connections, and postgresql.maxConnections less reservedConnections leaves %d: raise maxConnections, or take fewer replicas or smaller pools" (add $taken (mul 2 $sharing)) $room) -}}
{{- end -}}
{{- $own := (index $root.Values.services .component).connections -}}
{{- if $own }}{{ $own }}{{ else }}{{ min 32 (div $left $sharing) }}{{ end -}}
{{- end -}}
