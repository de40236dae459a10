{{/* What collector and relay have in common: they listen, prove themselves, and run without any right. */}}
{{- define "hindmost.server.args" -}}
- --listen=0.0.0.0:9460
- --http=0.0.0.0:9461
{{- if .Values.tls.enabled }}
- --tls-cert=/etc/hindmost/tls/tls.crt
- --tls-key=/etc/hindmost/tls/tls.key
- --token-file=/etc/hindmost/token/secret
- --web-config=/etc/hindmost/web/web.yml
{{- else }}
- --insecure
{{- end }}
{{- end }}

{{- define "hindmost.server.container" -}}
image: {{ include "hindmost.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
ports:
  - { name: grpc, containerPort: 9460, protocol: TCP }
  - { name: http, containerPort: 9461, protocol: TCP }
readinessProbe:
  httpGet: { path: /readyz, port: http, scheme: {{ include "hindmost.scheme" . | upper }} }
  periodSeconds: 5
livenessProbe:
  httpGet: { path: /healthz, port: http, scheme: {{ include "hindmost.scheme" . | upper }} }
  periodSeconds: 10
  failureThreshold: 6
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: { drop: [ALL] }
{{- end }}

{{- define "hindmost.server.pod" -}}
enableServiceLinks: false # HINDMOST_COLLECTOR_* is for settings, and would be the Service's addresses
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile: { type: RuntimeDefault }
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "hindmost.server.mounts" -}}
- { name: tmp, mountPath: /tmp }
{{- if .Values.tls.enabled }}
- { name: tls, mountPath: /etc/hindmost/tls, readOnly: true }
- { name: token, mountPath: /etc/hindmost/token, readOnly: true }
- { name: web, mountPath: /etc/hindmost/web, readOnly: true }
{{- end }}
{{- end }}

{{- define "hindmost.server.volumes" -}}
- name: tmp
  emptyDir: {}
{{- if .Values.tls.enabled }}
- name: tls
  secret: { secretName: {{ include "hindmost.certificate" . }}, defaultMode: 0440 }
- name: token
  secret: { secretName: {{ include "hindmost.token" . }}, defaultMode: 0440 }
- name: web
  configMap: { name: {{ .Release.Name }}-web }
{{- end }}
{{- end }}

{{- define "hindmost.scheme" -}}
{{ ternary "https" "http" .Values.tls.enabled }}
{{- end }}
