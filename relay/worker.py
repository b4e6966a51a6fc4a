"""One worker: an exec'd process that warms up, waits for a slot, and forwards until it is told to stop.

1. Warming up is everything that does not depend on the slot: imports, keys, a look at every table.
   Then the process is a standby; `take N` makes it slot N's worker within a millisecond.
2. Nothing heavy is imported (a test lists what is): a start costs about what Python's own does.
3. After `take`, one call without the GIL runs for the rest of its life. No signal handler could run
   meanwhile, so signals stay blocked; the stop eventfd and the life pipe are obeyed instead.
4. It never logs: what it has to say, the supervisor says.
"""

import os
import sys
from typing import Any, NoReturn

from relay import channel
from relay._dataplane import ForwardConfig, PublicSocket, Table, Worker
from relay.lineage import die_with


def main(description_fd: int) -> NoReturn:
    """The whole life of a worker process, described by a JSON file (relay/pool.py writes it)."""
    about: dict[str, Any] = channel.read_description(description_fd)
    control: int = about["control"]
    die_with(about["parent"])
    _name("relay-standby")
    try:
        config = _forward_config(about["forward"])
        for slot in about["slots"]:
            Table(slot["table"])  # mapped and of this layout, or an error now rather than later
    except Exception as error:
        channel.send(control, {"failed": f"{type(error).__name__}: {error}"})
        sys.exit(1)
    channel.send(control, {"ready": True})
    order = channel.receive(control)
    if order is None:
        sys.exit(0)
    reason = _serve(about, config, int(str(order["take"])), control)
    channel.send(control, {"ended": reason})
    # Not sys.exit: the next worker waits for this process's end, and tearing Python down takes longer
    # than the rest of a takeover.
    os._exit(1 if reason.startswith("failed") else 0)


def _serve(about: dict[str, Any], config: ForwardConfig, slot: int, control: int) -> str:
    own = about["slots"][slot]
    cpu, pin_error = _pin(about["pins"], slot)
    try:
        worker = Worker(
            slot=slot,
            public=[
                PublicSocket(fd, index, tuple(public) if public else None)
                for fd, index, public in own["public"]
            ],
            internal_fd=own["internal"],
            backbone_fd=own["backbone"],
            table_fd=own["table"],
            stats_fd=about["stats"],
            stop_fd=about["stop"],
            life_fd=about["life"],
            desks_fd=about["desks"],
            answers_fd=about["answers"][slot],
            bell_fd=about["bell"],
            config=config,
            coalesce_us=about["coalesce_us"],
            busy_poll_us=about["busy_poll_us"],
        )
    except Exception as error:
        return f"failed: {type(error).__name__}: {error}"
    _name(f"relay-worker-{slot}")
    channel.send(control, {"serving": slot, "cpu": cpu, "pin_error": pin_error})
    return worker.run()


def _forward_config(about: dict[str, Any]) -> ForwardConfig:
    return ForwardConfig(
        cluster_id=about["cluster_id"],
        keys=[(key_id, bytes.fromhex(secret)) for key_id, secret in about["keys"]],
        allow_transceiver=[tuple(entry) for entry in about["allow_transceiver"]],
        ipv6_prefixes={int(index): prefix for index, prefix in about["ipv6_prefixes"].items()},
        backbone_allow=about["backbone_allow"],
        cluster_routes={
            int(cluster): [tuple(address) for address in route]
            for cluster, route in about["cluster_routes"].items()
        },
        backbone_keys=[bytes.fromhex(key) for key in about["backbone_keys"]],
        limits=about["limits"],
        idle_timeout_s=about["idle_timeout_s"],
        park=about["park"],
    )


def _pin(pins: list[int] | None, slot: int) -> tuple[int | None, str | None]:
    """The CPU this process is now pinned to, or why it is not."""
    if pins is None:
        return None, None
    try:
        os.sched_setaffinity(0, {pins[slot]})
    except OSError as error:
        return None, f"CPU {pins[slot]}: {error.strerror}"
    return pins[slot], None


def _name(title: str) -> None:
    """What ps and top show (15 characters)."""
    try:
        with open("/proc/self/comm", "w") as comm:
            comm.write(title)
    except OSError:
        pass
