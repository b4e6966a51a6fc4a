"""The `transceiver` command.

1. Options come from flags, then TRANSCEIVER_* variables, then the TOML file; the first wins.
2. Wrong input is one line on standard error and exit status 2, before anything is bound. What this
   machine refuses (an address that is in use) is one line, too, and exit status 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from relay.wire.group import OneLineGroup
from relay.wire.log import LOG_FORMATS, LOG_LEVELS, get_logger
from relay.wire.sources import Number, SourcedCommand, secrets_readable_by_all, take_file

from . import backend_config, config, log, sites
from .backend_config import KEY_VARIABLE, BackendOptions
from .backends.dialect import FORMATS
from .errors import ConfigError
from .geoip import open_geoip
from .limits import Span
from .pool import Pool


class _Line(click.types.StringParamType):
    """Text with spaces; where several come from one variable, each has a line of its own."""

    envvar_list_splitter = "\n"


@click.group(
    "transceiver",
    cls=OneLineGroup,
    error=ConfigError,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="voice-relay", message="%(version)s")
def main() -> None:
    """The transceiver: answers WebRTC calls and owns their ICE, DTLS and SRTP."""


def _repeatable(command: click.Command) -> list[str]:
    """The parameters that may be given several times."""
    return [
        parameter.name
        for parameter in command.params
        if isinstance(parameter, click.Option) and parameter.multiple and parameter.name
    ]


@main.command(
    cls=SourcedCommand,
    context_settings={"auto_envvar_prefix": "TRANSCEIVER"},
)
@click.option(
    "--config",
    metavar="FILE.toml",
    is_eager=True,
    expose_value=False,
    callback=take_file,
    envvar="TRANSCEIVER_CONFIG",
    help="A TOML file with underscored option names as keys.",
)
@click.option("--http", required=True, metavar="HOST:PORT", help="Where offers are taken.")
@click.option(
    "--media",
    required=True,
    metavar="HOST:PORT",
    help="UDP address of process 0; process i adds i to the port.",
)
@click.option(
    "--media-advertise",
    metavar="HOST",
    help="The address relays reach --media at; required with a wildcard.",
)
@click.option(
    "--workers",
    default="auto",
    show_default=True,
    metavar="N|auto",
    help="Processes; auto: as many as CPUs and quota allow.",
)
@click.option(
    "--cluster",
    default=0,
    show_default=True,
    type=click.IntRange(0, 65_535),
    help="The cluster's id, as its relays have it.",
)
@click.option(
    "--keyring",
    metavar="FILE",
    help="The keys that seal routing tokens: the relays' own file.  [required unless --direct]",
)
@click.option(
    "--ingress",
    multiple=True,
    metavar="NAME=HOST:PORT[,HOST:PORT][@LAT,LON[,WEIGHT]]",
    help="A relay's public address and its place. An answer names the one that is nearest to the caller; "
    "weight 2 counts as half as far, 0 as a last resort.  [required unless --direct]",
)
@click.option(
    "--second-ingress",
    is_flag=True,
    help="Answers name the second-best ingress, too, with lower priority: clients try both.",
)
@click.option(
    "--place",
    metavar="LAT,LON",
    help="Where this cluster is; callers of whom nothing is known count as being here.",
)
@click.option(
    "--cluster-peer",
    multiple=True,
    metavar="ID=URL@LAT,LON[,WEIGHT]",
    help="Another cluster's signaling, with the same --auth-secret, and its place: offers of callers who are nearer "
    "to it are handed over, and requests for its calls forwarded. An entry of this cluster tells --place.",
)
@click.option(
    "--trusted-proxy",
    multiple=True,
    metavar="CIDR",
    help="Proxies in front of --http, whose X-Forwarded-For and CF-* headers say where a caller is.",
)
@click.option(
    "--geoip",
    metavar="FILE.mmdb",
    help="A MaxMind DB that says where an address is, when no header does.",
)
@click.option(
    "--allow-relay",
    multiple=True,
    metavar="CIDR",
    help="Relays to believe; required unless --media is on loopback.",
)
@click.option("--direct", is_flag=True, help="Take packets of clients without a relay, too.")
@click.option(
    "--ipv6-prefix",
    multiple=True,
    metavar="INDEX=PREFIX/64",
    help="The cluster's IPv6 prefixes, as its relays have them.",
)
@click.option(
    "--backend",
    multiple=True,
    metavar="echo|loopback|[NAME=]ws[s]://…",
    help="What answers calls: the echo that takes turns (default), the user's own sound at once, or "
    "a Realtime server. The first is the default, ?backend=NAME chooses another.",
)
@click.option("--backend-model", metavar="MODEL", help="Added to Realtime URLs as ?model=.")
@click.option(
    "--backend-key-file",
    metavar="FILE",
    help=f"The key of Realtime servers; without it, ${KEY_VARIABLE}.",
)
@click.option(
    "--backend-header",
    multiple=True,
    type=_Line(),
    metavar="'NAME: VALUE'",
    help="Sent to Realtime servers; in a variable, a line each.",
)
@click.option(
    "--backend-dialect",
    default="ga",
    show_default=True,
    type=click.Choice(("ga", "beta")),
    help="The names that Realtime servers use.",
)
@click.option(
    "--backend-audio",
    default="pcm24",
    show_default=True,
    type=click.Choice(tuple(FORMATS)),
    help="The sound of Realtime servers: PCM at 24 or 16 kHz, or G.711.",
)
@click.option(
    "--backend-session",
    metavar="FILE.json",
    help="Session fields that every call starts with.",
)
@click.option(
    "--api-keys",
    metavar="FILE",
    help="Server keys, a line each: NAME KEY [calls=N] [per_minute=N].",
)
@click.option(
    "--auth-secret",
    metavar="FILE",
    help="Seals client secrets and call ids; the same on every server that shall take them.",
)
@click.option(
    "--peer",
    metavar="HOST:PORT",
    help="Where process 0 takes requests for its calls from other hosts with the same --auth-secret; "
    "process i adds i to the port.",
)
@click.option(
    "--peer-advertise",
    metavar="HOST",
    help="The address other hosts reach --peer at; required with a wildcard.",
)
@click.option(
    "--redis",
    multiple=True,
    metavar="URL",
    help="Where relays with --ingress-name and other clusters say that they are well, and this one does; better in a "
    "file or in the environment than here.",
)
@click.option(
    "--max-call-seconds",
    type=Number(0, min_open=True),
    metavar="S",
    help="The longest call; the client is told a minute before.",
)
@click.option(
    "--idle-seconds",
    type=Number(0, min_open=True),
    metavar="S",
    help="A call without an event of either side for so long ends.",
)
@click.option(
    "--max-sessions",
    default=1_000,
    show_default=True,
    type=click.IntRange(1, config.MAX_SESSIONS),
    help="Calls at once, over all processes.",
)
@click.option(
    "--insecure-open", is_flag=True, help="Listen beyond loopback although anybody may call."
)
@click.option("--tls-cert", metavar="FILE", help="Serve HTTPS with this certificate chain (PEM).")
@click.option("--tls-key", metavar="FILE", help="Its key (PEM).")
@click.option("--demo-page", is_flag=True, help="Serve the demo page at /.")
@click.option(
    "--record-dir",
    metavar="DIR",
    help="Keep both sides of every call in a directory that exists: as DIR/CALL_ID.wav, or where nothing is decoded (loopback)"
    " as DIR/CALL_ID.client.opus and .server.opus (.wav for G.711).",
)
@click.option(
    "--drain-timeout",
    default=30.0,
    show_default=True,
    type=Number(0),
    metavar="S",
    help="How long calls may go on after SIGTERM.",
)
@click.option(
    "--log-level",
    default="info",
    show_default=True,
    type=click.Choice(LOG_LEVELS),
    help="The least that is logged.",
)
@click.option(
    "--log-format",
    default="console",
    show_default=True,
    type=click.Choice(LOG_FORMATS),
    help="For people or for machines.",
)
def serve(
    http: str,
    media: str,
    media_advertise: str | None,
    workers: str,
    cluster: int,
    keyring: str | None,
    ingress: Sequence[str],
    second_ingress: bool,
    place: str | None,
    cluster_peer: Sequence[str],
    trusted_proxy: Sequence[str],
    geoip: str | None,
    allow_relay: Sequence[str],
    direct: bool,
    ipv6_prefix: Sequence[str],
    backend: Sequence[str],
    backend_model: str | None,
    backend_key_file: str | None,
    backend_header: Sequence[str],
    backend_dialect: str,
    backend_audio: str,
    backend_session: str | None,
    api_keys: str | None,
    auth_secret: str | None,
    peer: str | None,
    peer_advertise: str | None,
    redis: Sequence[str],
    max_call_seconds: float | None,
    idle_seconds: float | None,
    max_sessions: int,
    insecure_open: bool,
    tls_cert: str | None,
    tls_key: str | None,
    demo_page: bool,
    record_dir: str | None,
    drain_timeout: float,
    log_level: str,
    log_format: str,
) -> int:
    """Serve calls: N processes, one UDP port each, one HTTP address."""
    http_at = sites.read_endpoint("--http", http)
    media_at = sites.read_endpoint("--media", media)
    keys, secret = config.read_auth(api_keys, auth_secret)
    guarded = bool(keys) or secret is not None
    config.check_exposure(http_at, guarded=guarded, insecure_open=insecure_open)
    count = config.read_workers(str(workers))
    if media_at.port + count - 1 > 65_535:
        raise ConfigError(f"--media: {media} leaves no ports for {count} processes")
    if not ingress and not direct:
        raise ConfigError("--ingress: is required: it is the address that clients send to")
    address, relays = config.check_media(
        media_at,
        media_advertise,
        config.read_networks("--allow-relay", allow_relay),
        direct=direct,
    )
    prefixes = config.read_prefixes(ipv6_prefix)
    config.check_sealable(address, prefixes)
    cert, key = config.check_tls(tls_cert, tls_key)
    peer_at, peer_address = config.read_peer(peer, peer_advertise, secret)
    own, others = sites.read_clusters(
        cluster_peer, cluster, None if place is None else sites.read_place("--place", place)
    )
    if others and secret is None:
        raise ConfigError("--cluster-peer: needs --auth-secret, by which clusters know each other")
    checked = config.TransceiverConfig(
        http=http_at,
        media=media_at,
        media_advertise=address,
        workers=count,
        cluster_id=cluster,
        keyring=config.read_keyring(keyring, direct=direct),
        ingresses=sites.read_ingresses(ingress),
        second_ingress=second_ingress,
        cluster=own,
        other_clusters=others,
        trusted_proxies=config.read_networks("--trusted-proxy", trusted_proxy),
        geoip=None if geoip is None else open_geoip("--geoip", Path(geoip)),
        allowed_relays=relays,
        direct=direct,
        ipv6_prefixes=prefixes,
        backends=BackendOptions(
            backend_config.read_backends(backend, backend_model),
            backend_config.read_dialect(backend_dialect, backend_audio),
            backend_config.read_headers(backend_key_file, backend_header),
            backend_config.read_session(backend_session),
        ),
        api_keys=keys,
        auth_secret=secret,
        redis=config.read_redis(redis),
        peer=peer_at,
        peer_advertise=peer_address,
        is_open=not guarded or insecure_open,
        span=Span(max_s=max_call_seconds, idle_s=idle_seconds),
        max_sessions=max_sessions,
        demo_page=demo_page,
        record_dir=config.check_record_dir(record_dir),
        tls_cert=cert,
        tls_key=key,
        drain_timeout_s=drain_timeout,
    )
    log.configure(log_level, log_format)
    secrets = {
        "--keyring": keyring,
        "--api-keys": api_keys,
        "--auth-secret": auth_secret,
        "--backend-key-file": backend_key_file,
        "--tls-key": tls_key,
    }
    for option, path in secrets_readable_by_all(click.get_current_context(), secrets):
        get_logger().warning("secret_readable_by_all", option=option, path=path)
    return Pool(checked).run()


_SPACED = [
    "--" + parameter.name.replace("_", "-")
    for parameter in serve.params
    if parameter.name in _repeatable(serve) and not isinstance(parameter.type, _Line)
]
serve.epilog = (
    "Every option can come from a variable, too: --max-sessions from TRANSCEIVER_MAX_SESSIONS. "
    f"Those that may be repeated ({', '.join(_SPACED)}) split on white space. Flags win over variables, variables over the file."
)
