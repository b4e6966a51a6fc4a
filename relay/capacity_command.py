"""`relay capacity`: what a number of sessions asks of relays, for people or as JSON."""

from typing import Any

import click

from relay.wire.sources import Number


@click.command()
@click.option(
    "--sessions",
    type=click.IntRange(1, 10**12),
    required=True,
    help="Concurrent voice sessions.",
)
@click.option(
    "--up-us",
    type=Number(0, min_open=True),
    help="CPU time of a packet from a client, in microseconds. [default: measured here]",
)
@click.option(
    "--down-us",
    type=Number(0, min_open=True),
    help="CPU time of a packet to a client, in microseconds. [default: measured here]",
)
@click.option(
    "--packets-per-second",
    type=Number(0, 1e6, min_open=True),
    default=50,
    show_default=True,
    help="Packets of a session, each way.",
)
@click.option(
    "--payload-bytes",
    type=click.IntRange(1, 65507),
    default=102,
    show_default=True,
    help="SRTP in one of them, without IP and UDP headers.",
)
@click.option(
    "--cores",
    type=click.IntRange(1),
    default=16,
    show_default=True,
    help="Cores of a host that workers have.",
)
@click.option(
    "--nic-gbit",
    type=Number(0, 1e6, min_open=True),
    default=10,
    show_default=True,
    help="Gigabits a second of a host, each way.",
)
@click.option(
    "--load",
    type=Number(0, 1, min_open=True),
    default=0.5,
    show_default=True,
    help="The share of cores and network that may be in use, 0 to 1.",
)
@click.option(
    "--spare",
    type=Number(0, 1e6),
    default=0.05,
    show_default=True,
    help="Hosts beside those needed, as a share of them; at least one.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")
def capacity(sessions: int, up_us: float | None, down_us: float | None, **options: Any) -> None:
    """Count what a number of sessions needs.

    Cores, hosts, memory, bandwidth and Redis operations. Unless --up-us and --down-us are given, the
    CPU time of a packet is measured on this machine, on loopback: about two seconds.
    """
    import dataclasses
    import json

    from relay.capacity import Cost, Site, Voice, describe, plan

    how = "given"
    if up_us is None or down_us is None:
        from relay.capacity_probe import measure

        measured = measure()
        how = "measured on this machine" if up_us is down_us is None else "given and measured"
        up_us, down_us = up_us or measured.up_us, down_us or measured.down_us
    cost = Cost(up_us, down_us)
    voice = Voice(options["packets_per_second"], options["payload_bytes"])
    site = Site(options["cores"], options["nic_gbit"], options["load"], options["spare"])
    try:
        result = plan(sessions, cost, voice, site)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if options["as_json"]:
        facts = {**dataclasses.asdict(cost), **dataclasses.asdict(result)}
        click.echo(json.dumps(facts, indent=2))
    else:
        click.echo(describe(result, cost, site, how))
