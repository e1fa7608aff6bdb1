{{/* Refuses values with which people could not sign in. */}}
{{- define "spawnmesh.checkConsole" -}}
{{- $console := .Values.console -}}
{{- if and (hasPrefix "http://" $console.publicUrl) (ne .Values.tls.mode "none") -}}
{{- fail "console.publicUrl has to start with https://: the cookies of people are tokens. On your own machine http:// is accepted for a trial, where tls.mode is none" -}}
{{- end -}}
{{- if $console.oidc.issuer -}}
{{- $audiences := list -}}
{{- range .Values.tokens.oidcIssuers -}}
{{- if eq .issuer $console.oidc.issuer }}{{ $audiences = append $audiences .audience }}{{ end -}}
{{- end -}}
{{- if not $audiences -}}
{{- fail (printf "console.oidc.issuer %s is not among tokens.oidcIssuers: no service would accept its tokens" $console.oidc.issuer) -}}
{{- end -}}
{{- if and (eq $console.oidc.token "id") (not (has $console.oidc.clientId $audiences)) -}}
{{- fail (printf "console.oidc.token is id, and an ID token has the audience %s, its client: name it as audience of the issuer in tokens.oidcIssuers" $console.oidc.clientId) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The variables that only the console has, without their prefix, as a map. */}}
{{- define "spawnmesh.consoleEnv" -}}
{{- $console := .Values.console -}}
PUBLIC_URL: {{ $console.publicUrl | quote }}
COOKIE_KEY_FILE: /run/secrets/console/cookie-keys
{{- with $console.oidc }}
{{- if .issuer }}
SIGN_IN_ISSUER: {{ .issuer | quote }}
SIGN_IN_CLIENT_ID: {{ .clientId | quote }}
SIGN_IN_TOKEN: {{ .token }}
SIGN_IN_SCOPES: {{ join " " .scopes | quote }}
{{- with .parameters }}
SIGN_IN_PARAMETERS: {{ toJson . | quote }}
{{- end }}
{{- if .clientSecretRef.name }}
SIGN_IN_CLIENT_SECRET_FILE: /run/secrets/console/client-secret
{{- end }}
{{- end }}
{{- end }}
{{- with $console.traces }}
{{- if .url }}
TRACES_URL: {{ .url | quote }}
{{- if .headersSecretRef.name }}
TRACES_HEADERS_FILE: /run/secrets/console/traces-headers
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The files of the console, from the Secrets that have them. */}}
{{- define "spawnmesh.consoleSecrets" -}}
- secret:
    name: {{ .Values.console.cookieKeySecret | default "console-cookie-keys" }}
    items: [{key: cookie-keys, path: cookie-keys}]
{{- with .Values.console.oidc }}
{{- if and .issuer .clientSecretRef.name }}
- secret:
    name: {{ .clientSecretRef.name }}
    items: [{key: {{ .clientSecretRef.key }}, path: client-secret}]
{{- end }}
{{- end }}
{{- with .Values.console.traces }}
{{- if and .url .headersSecretRef.name }}
- secret:
    name: {{ .headersSecretRef.name }}
    items: [{key: {{ .headersSecretRef.key }}, path: traces-headers}]
{{- end }}
{{- end }}
{{- end -}}
