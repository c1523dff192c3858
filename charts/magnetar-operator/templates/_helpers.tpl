{{/* What objects are called. */}}
{{- define "magnetar-operator.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 53 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 53 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* The labels that find the pods. The name is what clusters' network policies let in: it is always this. */}}
{{- define "magnetar-operator.selector" -}}
app.kubernetes.io/name: magnetar-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Of all objects; what people add does not go over ours. */}}
{{- define "magnetar-operator.labels" -}}
{{- $ours := include "magnetar-operator.selector" . | fromYaml -}}
{{- $_ := set $ours "app.kubernetes.io/component" "operator" -}}
{{- $_ := set $ours "app.kubernetes.io/part-of" "magnetar" -}}
{{- $_ := set $ours "app.kubernetes.io/version" .Chart.AppVersion -}}
{{- $_ := set $ours "app.kubernetes.io/managed-by" .Release.Service -}}
{{- $_ := set $ours "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_") -}}
{{- toYaml (merge $ours (default dict .Values.commonLabels)) -}}
{{- end -}}

{{- define "magnetar-operator.account" -}}
{{- $default := ternary (include "magnetar-operator.fullname" .) "default" .Values.serviceAccount.create -}}
{{- default $default .Values.serviceAccount.name -}}
{{- end -}}

{{- define "magnetar-operator.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ default $.Chart.AppVersion .tag }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What clusters' images begin with: where the operator's own comes from. */}}
{{- define "magnetar-operator.imageRepository" -}}
{{- if .Values.clusters.imageRepository -}}
{{- trimSuffix "/" .Values.clusters.imageRepository -}}
{{- else if contains "/" .Values.image.repository -}}
{{- regexReplaceAll "/[^/]*$" .Values.image.repository "" -}}
{{- else -}}
{{- fail "image.repository has no part before its name: set clusters.imageRepository to what clusters' images begin with" -}}
{{- end -}}
{{- end -}}
