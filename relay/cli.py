"""The command line: `relay serve`, `relay keygen`, `relay call`, `relay demo`.

1. Wrong input ends with one clear line and exit status 2, before anything is bound.
2. Every option may come from a flag, from RELAY_NAME in the environment (repeatable ones split on
   whitespace) or from the TOML file of --config; the first of these that speaks wins.
3. What only one command needs is imported when that command runs.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from relay.capacity_command import capacity
from relay.errors import RelayError
from relay.wire.files import is_world_readable
from relay.wire.sources import FILE_KEY, Number, SourcedCommand

LIMIT_NAMES = (
    "token-new-flows-per-s",
    "token-established-flows",
    "flow-checks-per-s",
    "transceiver-new-flows-per-s",
    "source-unanswered",
    "cache-lookups-per-s",
)
"""As relay.config knows them, which is not imported for a help text."""

_Command = TypeVar("_Command", bound=Callable[..., Any])


class OneLineGroup(click.Group):
    """A group whose every error is one line on stderr; without a command it prints its help there."""

    def main(self, args: Sequence[str] | None = None, *_: Any, **extra: Any) -> Any:
        """Run and exit: 2 for wrong input, 1 when the relay cannot go on."""
        try:
            sys.exit(super().main(args, prog_name="relay", standalone_mode=False, **extra) or 0)
        except click.exceptions.Exit as exit_request:
            sys.exit(exit_request.exit_code)
        except click.Abort:
            sys.exit(130)
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            sys.exit(error.exit_code)
        except click.ClickException as error:
            _fail(error.format_message(), error.exit_code)
        except RelayError as error:
            _fail(str(error), error.exit_status)


def option(name: str, text: str, **settings: Any) -> Callable[[_Command], _Command]:
    """An option of `serve` that also has its environment variable."""
    variable = "RELAY_" + name.lstrip("-").replace("-", "_").upper()
    decorate: Callable[[_Command], _Command] = click.option(
        name, envvar=variable, show_envvar=True, help=text, **settings
    )
    return decorate


def log_options(level: str) -> Callable[[_Command], _Command]:
    """--log-level, by default `level`, and --log-format."""
    from relay.log import LOG_FORMATS, LOG_LEVELS

    def decorate(command: _Command) -> _Command:
        formats, levels = click.Choice(LOG_FORMATS), click.Choice(LOG_LEVELS)
        for name, text, kind, default in (
            ("--log-format", "For people or for machines.", formats, "console"),
            ("--log-level", "The least that is logged.", levels, level),
        ):
            command = option(name, text, type=kind, default=default, show_default=True)(command)
        return command

    return decorate


def _read_toml(context: click.Context, _parameter: click.Parameter, path: str | None) -> None:
    from relay.config import load_toml

    if path is None:
        return
    known = {
        parameter.name: parameter.multiple
        for parameter in context.command.params
        if isinstance(parameter, click.Option) and parameter.name and parameter.expose_value
    }
    context.default_map = load_toml("--config", path, known)
    context.meta[FILE_KEY] = path


@click.group(
    cls=OneLineGroup,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="voice-relay", message="%(version)s")
def main() -> None:
    """A UDP relay that routes WebRTC sessions by a hint in the first packet."""


@main.command()
@click.option("--id", "key_id", type=click.IntRange(0, 6), default=0, help="The key's id, 0 to 6.")
@click.option("--backbone", is_flag=True, help="A line for --backbone-key instead.")
def keygen(key_id: int, backbone: bool) -> None:
    """Print a new keyring line.

    The first line of a keyring seals new tokens, every line opens old ones: append a new key on all
    relays first, then put it first everywhere. Lines for --backbone-key are used and changed likewise.
    """
    if backbone:
        from secrets import token_hex

        click.echo(token_hex(16))
        return
    from relay.wire.keyring import generate_line

    click.echo(generate_line(key_id))


@main.command(cls=SourcedCommand)
@option(
    "--listen",
    "Public address, and what clients are told instead; may be repeated. ADDR `*` is every address.",
    metavar="ADDR:PORT[=PUBLIC:PORT]",
    multiple=True,
    required=True,
)
@option("--workers", "Worker processes.", metavar="N|auto", default="auto", show_default=True)
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
    "Networks and ports where transceivers are; nothing else is ever reached. May be repeated.",
    metavar="CIDR[:PORT-PORT]",
    multiple=True,
    required=True,
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
    callback=_read_toml,
)
@log_options("info")
def serve(log_level: str, log_format: Any, **options: Any) -> int:
    """Relay between clients and transceivers."""
    from relay.config import LogConfig
    from relay.log import configure, get_logger
    from relay.supervisor import Supervisor

    configure(log_level, log_format)
    config = _serve_config(**options)
    for name in ("keyring", "backbone_key"):
        path = options[name]
        if path is not None and is_world_readable(path):
            option_name = "--" + name.replace("_", "-")
            get_logger().warning("secret_readable_by_all", option=option_name, path=path)
    return Supervisor(config, LogConfig(log_level, log_format), get_logger()).run()


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
    return config.ServeConfig(
        listen=tuple(addresses.parse_listen("--listen", text) for text in listen),
        workers=count,
        cluster=cluster,
        keyring=config.load_keyring("--keyring", keyring),
        internal=inside,
        allow_transceiver=tuple(
            addresses.parse_allowed_network("--allow-transceiver", text)
            for text in allow_transceiver
        ),
        ipv6_prefixes=config.parse_ipv6_prefixes("--ipv6-prefix", ipv6_prefix),
        backbone=backbones.parse_backbone(backbone, backbone_allow),
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


@main.command()
@click.argument("url")
@click.option(
    "--count", type=click.IntRange(1), default=1, show_default=True, help="Calls, all at once."
)
@click.option(
    "--seconds",
    type=Number(0, min_open=True),
    default=5.0,
    show_default=True,
    help="How long each lasts.",
)
@click.option(
    "--max-loss",
    type=Number(0, 100),
    default=5.0,
    show_default=True,
    help="Per cent of packets, either way, that may be lost.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a call.")
@click.option("--insecure", is_flag=True, help="Take any TLS certificate.")
@click.option(
    "--key",
    envvar="RELAY_CALL_KEY",
    show_envvar=True,
    help="API key or client secret; better in the environment than here.",
)
def call(
    url: str,
    count: int,
    seconds: float,
    max_loss: float,
    as_json: bool,
    insecure: bool,
    key: str | None,
) -> int:
    """Place calls at URL, and say how they went: timeline, loss, echo delay, in milliseconds.

    URL is where offers are taken, or the origin alone. The exit status is 1 when a call is not
    answered, does not connect, is cut off, stays silent, or loses too much.
    """
    import asyncio
    import json

    from relay.call import CallPlan, place_calls

    if not url.startswith(("http://", "https://")):
        raise click.BadParameter(f"{url!r} begins with neither http:// nor https://")
    plan = CallPlan(url, seconds, key and key.strip(), max_loss / 100, not insecure)

    async def place() -> int:
        failed = 0
        async for report in place_calls(plan, count):
            failed += report.trouble is not None
            click.echo(json.dumps(report.as_json()) if as_json else report.line())
        return 1 if failed else 0

    return asyncio.run(place())


@main.command()
@click.option(
    "--regions",
    "regions_count",
    type=click.IntRange(1, 5),
    default=1,
    show_default=True,
    help="Relays and transceivers of so many regions, a backbone with delays between them, a page for each.",
)
@click.option(
    "--workers", type=click.IntRange(1, 64), help="Relay workers. [default: 2; 1 with regions]"
)
@click.option(
    "--transceivers",
    type=click.IntRange(1, 64),
    help="Transceiver processes. [default: 2; 1 with regions]",
)
@click.option("--http", metavar="HOST:PORT", help="The page and its API. [default: localhost:8080]")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="The relay's UDP address. [default: this machine's address towards the internet, port 3478]",
)
@click.option(
    "--admin",
    metavar="HOST:PORT",
    default="127.0.0.1:9478",
    show_default=True,
    help="The relay's admin HTTP.",
)
@click.option(
    "--public-address",
    metavar="IP",
    help="Let other machines in: they reach this one under IP, the page by HTTPS.",
)
@click.option(
    "--backend",
    metavar="URL",
    help="A Realtime server (ws://… or wss://…) to answer calls; the page also offers the built-in ones.",
)
@log_options("warning")
def demo(**options: Any) -> int:
    """Start relay, transceivers and a page to talk to, all on this machine.

    With several regions, the first one's addresses are those of the options; ports of the others follow.
    """
    from relay.demo import run_demo

    return run_demo(**options)


main.add_command(capacity)


def _fail(message: str, status: int) -> None:
    line = " ".join(message.split())
    click.echo(f"relay: {line}", err=True)
    sys.exit(status)
