{{- define "dieselfs.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "dieselfs.labels" -}}
app.kubernetes.io/name: dieselfs
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "dieselfs.serverSelector" -}}
app.kubernetes.io/name: dieselfs
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: server
{{- end }}

{{- define "dieselfs.nodesSelector" -}}
app.kubernetes.io/name: dieselfs
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: nodes
{{- end }}

{{- define "dieselfs.csiSelector" -}}
app.kubernetes.io/name: dieselfs
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: csi
{{- end }}

{{- /* Every server by its own name: a client connects to another one when one fails. */}}
{{- define "dieselfs.servers" -}}
{{- $name := printf "%s-server" .Release.Name -}}
{{- $namespace := .Release.Namespace -}}
{{- $servers := list -}}
{{- range $index := until (int .Values.server.replicas) -}}
{{- $servers = append $servers (printf "tcp://%s-%d.%s.%s:7070" $name $index $name $namespace) -}}
{{- end -}}
{{- join "," $servers -}}
{{- end }}
