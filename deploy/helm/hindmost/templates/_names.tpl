{{/* Labels that select the pods of a component; call with (list $ "collector"). */}}
{{- define "hindmost.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: hindmost
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/* All labels of a component's objects. */}}
{{- define "hindmost.labels" -}}
{{- $root := index . 0 -}}
{{ include "hindmost.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ $root.Chart.Name }}-{{ $root.Chart.Version }}
{{- end }}

{{/* Boards or rules, as JSON; nothing would be said if a copy of the chart left its link to them out. */}}
{{- define "hindmost.dashboards" -}}
{{- $root := index . 0 -}}
{{- $found := list -}}
{{- range $path, $_ := $root.Files.Glob (printf "dashboards/*.%s" (index . 1)) -}}
{{- $found = append $found $path -}}
{{- end -}}
{{- if not $found -}}
{{- fail "this copy of the chart lacks dashboards, a link to the folder of that name: copy it with cp -RL" -}}
{{- end -}}
{{ toJson $found }}
{{- end }}

{{- define "hindmost.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "hindmost.collector" -}}
{{ .Release.Name }}-collector
{{- end }}

{{- define "hindmost.relay" -}}
{{ .Release.Name }}-relay
{{- end }}

{{- define "hindmost.certificate" -}}
{{ .Values.tls.secretName | default (printf "%s-tls" .Release.Name) }}
{{- end }}

{{- define "hindmost.token" -}}
{{ .Values.token.secretName | default (printf "%s-token" .Release.Name) }}
{{- end }}

{{/* Names by which agents, relays and Prometheus know collector and relays, as JSON. */}}
{{- define "hindmost.hosts" -}}
{{- $hosts := list "localhost" -}}
{{- range $service := list (include "hindmost.collector" .) (include "hindmost.relay" .) -}}
{{- range $name := list $service (printf "*.%s" (include "hindmost.collector" $)) -}}
{{- $hosts = concat $hosts (list (printf "%s.%s.svc" $name $.Release.Namespace) (printf "%s.%s.svc.cluster.local" $name $.Release.Namespace)) -}}
{{- end -}}
{{- end -}}
{{ $hosts | uniq | toJson }}
{{- end }}
