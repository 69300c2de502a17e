{{- define "simurgh.name" -}}
{{- if contains "simurgh" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-simurgh" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "simurgh.selector" -}}
app.kubernetes.io/name: simurgh
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "simurgh.labels" -}}
{{ include "simurgh.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 }}
{{- end }}

{{- define "simurgh.check" -}}
{{- $many := or .Values.autoscaling.enabled (gt (int .Values.replicas) 1) }}
{{- if and $many (not .Values.nats.servers) }}
{{- fail "replicas above 1 and autoscaling need nats.servers: without a broker each pod is a server of its own" }}
{{- end }}
{{- if and .Values.nats.servers (not .Values.existingSecret) }}
{{- fail "nats.servers needs existingSecret, a Secret with NATS_PASSWORD and CLUSTER_SECRET" }}
{{- end }}
{{- if and .Values.nats.servers .Values.persistence.enabled }}
{{- fail "persistence is for a single node: remove it or nats.servers, whose JetStream stores histories" }}
{{- end }}
{{- if and .Values.ingress.enabled (not .Values.ingress.host) }}
{{- fail "ingress.enabled needs ingress.host" }}
{{- end }}
{{- end }}
