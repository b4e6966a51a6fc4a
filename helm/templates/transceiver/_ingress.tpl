{{/* This cluster's relays as an item of transceiver.ingresses, in YAML. */}}
{{- define "voice.ownIngress" -}}
{{- $relay := .Values.relay -}}
name: {{ $relay.ingressName }}
addresses:
{{- range $relay.publicAddresses }}
  - {{ printf "%s:%v" (include "voice.host" .) $relay.publicPort | quote }}
{{- end }}
location: {{ $relay.location | quote }}
weight: {{ $relay.ingressWeight }}
{{- end -}}
