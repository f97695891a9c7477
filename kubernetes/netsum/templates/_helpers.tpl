{{- define "netsum.labels" -}}
app.kubernetes.io/name: netsum
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{ include "netsum.selector" . }}
{{- end }}

{{- define "netsum.selector" -}}
netsum.dev/component: {{ .component }}
{{- end }}

{{- define "netsum.image" -}}
{{ .root.Values.image.registry }}/netsum-{{ .component }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}
{{- end }}

{{- /* The controllers, as clients name them. */ -}}
{{- define "netsum.controllers" -}}
{{- $root := . -}}
{{- range $i := until (int .Values.controllers.replicas) -}}
{{- if $i }},{{ end }}netsum-controller-{{ $i }}.{{ $root.Release.Namespace }}.svc:{{ $root.Values.controllers.port }}
{{- end -}}
{{- end }}

{{- define "netsum.etcd" -}}
{{- if .Values.etcd.endpoints -}}
{{ .Values.etcd.endpoints }}
{{- else -}}
{{- $root := . -}}
{{- range $i := until 3 -}}
{{- if $i }},{{ end }}netsum-etcd-{{ $i }}.netsum-etcd.{{ $root.Release.Namespace }}.svc:2379
{{- end -}}
{{- end -}}
{{- end }}

{{- define "netsum.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "netsum.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "netsum.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Pods of a component on different nodes, if there are enough. */ -}}
{{- define "netsum.apart" -}}
podAntiAffinity:
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels: {netsum.dev/component: {{ . }}}
{{- end }}
