"""The command line: `relay serve`, `relay keygen`, `relay call`, `relay demo`.

1. Wrong input ends with one clear line and exit status 2, before anything is bound.
2. What only one command needs is imported when that command runs.
"""

from typing import Any

import click

from relay.capacity_command import capacity
from relay.errors import RelayError
from relay.options import log_options
from relay.serve_command import serve
from relay.wire.group import OneLineGroup
from relay.wire.sources import Number
from relay.wire.url import names_a_server


@click.group(
    "relay",
    cls=OneLineGroup,
    error=RelayError,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="voice-relay", message="%(version)s")
def main() -> None:
    """A UDP relay that routes WebRTC sessions by the sealed token in their first packet."""


@main.command()
@click.option(
    "--id",
    "key_id",
    type=click.IntRange(0, 6),
    default=0,
    help="The key's id; each in a keyring has its own.",
)
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
    """Place calls, and say how they went.

    A line each: milliseconds from the offer to each step, to a beep's echo and of the longest gap,
    packets lost, round-trip time. URL is where offers are taken, or the origin alone. The exit status is 1 when a call is not
    answered, does not connect, is cut off, stays silent, or loses too much.
    """
    import asyncio
    import json

    from relay.call import CallPlan, place_calls

    if not url.startswith(("http://", "https://")):
        raise click.BadParameter(f"{url!r} begins with neither http:// nor https://")
    if not names_a_server(url):
        raise click.BadParameter(f"{url!r} has no host, or none that can be reached")
    if key and not key.strip().isprintable():
        raise click.BadParameter("the key has a line end or a control character in it")
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
    help="A Realtime server (ws://… or wss://…) to answer calls, its model behind ?model=, its key in "
    "$TRANSCEIVER_BACKEND_KEY; the page also offers the built-in ones.",
)
@log_options("warning")
def demo(**options: Any) -> int:
    """Start everything on this machine, with a page to talk to.

    With several regions, the first one's addresses are those of the options; ports of the others follow.
    """
    from relay.demo import run_demo

    return run_demo(**options)


main.add_command(serve)
main.add_command(capacity)
