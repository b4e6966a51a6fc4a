"""`relay serve`: its options, where they may come from, and the configuration that they make.

1. Every option may come from a flag, from RELAY_NAME in the environment (repeatable ones split on
   whitespace) or from the TOML file of --config; the first of these that speaks wins.
2. What runs a relay is imported when it runs, not for a help text.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from relay.options import log_options, option
from relay.wire.sources import Number, SourcedCommand, secrets_readable_by_all, take_file

LIMIT_NAMES = (
    "token-new-flows-per-s",
    "token-established-flows",
    "flow-checks-per-s",
    "transceiver-new-flows-per-s",
    "source-unanswered",
    "cache-lookups-per-s",
)
"""As relay.config knows them, which is not imported for a help text."""


@click.command(cls=SourcedCommand)
@option(
    "--listen",
    "Public address, and what clients are told instead; may be repeated. ADDR `*` is every address.",
    metavar="ADDR:PORT[=PUBLIC:PORT]",
    multiple=True,
    required=True,
)
@option(
    "--workers",
    "Worker processes; auto: as many as CPUs and quota allow.",
    metavar="N|auto",
    default="auto",
    show_default=True,
)
@option(
    "--cluster",
    "Id of this cluster, as in tokens.",
    type=click.IntRange(0, 65535),
    default=0,
    show_default=True,
)
@option("--keyring", "Keyring file; see `relay keygen`.", metavar="FILE", required=True)
@option(
    "--internal",
    "Where transceivers reach the relay; worker i has port + i, or any port with 0.",
    metavar="HOST:PORT",
    required=True,
)
@option(
    "--allow-transceiver",
    "Networks and ports where transceivers are; nothing else is ever reached. May be repeated. "
    "Required unless all clients are handed on (--cluster-route, and no --backbone).",
    metavar="CIDR[:PORT-PORT]",
    multiple=True,
)
@option(
    "--ipv6-prefix",
    "A /64 that IPv6 tokens name by its index; may be repeated.",
    metavar="INDEX=PREFIX/64",
    multiple=True,
)
@option(
    "--backbone",
    "Where relays of other clusters hand over what is for this one; all workers share the port.",
    metavar="HOST:PORT",
)
@option(
    "--backbone-allow",
    "Networks of those relays (their --internal addresses); needed with --backbone. May be repeated.",
    metavar="CIDR",
    multiple=True,
)
@option(
    "--cluster-route",
    "The --backbone addresses of another cluster's relays, at most 8; once for each cluster.",
    metavar="ID=HOST:PORT[,HOST:PORT]",
    multiple=True,
)
@option(
    "--backbone-key",
    "File of keys for datagrams between clusters, on a backbone that is not trusted; see `relay keygen --backbone`. "
    "All relays of all clusters have it, or none.",
    metavar="FILE",
)
@option(
    "--idle-timeout",
    "Seconds after which a flow ends whose owners are silent.",
    type=Number(1, 86400),
    default=60,
    show_default=True,
)
@option(
    "--max-flows",
    "Established flows of this host.",
    type=click.IntRange(1, 1 << 24),
    default=1 << 18,
    show_default=True,
)
@option(
    "--limit",
    f"A cap of one worker (the last: of the host), one of {', '.join(LIMIT_NAMES)}; may be repeated.",
    metavar="NAME=N",
    multiple=True,
)
@option(
    "--receive-buffer",
    "Receive buffer of each socket.",
    metavar="BYTES",
    type=click.IntRange(4096, 1 << 30),
    default=4 << 20,
    show_default=True,
)
@option(
    "--coalesce-us",
    "Microseconds to wait for more datagrams after a batch that was not full: less CPU, more delay.",
    metavar="N",
    type=click.IntRange(0, 10_000),
    default=0,
    show_default=True,
)
@option(
    "--busy-poll-us",
    "Microseconds for which the kernel looks into the network card before it sleeps: less delay, more CPU.",
    metavar="N",
    type=click.IntRange(0, 10_000),
    default=0,
    show_default=True,
)
@option(
    "--steer",
    "Worker of a datagram: by the kernel's hash (off), or the one pinned to the CPU that received it.",
    type=click.Choice(["off", "cpu"]),
    default="off",
    show_default=True,
)
@option(
    "--pin",
    "Pin workers to CPUs; auto: unless a CPU quota without a cpuset is in force.",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    show_default=True,
)
@option(
    "--drain-timeout",
    "Seconds to go on forwarding after SIGTERM.",
    type=Number(0, 86400),
    default=30,
    show_default=True,
)
@option(
    "--drain-min-flows",
    "End the drain once fewer established flows are left.",
    type=click.IntRange(0),
    default=1,
    show_default=True,
)
@option(
    "--redis",
    "Cache of routes that relay hosts share; better in a file or in the environment than here.",
    metavar="URL",
)
@option(
    "--ingress-name",
    "The name that transceivers have for this relay's address (their --ingress): announced in Redis, "
    "so that nobody is sent to a relay that drains or is gone.",
    metavar="NAME",
)
@option(
    "--admin",
    "HTTP for /healthz, /readyz and /metrics.",
    metavar="HOST:PORT",
    default="127.0.0.1:9478",
    show_default=True,
)
@option(
    "--takeover",
    "Take over from the relay that runs in --run-dir, without losing a packet.",
    is_flag=True,
)
@option(
    "--run-dir",
    "Lock and unix socket of this relay.  [default: $RUNTIME_DIRECTORY, else /run/relay, else "
    "$XDG_RUNTIME_DIR/relay]",
    metavar="DIR",
)
@click.option(
    "--config",
    envvar="RELAY_CONFIG",
    show_envvar=True,
    metavar="FILE.toml",
    help="Options in a file, with underscores; flags and environment win.",
    is_eager=True,
    expose_value=False,
    callback=take_file,
)
@log_options("info")
def serve(log_level: str, log_format: Any, **options: Any) -> int:
    """Relay between clients and transceivers."""
    from relay.config import LogConfig
    from relay.errors import StartError
    from relay.supervisor import Supervisor
    from relay.wire.log import configure, get_logger

    configure(log_level, log_format)
    config = _serve_config(**options)
    secrets = {"--keyring": options["keyring"], "--backbone-key": options["backbone_key"]}
    for name, path in secrets_readable_by_all(click.get_current_context(), secrets):
        get_logger().warning("secret_readable_by_all", option=name, path=path)
    try:
        supervisor = Supervisor(config, LogConfig(log_level, log_format), get_logger())
    except OSError as error:  # descriptors, memory: what the machine has too little of
        raise StartError(f"cannot start: {error.strerror or error}") from None
    return supervisor.run()


def _serve_config(
    *,
    listen: Sequence[str],
    workers: str,
    cluster: int,
    keyring: str,
    internal: str,
    allow_transceiver: Sequence[str],
    ipv6_prefix: Sequence[str],
    backbone: str | None,
    backbone_allow: Sequence[str],
    cluster_route: Sequence[str],
    backbone_key: str | None,
    idle_timeout: float,
    max_flows: int,
    limit: Sequence[str],
    receive_buffer: int,
    coalesce_us: int,
    busy_poll_us: int,
    steer: Any,
    pin: Any,
    drain_timeout: float,
    drain_min_flows: int,
    redis: str | None,
    ingress_name: str | None,
    admin: str,
    run_dir: str | None,
    takeover: bool,
) -> Any:
    import os

    from relay import addresses, backbones, config, cpus, tuning

    count = config.parse_workers("--workers", workers)
    inside = addresses.parse_endpoint("--internal", internal)
    allowed = cpus.allowed_cpus()
    pins = cpus.pin_plan(pin, count, allowed, cpus.cpu_quota(), os.cpu_count() or 1)
    tuning.check_steering("--steer", steer, pins)
    limits = config.parse_limits("--limit", limit, config.LIMITS)
    lookups = limits.pop(config.CACHE_LIMIT, config.LIMITS[config.CACHE_LIMIT])
    url = config.parse_redis("--redis", redis)
    public = tuple(addresses.parse_listen("--listen", text) for text in listen)
    config.check_number("--listen", public)
    across = backbones.parse_backbone(backbone, backbone_allow)
    if not allow_transceiver and (across is not None or not cluster_route):
        raise click.MissingParameter(param_hint="'--allow-transceiver'", param_type="option")
    config.check_apart(public, inside, count, across)
    return config.ServeConfig(
        listen=public,
        workers=count,
        cluster=cluster,
        keyring=config.load_keyring("--keyring", keyring),
        internal=inside,
        allow_transceiver=tuple(
            addresses.parse_allowed_network("--allow-transceiver", text)
            for text in allow_transceiver
        ),
        ipv6_prefixes=config.parse_ipv6_prefixes("--ipv6-prefix", ipv6_prefix),
        backbone=across,
        cluster_routes=backbones.parse_cluster_routes(
            "--cluster-route", cluster_route, cluster, inside
        ),
        backbone_keys=backbones.load_backbone_keys(
            "--backbone-key", backbone_key, is_used=backbone is not None or bool(cluster_route)
        ),
        limits=limits,
        cache_lookups_per_s=lookups,
        idle_timeout_s=idle_timeout,
        max_flows=max_flows,
        receive_buffer_bytes=receive_buffer,
        drain_timeout_s=drain_timeout,
        drain_min_flows=drain_min_flows,
        redis=url,
        ingress_name=config.parse_ingress_name("--ingress-name", ingress_name, url),
        admin=addresses.parse_endpoint("--admin", admin),
        takeover=takeover,
        run_dir=Path(run_dir) if run_dir else config.default_run_dir(),
        coalesce_us=coalesce_us,
        steer=steer,
        busy_poll_us=busy_poll_us,
        pins=pins,
    )
