{{/* The listed model that a name or an alias leads to: {config, name}. Nothing, if it leads to none. */}}
{{- define "spawnmesh.routedModel" -}}
{{- $aliases := dict -}}
{{- range $alias, $target := .config.aliases }}{{ $_ := set $aliases ($alias | trim | lower) $target }}{{ end -}}
{{- $spelled := trim .name -}}
{{- range until 8 -}}
{{- if hasKey $aliases (lower $spelled) }}{{ $spelled = get $aliases (lower $spelled) | trim }}{{ end -}}
{{- end -}}
{{- $parts := splitList "/" $spelled -}}
{{- $name := printf "%s/%s" (first $parts | trim | lower) (rest $parts | join "/" | trim) -}}
{{- if hasKey .config.models $name }}{{ $name }}{{ end -}}
{{- end -}}

{{/* Refuses a configuration that the router would refuse, and names the value: a pod would end again and again. */}}
{{- define "spawnmesh.checkRouter" -}}
{{- $config := .Values.modelRouter.config -}}
{{- $at := "modelRouter.config" -}}
{{- range $name, $model := $config.models -}}
{{- $parts := splitList "/" $name -}}
{{- $provider := get $config.providers (first $parts) -}}
{{- if or (not $provider) (not (rest $parts | join "/" | trim)) (ne $name (trim $name)) -}}
{{- fail (printf "%s.models has %q: a model is spelled provider/model, with a provider of %s.providers, which has %s" $at $name $at (keys $config.providers | sortAlpha | join ", ")) -}}
{{- end -}}
{{- if gt (int64 $model.max_output) (int64 $model.context_window) -}}
{{- fail (printf "%s.models.%s.max_output is %d, more than its context_window, which is %d" $at $name (int64 $model.max_output) (int64 $model.context_window)) -}}
{{- end -}}
{{- $likeOpenAi := hasPrefix "openai" $provider.kind -}}
{{- if and $model.api (not $likeOpenAi) -}}
{{- fail (printf "%s.models.%s.api is for a provider of the kind openai or openai_compatible, and %s is of the kind %s" $at $name (first $parts) $provider.kind) -}}
{{- end -}}
{{- range $level, $setting := $model.thinking -}}
{{- if not (kindIs "string" $setting) -}}
{{- if $likeOpenAi -}}
{{- fail (printf "%s.models.%s.thinking.%s is a number of tokens, and a provider of the kind %s takes words" $at $name $level $provider.kind) -}}
{{- end -}}
{{- if ne (eq (int64 $setting) 0) (eq $level "off") -}}
{{- fail (printf "%s.models.%s.thinking.%s is %d: the budget of off is 0, and that of the others is more" $at $name $level (int64 $setting)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $names := list (list "primary" $config.primary) -}}
{{- range $index, $name := $config.fallbacks }}{{ $names = append $names (list (printf "fallbacks[%d]" $index) $name) }}{{ end -}}
{{- range $alias, $target := $config.aliases }}{{ $names = append $names (list (printf "aliases.%s" $alias) $target) }}{{ end -}}
{{- range $names -}}
{{- if not (include "spawnmesh.routedModel" (dict "config" $config "name" (index . 1))) -}}
{{- fail (printf "%s.%s is %q, and %s.models has no such model: it has %s" $at (index . 0) (index . 1) $at (keys $config.models | sortAlpha | join ", ")) -}}
{{- end -}}
{{- end -}}
{{- end -}}
