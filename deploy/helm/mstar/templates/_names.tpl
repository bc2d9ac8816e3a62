{{- define "mstar.name" -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "mstar.selector" -}}
app.kubernetes.io/name: mstar
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "mstar.labels" -}}
{{ include "mstar.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}
