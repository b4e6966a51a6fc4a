{{/* The relay's pod template, the same for a DaemonSet and a Deployment. */}}
{{- define "voice.relayPod" -}}
{{- $relay := .Values.relay -}}
{{- $onHost := eq $relay.mode "hostNetwork" -}}
metadata:
  labels: {{- include "voice.labels" (dict "root" . "component" "relay") | nindent 4 }}
  {{- with $relay.podAnnotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  automountServiceAccountToken: false
  # A Service named relay would set variables named as the program's own.
  enableServiceLinks: false
  {{- if $onHost }}
  # The one exception to the restricted profile: each relay is its node's UDP port, so that no address
  # translation and no connection tracking stands between it and clients.
  hostNetwork: true
  dnsPolicy: ClusterFirstWithHostNet
  {{- end }}
  terminationGracePeriodSeconds: {{ include "voice.grace" $relay }}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $relay.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with $relay.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $relay.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $relay.affinity }}
  affinity: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if eq $relay.mode "loadBalancer" }}
  # externalTrafficPolicy Local sends clients only to nodes with a relay: one each.
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels: {{- include "voice.selector" (dict "root" . "component" "relay") | nindent 10 }}
  {{- end }}
  securityContext: {{- toYaml $relay.podSecurityContext | nindent 4 }}
  {{- if $relay.bufferInit.enabled }}
  initContainers:
    - name: buffers
      image: {{ include "voice.image" . }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      command:
        - sh
        - -euc
        - |
          for name in rmem_max wmem_max; do
            file=/proc/sys/net/core/$name
            if [ "$(cat "$file")" -lt {{ int64 $relay.bufferInit.bytes }} ]; then echo {{ int64 $relay.bufferInit.bytes }} >"$file"; fi
          done
      securityContext: {privileged: true, runAsUser: 0, runAsNonRoot: false}
      resources: {requests: {cpu: 10m, memory: 16Mi}, limits: {memory: 16Mi}}
  {{- end }}
  containers:
    - name: relay
      image: {{ include "voice.image" . }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      command: [relay, serve]
      args:
        {{- range $relay.publicAddresses }}
        - --listen={{ contains ":" . | ternary "[::]" "0.0.0.0" }}:{{ $relay.port }}={{ include "voice.host" . }}:{{ $relay.publicPort }}
        {{- end }}
        - --internal={{ include "voice.podHost" . }}:{{ $relay.internalPort }}
        - --admin={{ include "voice.podHost" . }}:{{ $relay.adminPort }}
        {{- range .Values.network.podCIDRs }}
        - --allow-transceiver={{ . }}:{{ $.Values.transceiver.mediaPort }}-{{ add (int $.Values.transceiver.mediaPort) (int $.Values.transceiver.workers) -1 }}
        {{- end }}
        {{- range $index, $prefix := .Values.network.ipv6Prefixes }}
        - --ipv6-prefix={{ $index }}={{ $prefix }}
        {{- end }}
        - --cluster={{ .Values.clusterId }}
        {{- with $relay.backbone }}
        {{- if .enabled }}
        - --backbone={{ include "voice.podHost" $ }}:{{ .port }}
        {{- range .allow }}
        - --backbone-allow={{ . }}
        {{- end }}
        {{- end }}
        {{- end }}
        {{- if include "voice.hasRedis" . }}
        - --ingress-name={{ $relay.ingressName }}
        {{- end }}
        {{- range $id, $addresses := $relay.clusterRoutes }}
        - --cluster-route={{ $id }}={{ join "," $addresses }}
        {{- end }}
        {{- if $relay.backbone.existingSecret }}
        - --backbone-key=/etc/voice/backbone/backbone-key
        {{- end }}
        - --keyring=/etc/voice/keyring/keyring
        - --workers={{ $relay.workers }}
        - --pin={{ $relay.pin }}
        - --max-flows={{ int64 $relay.maxFlows }}
        - --idle-timeout={{ $relay.idleTimeoutSeconds }}
        {{- range $name, $limit := $relay.limits }}
        - --limit={{ $name }}={{ int64 $limit }}
        {{- end }}
        - --receive-buffer={{ int64 $relay.receiveBufferBytes }}
        - --drain-timeout={{ $relay.drainTimeoutSeconds }}
        - --drain-min-flows={{ int64 $relay.drainMinFlows }}
        - --run-dir=/run/relay
        - --log-level={{ .Values.logLevel }}
        - --log-format=json
      env:
        {{- include "voice.podIpEnv" . | nindent 8 }}
        {{- if include "voice.hasRedis" . }}
        - name: RELAY_REDIS
          valueFrom: {secretKeyRef: {name: {{ include "voice.redisSecret" . }}, key: url}}
        {{- end }}
        {{- if include "voice.hasCaBundle" . }}
        {{- include "voice.caBundleEnv" . | nindent 8 }}
        {{- end }}
      ports:
        - {name: media, protocol: UDP, containerPort: {{ $relay.port }}{{ if eq $relay.mode "hostPort" }}, hostPort: {{ $relay.publicPort }}{{ end }}}
        - {name: admin, protocol: TCP, containerPort: {{ $relay.adminPort }}}
        {{- if $relay.backbone.enabled }}
        - {name: backbone, protocol: UDP, containerPort: {{ $relay.backbone.port }}}
        {{- end }}
      startupProbe:
        httpGet: {path: /healthz, port: admin}
        periodSeconds: 1
        failureThreshold: 60
      livenessProbe:
        httpGet: {path: /healthz, port: admin}
        periodSeconds: 5
        timeoutSeconds: 3
        failureThreshold: 6
      readinessProbe:
        httpGet: {path: /readyz, port: admin}
        periodSeconds: 2
        timeoutSeconds: 2
        failureThreshold: 2
      {{- if int $relay.preStopSeconds }}
      lifecycle:
        preStop: {exec: {command: [sleep, {{ $relay.preStopSeconds | quote }}]}}
      {{- end }}
      resources: {{- toYaml $relay.resources | nindent 8 }}
      securityContext: {{- toYaml $relay.containerSecurityContext | nindent 8 }}
      volumeMounts:
        - {name: keyring, mountPath: /etc/voice/keyring, readOnly: true}
        {{- if $relay.backbone.existingSecret }}
        - {name: backbone, mountPath: /etc/voice/backbone, readOnly: true}
        {{- end }}
        {{- if include "voice.hasCaBundle" . }}
        {{- include "voice.caBundleMount" . | nindent 8 }}
        {{- end }}
        - {name: run, mountPath: /run/relay}
        - {name: tmp, mountPath: /tmp}
  volumes:
    - name: keyring
      secret: {secretName: {{ include "voice.keyringSecret" . }}, defaultMode: 0440}
    {{- with $relay.backbone.existingSecret }}
    - name: backbone
      secret: {secretName: {{ . }}, defaultMode: 0440}
    {{- end }}
    {{- if include "voice.hasCaBundle" . }}
    {{- include "voice.caBundleVolume" . | nindent 4 }}
    {{- end }}
    - name: run
      emptyDir: {medium: Memory, sizeLimit: 1Mi}
    - name: tmp
      emptyDir: {medium: Memory, sizeLimit: 16Mi}
{{- end -}}
