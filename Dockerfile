# Both programs in one image: `relay serve`, `transceiver serve`.
#
#   docker build -t voice-relay:0.1.0 --build-arg VERSION=0.1.0 --build-arg REVISION=$(git rev-parse HEAD) .
#   docker run --rm --network host --read-only --tmpfs /tmp --tmpfs /run/relay:uid=3478 voice-relay:0.1.0 relay --help
#
# Python packages are those of constraints.txt. To build the same bytes again, name BASE by its digest.
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS build
COPY contrib/image /image
RUN ["/image/packages", "/image/build-packages"]
COPY pyproject.toml setup.py constraints.txt MANIFEST.in README.md LICENSE CHANGELOG.md /source/
COPY csrc /source/csrc
COPY relay /source/relay
COPY transceiver /source/transceiver
RUN ["/image/install", "/source", "/opt/voice"]

FROM ${BASE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="voice-relay" \
      org.opencontainers.image.description="A WebRTC relay and transceiver: thousands of voice sessions behind one public UDP port" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
RUN --mount=type=bind,source=contrib/image,target=/image \
    /image/packages /image/runtime-packages && /image/user
COPY --from=build /opt/voice /opt/voice
ENV PATH=/opt/voice/bin:/usr/local/bin:/usr/bin:/bin PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 3478:3478
# SIGTERM drains; both programs are good as process 1.
STOPSIGNAL SIGTERM
CMD ["relay", "--help"]
