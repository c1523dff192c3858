{{/* What objects are called. A Service among them cannot be called as freely as a release. */}}
{{- define "magnetar-operator.fullname" -}}
{{- $name := .Values.fullnameOverride -}}
{{- if not $name -}}
{{- $name = ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) (contains .Chart.Name .Release.Name) | trunc 53 | trimSuffix "-" -}}
{{- end -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name) -}}
{{- fail (printf "nothing can be called %q: a to z, 0 to 9 and -, beginning with a letter. Set fullnameOverride, or give the release another name" $name) -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{/* The labels that find the pods. The name is what clusters' network policies let in: it is always this. */}}
{{- define "magnetar-operator.selector" -}}
app.kubernetes.io/name: magnetar-operator
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{/* Of all objects; what people add does not go over ours. */}}
{{- define "magnetar-operator.labels" -}}
{{- toYaml (merge (include "magnetar-operator.ownLabels" . | fromYaml) (default dict .Values.commonLabels)) -}}
{{- end -}}

{{- define "magnetar-operator.ownLabels" -}}
{{- $ours := include "magnetar-operator.selector" . | fromYaml -}}
{{- $_ := set $ours "app.kubernetes.io/component" "operator" -}}
{{- $_ := set $ours "app.kubernetes.io/part-of" "magnetar" -}}
{{- $_ := set $ours "app.kubernetes.io/version" .Chart.AppVersion -}}
{{- $_ := set $ours "app.kubernetes.io/managed-by" .Release.Service -}}
{{- $_ := set $ours "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_") -}}
{{- toYaml $ours -}}
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
