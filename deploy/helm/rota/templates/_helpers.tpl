{{- define "rota.name" -}}
{{- if contains "rota" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-rota" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "rota.selector" -}}
app.kubernetes.io/name: rota
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "rota.labels" -}}
{{ include "rota.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "rota.program" -}}
{{- if .Values.program.configMap }}{{ printf "/srv/program/%s" .Values.program.key }}{{ else }}{{ .Values.program.path }}{{ end }}
{{- end }}

{{/* Pod settings that all components share: identity, rights, image. Workers run your code, so only servers get the secret of the
     client of the provider. */}}
{{- define "rota.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
volumes:
  - name: data
    {{- if .root.Values.data.existingClaim }}
    persistentVolumeClaim:
      claimName: {{ .root.Values.data.existingClaim }}
    {{- else }}
    emptyDir:
      sizeLimit: {{ .root.Values.data.emptyDirSize }}
    {{- end }}
  - name: tmp
    emptyDir: {}
  - name: database
    secret:
      secretName: {{ required "database.existingSecret is required: the name of a secret with the URL of the database" .root.Values.database.existingSecret }}
      items:
        - key: {{ .root.Values.database.key }}
          path: url
  {{- if .root.Values.serviceToken.existingSecret }}
  - name: service-token
    secret:
      secretName: {{ .root.Values.serviceToken.existingSecret }}
      items:
        - key: {{ .root.Values.serviceToken.key }}
          path: token
  {{- end }}
  {{- if and (eq .component "server") .root.Values.oidc.existingSecret }}
  - name: oidc
    secret:
      secretName: {{ .root.Values.oidc.existingSecret }}
      items:
        - key: {{ .root.Values.oidc.key }}
          path: client-secret
  {{- end }}
  {{- if .root.Values.program.configMap }}
  - name: program
    configMap:
      name: {{ .root.Values.program.configMap }}
  {{- end }}
{{- end }}

{{- define "rota.container" -}}
image: {{ printf "%s:%s" .root.Values.image.repository (.root.Values.image.tag | default .root.Chart.AppVersion) }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
volumeMounts:
  - name: data
    mountPath: /data
  - name: tmp
    mountPath: /tmp
  - name: database
    mountPath: /run/secrets/database
    readOnly: true
  {{- if .root.Values.serviceToken.existingSecret }}
  - name: service-token
    mountPath: /run/secrets/service-token
    readOnly: true
  {{- end }}
  {{- if and (eq .component "server") .root.Values.oidc.existingSecret }}
  - name: oidc
    mountPath: /run/secrets/oidc
    readOnly: true
  {{- end }}
  {{- if .root.Values.program.configMap }}
  - name: program
    mountPath: /srv/program
    readOnly: true
  {{- end }}
env:
  - name: ROTA_DATA_DIR # below the volume, whose top belongs to root: Rota closes the directory to other users
    value: /data/rota
  - name: ROTA_DATABASE_URL_FILE
    value: /run/secrets/database/url
  {{- if .root.Values.serviceToken.existingSecret }}
  - name: ROTA_SERVICE_TOKEN_FILE
    value: /run/secrets/service-token/token
  {{- end }}
  {{- if and (eq .component "server") .root.Values.oidc.existingSecret }}
  - name: ROTA_OIDC_CLIENT_SECRET_FILE
    value: /run/secrets/oidc/client-secret
  {{- end }}
  - name: ROTA_ALLOW_REMOTE # the service can be reached in the cluster: see the notes for the first key
    value: "true"
  - name: ROTA_DRAIN_SECONDS
    value: {{ .root.Values.drainSeconds | quote }}
  - name: ROTA_CANCEL_GRACE_SECONDS
    value: {{ .root.Values.cancelGraceSeconds | quote }}
  {{- with .root.Values.publicUrl }}
  - name: ROTA_PUBLIC_URL
    value: {{ . | quote }}
  {{- end }}
  {{- with .root.Values.trustedProxies }}
  - name: ROTA_TRUSTED_PROXIES
    value: {{ . | quote }}
  {{- end }}
  {{- range $name, $value := .root.Values.settings }}
  - name: {{ $name }}
    value: {{ $value | quote }}
  {{- end }}
{{- end }}

{{/* Where the pods of a component run: spread over nodes if possible, and as its values say. */}}
{{- define "rota.placement" -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "rota.selector" . | nindent 8 }}
{{- with .values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
