{{- define "sandbox-restore.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* Name of the operator's objects; the others' names begin with it. */}}
{{- define "sandbox-restore.fullname" -}}
{{- $name := include "sandbox-restore.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* What never changes in the life of a release: for selectors. Takes (list $ component). */}}
{{- define "sandbox-restore.selector" -}}
{{- $top := index . 0 -}}
app.kubernetes.io/name: {{ include "sandbox-restore.name" $top }}
app.kubernetes.io/instance: {{ $top.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{/* Labels of an object. Takes (list $ component). */}}
{{- define "sandbox-restore.labels" -}}
{{- $top := index . 0 -}}
{{ include "sandbox-restore.selector" . }}
app.kubernetes.io/version: {{ $top.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $top.Release.Service }}
{{- with $top.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "sandbox-restore.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{- printf "%s@%s" .repository .digest -}}
{{- else -}}
{{- printf "%s:%s" .repository (.tag | default $.Chart.AppVersion) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "sandbox-restore.pullSecrets" -}}
{{- with .Values.image.pullSecrets -}}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end -}}
{{- end -}}

{{- define "sandbox-restore.account" -}}
{{- .Values.operator.serviceAccount.name | default (include "sandbox-restore.fullname" .) -}}
{{- end -}}

{{- define "sandbox-restore.leaseNamespace" -}}
{{- .Values.settings.leaseNamespace | default .Release.Namespace -}}
{{- end -}}

{{- define "sandbox-restore.agent" -}}
{{- printf "%s-node-agent" (include "sandbox-restore.fullname" .) -}}
{{- end -}}

{{- define "sandbox-restore.agentNamespace" -}}
{{- .Values.nodeAgent.namespace | default .Release.Namespace -}}
{{- end -}}

{{- define "sandbox-restore.agentAccount" -}}
{{- .Values.nodeAgent.serviceAccount.name | default (include "sandbox-restore.agent" .) -}}
{{- end -}}

{{/* The name of the ConfigMap that holds the pod template. */}}
{{- define "sandbox-restore.podTemplateConfigMap" -}}
{{- .Values.podTemplate.existingConfigMap | default (printf "%s-pod-template" (include "sandbox-restore.fullname" .)) -}}
{{- end -}}

{{/*
The pod template as the operator reads it. A runner image given beside it takes the place of the
one in it.
*/}}
{{- define "sandbox-restore.podTemplate" -}}
{{- $spec := deepCopy .Values.podTemplate.spec -}}
{{- $image := .Values.podTemplate.image -}}
{{- if and $image $spec.containers -}}
{{- $_ := set (first $spec.containers) "image" $image -}}
{{- end -}}
{{- dict "apiVersion" "v1" "kind" "Pod" "metadata" .Values.podTemplate.metadata "spec" $spec | toYaml -}}
{{- end -}}

{{/* The environment that a map of settings means: lists with commas, nothing for what is empty. */}}
{{- define "sandbox-restore.environment" -}}
{{- range $key, $value := . -}}
{{- $text := toString $value -}}
{{- if kindIs "slice" $value -}}
{{- $text = join "," $value -}}
{{- else if has (kindOf $value) (list "float64" "int64" "int") -}}
{{- $text = $value | int64 | toString -}}
{{- end -}}
{{- if $text }}
SPACE_SANDBOX_RESTORE_{{ snakecase $key | upper }}: {{ $text | quote }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Settings of the operator. */}}
{{- define "sandbox-restore.operatorSettings" -}}
{{- $own := dict "leaseNamespace" (include "sandbox-restore.leaseNamespace" .) -}}
{{- include "sandbox-restore.environment" (mergeOverwrite (deepCopy .Values.settings) $own) | trim -}}
{{- end -}}

{{/* Settings of the node agent: its own, and those that both read. */}}
{{- define "sandbox-restore.agentSettings" -}}
{{- $shared := pick .Values.settings "hostCpuLabel" "healthHost" "healthPort" "logLevel" "logFormat" -}}
{{- include "sandbox-restore.environment" (mergeOverwrite (deepCopy .Values.nodeAgent.settings) $shared) | trim -}}
{{- end -}}

{{/* A container that may do nothing to its node: the restricted Pod Security Standard. */}}
{{- define "sandbox-restore.restrictedContainer" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "sandbox-restore.restrictedPod" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{/* Where the database's URL is mounted, and from which Secret. Takes (dict "secret" … "key" …). */}}
{{- define "sandbox-restore.databaseVolume" -}}
name: database
secret:
  secretName: {{ .secret }}
  defaultMode: 0440
  items:
    - {key: {{ .key | quote }}, path: url}
{{- end -}}

{{- define "sandbox-restore.databaseFolder" -}}
/etc/sandbox-restore/database
{{- end -}}

{{/* What the operator does where the restores are: everywhere, or in the namespaces served. */}}
{{- define "sandbox-restore.servedRules" -}}
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [space.pplx.net]
  resources: [sandboxrestores]
  verbs: [get, list, watch, delete]
- apiGroups: [space.pplx.net]
  resources: [sandboxrestores/status]
  verbs: [patch]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create]
{{- end -}}

{{/*
What the pod template does not ask of a node is refused to every restore pod. Images are not held
against it: while operators are replaced two templates are in use, and registries are rewritten.
*/}}
{{- define "sandbox-restore.pinnedToTemplate" -}}
{{- $spec := (fromYaml (include "sandbox-restore.podTemplate" .)).spec -}}
{{- $account := $spec.serviceAccountName | default $spec.serviceAccount | default "default" -}}
{{- $paths := list -}}
{{- range $spec.volumes -}}
{{- with .hostPath -}}
{{- $paths = append $paths .path -}}
{{- end -}}
{{- end -}}
{{- $privileged := false -}}
{{- $added := list -}}
{{- range concat ($spec.containers | default list) ($spec.initContainers | default list) -}}
{{- with .securityContext -}}
{{- $privileged = or $privileged (.privileged | default false) -}}
{{- with .capabilities -}}
{{- $added = concat $added (.add | default list) -}}
{{- end -}}
{{- end -}}
{{- end -}}
# What the pod template does not have (podTemplate), no restore pod has.
- expression: >-
    request.operation != "CREATE" ||
    object.spec.?serviceAccountName.orValue("default") == {{ $account | quote }}
  message: the operator makes pods of the service account {{ $account }} alone
  reason: Forbidden
{{- range $field := list "hostNetwork" "hostPID" "hostIPC" }}
{{- if not (get $spec $field) }}
- expression: >-
    request.operation != "CREATE" || !object.spec.?{{ $field }}.orValue(false)
  message: the operator makes no pods with {{ $field }}
  reason: Forbidden
{{- end }}
{{- end }}
- expression: >-
    request.operation != "CREATE" || object.spec.?volumes.orValue([]).all(v,
    !has(v.hostPath) || v.hostPath.path in {{ $paths | uniq | toJson }})
  message: the operator makes pods with the pod template's hostPath volumes alone
  reason: Forbidden
{{- if not $privileged }}
- expression: >-
    request.operation != "CREATE" ||
    (object.spec.containers + object.spec.?initContainers.orValue([])).all(c,
    !c.?securityContext.?privileged.orValue(false))
  message: the operator makes no privileged containers
  reason: Forbidden
- expression: >-
    request.operation != "CREATE" ||
    (object.spec.containers + object.spec.?initContainers.orValue([])).all(c,
    c.?securityContext.?capabilities.?add.orValue([]).all(a, a in {{ $added | uniq | toJson }}))
  message: the operator makes containers with the pod template's capabilities alone
  reason: Forbidden
{{- end }}
{{- end -}}

{{/* Parts of the network policies. The kubelet's probes come from the node, which is let in. */}}
{{- define "sandbox-restore.scraped" -}}
ingress:
{{- if .Values.networkPolicy.metricsFrom }}
  - from: {{- toYaml .Values.networkPolicy.metricsFrom | nindent 6 }}
    ports:
      - {port: health, protocol: TCP}
{{- else }} []
{{- end }}
{{- end -}}

{{/* Takes a peer of the values (to, ports), gives one egress rule. */}}
{{- define "sandbox-restore.egress" -}}
- ports:
  {{- range .ports }}
    - {port: {{ . }}, protocol: TCP}
  {{- end }}
  {{- with .to }}
  to: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{- define "sandbox-restore.toDns" -}}
- ports:
    - {port: 53, protocol: UDP}
    - {port: 53, protocol: TCP}
  {{- with .Values.networkPolicy.dns.to }}
  to: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{- define "sandbox-restore.toApiServer" -}}
{{ include "sandbox-restore.egress" .Values.networkPolicy.apiServer }}
{{- end -}}

{{- define "sandbox-restore.toDatabase" -}}
{{ include "sandbox-restore.egress" .Values.networkPolicy.database }}
{{- end -}}
