"""What must survive a worker and may pass to a successor: sockets, flow tables, counters, the run dir.

1. `open_estate` makes it; `describe` turns it into JSON and descriptors; `adopt_estate` turns those
   back, in a process that may be of another version.
2. An adopted estate fits the configuration or is refused: the number of slots and what is bound
   cannot change without a restart.
3. A table or counters of another layout are replaced by empty ones, and the log says so.
"""

import ipaddress
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relay._dataplane import DROP_REASONS, Stats, Table, create_stats, create_table
from relay.addresses import HostPort
from relay.config import ServeConfig
from relay.errors import HandoverError, RelayError, StartError
from relay.pool import SlotDescriptors
from relay.rundir import RunDir, open_run_dir
from relay.sockets import (
    PublicGroup,
    SocketSet,
    bound_address,
    is_absent,
    open_admin,
    open_sockets,
)
from relay.wire.log import Logger


@dataclass
class Estate:
    """All of it, held by one supervisor at a time."""

    sockets: SocketSet
    tables: list[int]
    """A flow table (memfd) for each slot."""
    stats_fd: int
    run_dir: RunDir

    @property
    def admin(self) -> socket.socket:
        """The listening socket of the admin HTTP."""
        assert self.sockets.admin is not None
        return self.sockets.admin

    def slot_descriptors(self) -> list[SlotDescriptors]:
        """What each slot's worker reads and writes."""
        return [
            SlotDescriptors(
                public=[
                    (
                        group.sockets[slot].fileno(),
                        index,
                        (str(group.public.ip), group.public.port) if group.public else None,
                    )
                    for index, group in enumerate(self.sockets.public)
                ],
                internal=self.sockets.internal[slot].fileno(),
                backbone=self.sockets.backbone[slot].fileno() if self.sockets.backbone else -1,
                table=table,
            )
            for slot, table in enumerate(self.tables)
        ]

    def log_listening(self, log: Logger) -> None:
        """One event for each bound address."""
        for group in self.sockets.public:
            details = {"public": str(group.public)} if group.public else {}
            log.info("listening", role="public", address=str(group.bound), **details)
        for slot, sock in enumerate(self.sockets.internal):
            log.info("listening", role="internal", address=str(bound_address(sock)), slot=slot)
        if self.sockets.backbone:
            address = bound_address(self.sockets.backbone[0])
            log.info("listening", role="backbone", address=str(address))
        log.info("listening", role="admin", address=str(bound_address(self.admin)))

    def close(self) -> None:
        """Close this process's descriptors of sockets and run directory."""
        self.sockets.close()
        self.run_dir.close()


def open_estate(config: ServeConfig, log: Logger) -> Estate:
    """Bind and allocate everything, or raise RelayError and leave nothing behind."""
    sockets = open_sockets(
        config.listen,
        config.internal,
        config.admin,
        backbone=config.backbone.where if config.backbone else None,
        slots=config.workers,
        receive_buffer_bytes=config.receive_buffer_bytes,
        warn=log.warning,
    )
    try:
        run_dir = open_run_dir(config.run_dir)
    except RelayError:
        sockets.close()
        raise
    try:
        tables = [create_table(config.max_flows_per_worker) for _ in range(config.workers)]
        return Estate(sockets, tables, create_stats(config.workers), run_dir)
    except (OSError, ValueError) as error:
        raise StartError(f"no memory for the flow tables: {error}") from None


def describe(estate: Estate) -> tuple[dict[str, object], list[int]]:
    """The estate in JSON, and its descriptors in the order in which `adopt_estate` takes them."""
    groups = estate.sockets.public
    fds = [sock.fileno() for group in groups for sock in group.sockets]
    fds += [sock.fileno() for sock in estate.sockets.internal]
    fds += estate.tables
    fds += [estate.stats_fd, estate.admin.fileno()]
    fds += [estate.run_dir.lock_fd, estate.run_dir.listener.fileno()]
    fds += [sock.fileno() for sock in estate.sockets.backbone]
    manifest: dict[str, object] = {
        "slots": len(estate.tables),
        "public": [_pack(group.public) for group in groups],
        "backbone": bool(estate.sockets.backbone),
        "stats_layout": stats_layout(estate.stats_fd, len(estate.tables)),
    }
    return manifest, fds


def adopt_estate(
    manifest: Mapping[str, Any], fds: Sequence[int], config: ServeConfig, log: Logger
) -> Estate:
    """The estate of a running relay for this process. Raises HandoverError when it does not fit.

    The descriptors belong to the estate from here on.
    """
    slots: int = manifest["slots"]
    if slots != config.workers:
        raise HandoverError(
            f"--workers {config.workers}: the running relay has {slots}, which stays for the life "
            "of its sockets; restart it to change the number"
        )
    remaining = iter(fds)
    groups = []
    for public in manifest["public"]:
        sockets = [socket.socket(fileno=next(remaining)) for _ in range(slots)]
        groups.append(PublicGroup(bound_address(sockets[0]), _unpack(public), sockets))
    internal = [socket.socket(fileno=next(remaining)) for _ in range(slots)]
    tables = [next(remaining) for _ in range(slots)]
    stats_fd = next(remaining)
    admin = socket.socket(fileno=next(remaining))
    run_dir = RunDir(config.run_dir, next(remaining), socket.socket(fileno=next(remaining)))
    backbone: list[socket.socket] = []
    if manifest.get("backbone"):
        backbone = [socket.socket(fileno=next(remaining)) for _ in range(slots)]
    _check_fit(groups, internal, config)
    _check_backbone(backbone, config)
    if not _same(bound_address(admin), config.admin):
        admin.close()
        admin = open_admin(config.admin)
    return Estate(
        SocketSet(groups, internal, backbone, admin),
        [_adopt_table(fd, slot, config, log) for slot, fd in enumerate(tables)],
        _adopt_stats(stats_fd, slots, manifest["stats_layout"], log),
        run_dir,
    )


def stats_layout(stats_fd: int, slots: int) -> str:
    """A text that differs when the counters' layout does."""
    counters = Stats(stats_fd, slots).read(0)
    names = [*counters, *counters["internal"], *(label for label, _ in DROP_REASONS)]
    return " ".join(names)


def _check_fit(
    groups: Sequence[PublicGroup], internal: Sequence[socket.socket], config: ServeConfig
) -> None:
    wanted = [
        (HostPort(ip, listen.port), listen.public)
        for listen in config.listen
        for ip in listen.binds
    ]
    left = list(groups)
    for where, public in wanted:
        for group in left:
            same_public = (group.public is None) == (public is None) and (
                group.public is None or public is None or _same(group.public, public)
            )
            if same_public and _same(group.bound, where):
                left.remove(group)
                break
        else:
            if is_absent(where.ip):  # skipped when the running relay started, too
                continue
            raise HandoverError(
                f"--listen {where}: the running relay does not listen there; restart it"
            )
    if left:
        raise HandoverError(
            f"the running relay also listens on {left[0].bound}; restart it to end that"
        )
    if not _same(bound_address(internal[0]), config.internal):
        raise HandoverError(
            f"--internal {config.internal}: the running relay has {bound_address(internal[0])}; restart it"
        )


def _check_backbone(backbone: Sequence[socket.socket], config: ServeConfig) -> None:
    wanted = config.backbone.where if config.backbone else None
    bound = bound_address(backbone[0]) if backbone else None
    if bound is None and wanted is not None:
        raise HandoverError(f"--backbone {wanted}: the running relay has none; restart it")
    if bound is not None and wanted is None:
        raise HandoverError(
            f"the running relay also has --backbone {bound}; restart it to end that"
        )
    if bound is not None and wanted is not None and not _same(bound, wanted):
        raise HandoverError(f"--backbone {wanted}: the running relay has {bound}; restart it")


def _adopt_table(fd: int, slot: int, config: ServeConfig, log: Logger) -> int:
    try:
        Table(fd)
    except ValueError as error:
        log.warning("flow_table_started_empty", slot=slot, reason=str(error))
        os.close(fd)
        return create_table(config.max_flows_per_worker)
    except OSError as error:
        raise HandoverError(f"the table of slot {slot} cannot be mapped: {error}") from None
    return fd


def _adopt_stats(fd: int, slots: int, layout: str, log: Logger) -> int:
    try:
        if stats_layout(fd, slots) == layout:
            return fd
        reason = "another layout"
    except (OSError, ValueError) as error:  # another size, too
        reason = str(error)
    log.warning("counters_started_at_zero", reason=reason)
    os.close(fd)
    return create_stats(slots)


def _same(bound: HostPort, wanted: HostPort) -> bool:
    """Whether the configuration means what is bound; port 0 means any."""
    return bound.ip == wanted.ip and wanted.port in (0, bound.port)


def _pack(address: HostPort | None) -> list[object] | None:
    return None if address is None else [str(address.ip), address.port]


def _unpack(packed: list[Any] | None) -> HostPort | None:
    return None if packed is None else HostPort(ipaddress.ip_address(packed[0]), packed[1])
