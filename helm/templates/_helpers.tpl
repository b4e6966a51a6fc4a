{{- define "voice.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* Room for the longest suffix below 63 characters (RFC 1123). */}}
{{- define "voice.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "voice.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "voice.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels that select pods: they never change. Call with (dict "root" $ "component" "relay"). */}}
{{- define "voice.selector" -}}
app.kubernetes.io/name: {{ include "voice.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end -}}

{{- define "voice.labels" -}}
{{ include "voice.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "voice.image" -}}
{{- with .Values.image -}}
{{- with .registry }}{{ . }}/{{ end -}}
{{ .repository }}
{{- if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end -}}
{{- end -}}
{{- end -}}

{{- define "voice.keyringSecret" -}}
{{- .Values.keyring.existingSecret | default (printf "%s-keyring" (include "voice.fullname" .)) -}}
{{- end -}}

{{- define "voice.authSecret" -}}
{{- .Values.auth.existingSecret | default (printf "%s-auth" (include "voice.fullname" .)) -}}
{{- end -}}

{{- define "voice.hasRedis" -}}
{{- with .Values.redis -}}
{{- if or .url .existingSecret .bundled.enabled }}yes{{ end -}}
{{- end -}}
{{- end -}}

{{- define "voice.redisSecret" -}}
{{- .Values.redis.existingSecret | default (printf "%s-redis" (include "voice.fullname" .)) -}}
{{- end -}}

{{- define "voice.hasCaBundle" -}}
{{- with .Values.caBundle -}}
{{- if or .existingConfigMap .existingSecret }}yes{{ end -}}
{{- end -}}
{{- end -}}

{{/* What OpenSSL reads in place of its file of authorities; its directory, which has the system's, stays. */}}
{{- define "voice.caBundleEnv" -}}
- name: SSL_CERT_FILE
  value: /etc/voice/ca/ca.crt
{{- end -}}

{{- define "voice.caBundleMount" -}}
- {name: ca, mountPath: /etc/voice/ca, readOnly: true}
{{- end -}}

{{- define "voice.caBundleVolume" -}}
{{- with .Values.caBundle -}}
- name: ca
  {{- if .existingConfigMap }}
  configMap:
    name: {{ .existingConfigMap }}
  {{- else }}
  secret:
    secretName: {{ .existingSecret }}
    defaultMode: 0440
  {{- end }}
    items: [{key: {{ .key }}, path: ca.crt}]
{{- end -}}
{{- end -}}

{{/* IPv6 in brackets. */}}
{{- define "voice.host" -}}
{{- if contains ":" . }}[{{ . }}]{{ else }}{{ . }}{{ end -}}
{{- end -}}

{{/* What follows the place of an ingress or a cluster; nothing when it is 1. */}}
{{- define "voice.weight" -}}
{{- if and (hasKey . "weight") (ne (toString .weight) "1") }},{{ .weight }}{{ end -}}
{{- end -}}

{{/* The wildcard of the family between relays and transceivers. */}}
{{- define "voice.any" -}}
{{- eq .Values.network.ipFamily "IPv6" | ternary "[::]" "0.0.0.0" -}}
{{- end -}}

{{/* The pod's own address as the host of HOST:PORT. */}}
{{- define "voice.podHost" -}}
{{- eq .Values.network.ipFamily "IPv6" | ternary "[$(POD_IP)]" "$(POD_IP)" -}}
{{- end -}}

{{/* On the host's network this is the node's address. */}}
{{- define "voice.podIpEnv" -}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
{{- end -}}

{{- define "voice.relayWorkersMax" -}}
{{- eq (toString .Values.relay.workers) "auto" | ternary 128 .Values.relay.workers -}}
{{- end -}}

{{/* Seconds that a pod needs to end: ending what is left takes a few more than the drain.
Call with the values of relay or transceiver. */}}
{{- define "voice.graceNeeded" -}}
{{- add (int .preStopSeconds) (int .drainTimeoutSeconds) 10 -}}
{{- end -}}

{{- define "voice.grace" -}}
{{- $needed := int (include "voice.graceNeeded" .) -}}
{{- if kindIs "invalid" .terminationGracePeriodSeconds }}{{ add $needed 5 }}
{{- else }}{{ int .terminationGracePeriodSeconds }}{{ end -}}
{{- end -}}

{{/* What a schema cannot say. */}}
{{- define "voice.check" -}}
{{- range $name := list "relay" "transceiver" -}}
{{- $values := index $.Values $name -}}
{{- $needed := int (include "voice.graceNeeded" $values) -}}
{{- if lt (int (include "voice.grace" $values)) $needed -}}
{{- fail (printf "%s.terminationGracePeriodSeconds is %v, but preStopSeconds %v + drainTimeoutSeconds %v + 10 need %d: Kubernetes would kill %s in the middle of its drain" $name $values.terminationGracePeriodSeconds $values.preStopSeconds $values.drainTimeoutSeconds $needed $name) -}}
{{- end -}}
{{- end -}}
{{- if not .Values.relay.publicAddresses -}}
{{- fail "relay.publicAddresses is empty: what address do clients reach the relays at? For example: --set 'relay.publicAddresses={198.51.100.7}'" -}}
{{- end -}}
{{- if and .Values.relay.bufferInit.enabled (ne .Values.relay.mode "hostNetwork") -}}
{{- fail "relay.bufferInit.enabled needs relay.mode hostNetwork: net.core.rmem_max is the node's, and other pods do not see it" -}}
{{- end -}}
{{- with .Values.relay -}}
{{- if and .backbone.enabled (not .backbone.allow) -}}
{{- fail "relay.backbone.enabled needs relay.backbone.allow: the networks of other clusters' relays" -}}
{{- end -}}
{{- if and .backbone.existingSecret (not .backbone.enabled) (not .clusterRoutes) -}}
{{- fail "relay.backbone.existingSecret is a key for nothing: neither relay.backbone.enabled nor relay.clusterRoutes is set" -}}
{{- end -}}
{{- if hasKey .clusterRoutes (toString $.Values.clusterId) -}}
{{- fail (printf "relay.clusterRoutes has %v, which is this cluster's own clusterId" $.Values.clusterId) -}}
{{- end -}}
{{- if and (or .backbone.enabled .clusterRoutes) (not $.Values.keyring.existingSecret) -}}
{{- fail "relay.backbone and relay.clusterRoutes need keyring.existingSecret: all clusters open each other's tokens with one keyring" -}}
{{- end -}}
{{- end -}}
{{- with .Values.transceiver -}}
{{- if and .clusterPeers (not $.Values.auth.existingSecret) -}}
{{- fail "transceiver.clusterPeers needs auth.existingSecret: clusters know each other by the same auth secret and API keys" -}}
{{- end -}}
{{- if and .clusterPeers (not $.Values.relay.location) -}}
{{- fail "transceiver.clusterPeers needs relay.location: where is this cluster?" -}}
{{- end -}}
{{- if ne (empty .geoip.file) (empty .geoip.volume) -}}
{{- fail "transceiver.geoip needs both file and volume" -}}
{{- end -}}
{{- end -}}
{{- if and (eq .Values.network.ipFamily "IPv6") (not .Values.network.ipv6Prefixes) -}}
{{- fail "network.ipFamily IPv6 needs network.ipv6Prefixes: a token has room for an address only under a named /64" -}}
{{- end -}}
{{- with .Values.caBundle -}}
{{- if and .existingConfigMap .existingSecret -}}
{{- fail "caBundle: one of existingConfigMap and existingSecret, not both" -}}
{{- end -}}
{{- end -}}
{{- with .Values.redis -}}
{{- if gt (len (compact (list .url .existingSecret (.bundled.enabled | ternary "bundled" "")))) 1 -}}
{{- fail "redis: one of url, existingSecret and bundled.enabled, not several" -}}
{{- end -}}
{{- if and (ne .fleetKey "url") (not .existingSecret) -}}
{{- fail "redis.fleetKey needs redis.existingSecret: the chart's own Secret has the key url alone" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.transceiver.ingress.enabled (not .Values.transceiver.ingress.host) -}}
{{- fail "transceiver.ingress.enabled needs transceiver.ingress.host" -}}
{{- end -}}
{{- end -}}
