{{/* The PulsarCluster's name, which all that is made for it begins with. */}}
{{- define "magnetar-cluster.name" -}}
{{- $name := default .Release.Name .Values.name -}}
{{- if or (gt (len $name) 40) (not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name)) -}}
{{- fail (printf "a cluster cannot be called %q: at most 40 characters, a to z, 0 to 9 and -, beginning with a letter. Set `name`, or give the release another one" $name) -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{/* Of all objects; what people add does not go over ours. */}}
{{- define "magnetar-cluster.labels" -}}
{{- $ours := dict "app.kubernetes.io/name" "magnetar-cluster" "app.kubernetes.io/instance" .Release.Name -}}
{{- $_ := set $ours "app.kubernetes.io/part-of" (include "magnetar-cluster.name" .) -}}
{{- $_ := set $ours "app.kubernetes.io/version" (include "magnetar-cluster.version" . | trunc 63 | trimAll "-_.") -}}
{{- $_ := set $ours "app.kubernetes.io/managed-by" .Release.Service -}}
{{- $_ := set $ours "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_") -}}
{{- toYaml (merge $ours (default dict .Values.labels)) -}}
{{- end -}}

{{- define "magnetar-cluster.version" -}}
{{- default .Chart.AppVersion .Values.cluster.version -}}
{{- end -}}

{{/* A value deep in `cluster`, given as (list values "a.b.c" default): the CRD has the defaults, not this chart. */}}
{{- define "magnetar-cluster.get" -}}
{{- $found := index . 0 -}}
{{- range splitList "." (index . 1) -}}
{{- $found = get (default dict $found) . -}}
{{- end -}}
{{- if kindIs "invalid" $found -}}{{ index . 2 }}{{- else if and (kindIs "string" $found) (eq $found "") -}}{{ index . 2 }}{{- else -}}{{ $found }}{{- end -}}
{{- end -}}

{{/* Not empty where the cluster is one that others run: `attach` may be there with nothing in it. */}}
{{- define "magnetar-cluster.attached" -}}
{{- if hasKey (default dict .Values.cluster) "attach" -}}{{- if not (kindIs "invalid" .Values.cluster.attach) -}}true{{- end -}}{{- end -}}
{{- end -}}

{{/* The Service that clients connect to. */}}
{{- define "magnetar-cluster.service" -}}
{{- $proxies := include "magnetar-cluster.get" (list .Values.cluster "proxy.replicas" "2") -}}
{{- include "magnetar-cluster.name" . -}}
{{- if include "magnetar-cluster.attached" . -}}-read-only-broker{{- else -}}{{- ternary "-broker" "-proxy" (eq $proxies "0") -}}{{- end -}}
{{- end -}}

{{- define "magnetar-cluster.serviceUrl" -}}
{{- $host := printf "%s.%s" (include "magnetar-cluster.service" .) .Release.Namespace -}}
{{- if .Values.cluster.tls -}}pulsar+ssl://{{ $host }}:6651{{- else -}}pulsar://{{ $host }}:6650{{- end -}}
{{- end -}}

{{- define "magnetar-cluster.adminUrl" -}}
{{- $host := printf "%s.%s" (include "magnetar-cluster.service" .) .Release.Namespace -}}
{{- if .Values.cluster.tls -}}https://{{ $host }}:8443{{- else -}}http://{{ $host }}:8080{{- end -}}
{{- end -}}
