# cython: language_level=3
"""The relay's data plane in C: shared tables, shared counters, and a worker's whole life.

1. Everything here is declarations and lifetimes; the algorithms are csrc/relay.
2. Addresses and networks are text and numbers, as they lie in a JSON file, so that a worker imports
   nothing to describe them; a wrong one raises ValueError with the offending value.
3. File descriptors are borrowed: the caller keeps them open and closes them.
4. Worker.run crosses the GIL once for the worker's whole life.
"""
import binascii
import fcntl
import os

from libc.errno cimport errno as c_errno
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, strerror

from relay cimport _csrc as c


cdef extern from "arpa/inet.h" nogil:
    int AF_INET, AF_INET6, INET6_ADDRSTRLEN
    int inet_pton(int family, const char *text, void *ip)
    const char *inet_ntop(int family, const void *ip, char *text, unsigned size)
    c.uint16_t htons(c.uint16_t port)
    c.uint16_t ntohs(c.uint16_t port)


cdef extern from "sys/mman.h" nogil:
    int PROT_READ, PROT_WRITE, MAP_SHARED
    void *MAP_FAILED
    void *mmap(void *address, size_t size, int protection, int flags, int fd, long offset)
    int munmap(void *address, size_t size)


cdef extern from *:
    """
    #include "relay/stats.h"
    #define X(symbol, label, help) {label, help},
    static const char *const drop_text[][2] = {VR_DROP_REASONS(X)};
    #undef X
    """
    const char *drop_text[1][2]


cdef extern from *:
    """
    static const uint8_t *token_bytes(const struct vr_flow_rest *rest, unsigned i) {
        return rest->token[i].sealed;
    }
    """
    const c.uint8_t *token_bytes(const c.vr_flow_rest *rest, unsigned i)


DROP_REASONS = tuple([
    ((<bytes>drop_text[i][0]).decode(), (<bytes>drop_text[i][1]).decode())
    for i in range(c.VR_DROPS)
])

# Typed dictionaries in the .pyi; here only names, so that a worker need not import typing.
Counters = SideCounters = Flow = FlowOwner = dict

PUBLIC_SOCKETS_MAX = c.VR_LOOP_SOCKETS_MAX - 2  # beside the internal one and the backbone's
LIMITS = {
    "token_new_flows_per_s": 20,
    "token_established_flows": 16,
    "flow_checks_per_s": 50,
    "transceiver_new_flows_per_s": 2000,
    "source_unanswered": 64,
}


# --- shared memory ---


def _create_memfd(name, size):
    """A zeroed memfd of `size` bytes that nobody can shrink or grow any more."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        fcntl.fcntl(
            fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        )
    except BaseException:
        os.close(fd)
        raise
    return fd


cdef class _Mapping:
    """A shared mapping of a whole file; unmapped with the object."""

    cdef void *memory
    cdef size_t size

    def __cinit__(self, int fd, bint writable):
        self.size = os.fstat(fd).st_size
        cdef int protection = PROT_READ | PROT_WRITE if writable else PROT_READ
        self.memory = mmap(NULL, self.size, protection, MAP_SHARED, fd, 0)
        if self.memory == MAP_FAILED:
            self.memory = NULL
            raise OSError(c_errno, strerror(c_errno).decode())

    def __dealloc__(self):
        if self.memory != NULL:
            munmap(self.memory, self.size)


# --- counters ---


def create_stats(slots):
    """Zeroed counters for `slots` workers: the descriptor of a sealed memfd."""
    if slots < 1:
        raise ValueError(f"slots: {slots}")
    return _create_memfd("relay-stats", slots * c.VR_STATS_SLOT_BYTES)


cdef c.vr_stats *_stats_slot(_Mapping mapping, Py_ssize_t slot) except NULL:
    if slot < 0 or <size_t>(slot + 1) * c.VR_STATS_SLOT_BYTES > mapping.size:
        raise IndexError(f"no counters for slot {slot}")
    return <c.vr_stats *>(<char *>mapping.memory + slot * c.VR_STATS_SLOT_BYTES)


cdef dict _side_counters(const c.vr_side_stats *side):
    return {
        "rx_packets": side.rx_packets,
        "rx_bytes": side.rx_bytes,
        "tx_packets": side.tx_packets,
        "tx_bytes": side.tx_bytes,
        "tx_fragmented": side.tx_fragmented,
    }


cdef class Stats:
    """A read-only view of the counters of all workers (csrc/relay/stats.h)."""

    cdef _Mapping _mapping

    def __init__(self, fd, slots):
        self._mapping = _Mapping(fd, False)
        _stats_slot(self._mapping, slots - 1)

    def read(self, slot):
        """The counters of one worker; each is whole, but they may be of different moments."""
        cdef const c.vr_stats *stats = _stats_slot(self._mapping, slot)
        return {
            "progress": stats.progress,
            "progress_ns": stats.progress_ns,
            "worker_pid": stats.worker_pid,
            "public": _side_counters(&stats.side[c.VR_SIDE_PUBLIC]),
            "internal": _side_counters(&stats.side[c.VR_SIDE_INTERNAL]),
            "backbone": _side_counters(&stats.side[c.VR_SIDE_BACKBONE]),
            "drop": {DROP_REASONS[i][0]: stats.drop[i] for i in range(c.VR_DROPS)},
            "kernel_drops": stats.kernel_drops,
            "flows_half_open": stats.flows_half_open,
            "flows_established": stats.flows_established,
            "flows_created": stats.flows_created,
            "flows_promoted": stats.flows_promoted,
            "flows_expired": stats.flows_expired,
            "half_open_displaced": stats.half_open_displaced,
            "probes_sent": stats.probes_sent,
            "probes_answered": stats.probes_answered,
            "probes_echoed": stats.probes_echoed,
            "route_falls": stats.route_falls,
            "route_digest": stats.route_digest,
            "route_down": sum([
                int(stats.route_down[i]) << 64 * i for i in range(c.VR_ROUTE_ADDRS_SHOWN // 64)
            ]),
        }


# --- the flow table ---


_TABLE_FAULTS = {
    c.VR_TABLE_SIZE: "too small for a flow table",
    c.VR_TABLE_MAGIC: "not a flow table",
    c.VR_TABLE_LAYOUT: "a flow table of another layout",
    c.VR_TABLE_HEADER: "a flow table with a damaged header",
}


def table_bytes(max_flows):
    """Bytes of shared memory that a table of `max_flows` flows takes."""
    if not 1 <= max_flows <= c.VR_FLOWS_MAX:
        raise ValueError(f"max_flows: {max_flows}")
    return c.vr_table_bytes(max_flows)


def create_table(max_flows):
    """A new empty flow table: the descriptor of a memfd sealed against resizing."""
    fd = _create_memfd("relay-flows", table_bytes(max_flows))
    cdef _Mapping mapping
    cdef bytes hash_key = os.urandom(16)
    try:
        mapping = _Mapping(fd, True)
        c.vr_table_format(mapping.memory, mapping.size, max_flows, hash_key)
    except BaseException:
        os.close(fd)
        raise
    return fd


cdef int _attach(c.vr_table *table, _Mapping mapping) except -1:
    cdef c.vr_table_status status = c.vr_table_attach(table, mapping.memory, mapping.size)
    if status != c.VR_TABLE_OK:
        raise ValueError(_TABLE_FAULTS[status])
    return 0


cdef class Table:
    """A read-only view of a worker's flow table; the worker goes on writing."""

    cdef _Mapping _mapping
    cdef c.vr_table _table

    def __init__(self, fd):
        self._mapping = _Mapping(fd, False)
        _attach(&self._table, self._mapping)

    @property
    def header(self):
        """Layout version and sizes."""
        return {
            "layout_version": c.VR_TABLE_LAYOUT_VERSION,
            "bytes": self._mapping.size,
            "max_flows": self._table.max_flows,
            "slots": self._table.slots,
            "half_open_slots": self._table.slots - self._table.first_slot[c.VR_POOL_HALF_OPEN],
        }

    def counts(self):
        """(half-open, established) flows, recounted from the tags."""
        cdef c.uint32_t counts[2]
        c.vr_table_count(&self._table, counts)
        return counts[c.VR_POOL_HALF_OPEN], counts[c.VR_POOL_ESTABLISHED]

    def flows(self, limit=1000):
        """Up to `limit` flows as they are at this moment, in no order."""
        cdef c.vr_flow flow
        cdef c.vr_flow_rest rest
        cdef c.uint32_t slot
        cdef size_t most = limit
        cdef list found = []
        for slot in range(self._table.slots):
            if <size_t>len(found) >= most:
                break
            if c.vr_flow_in_use(&self._table, slot) and c.vr_flow_read(
                &self._table, slot, &flow, &rest
            ):
                found.append(_flow(c.vr_flow_pool(&self._table, slot), &flow, &rest))
        return found

    def audit(self):
        """One sentence for each entry that contradicts itself; empty when the table is sound."""
        cdef c.vr_fault faults[64]
        cdef size_t count = c.vr_table_audit(&self._table, faults, 64)
        return [
            f"slot {faults[i].slot}: {(<bytes>c.vr_fault_text(faults[i].kind)).decode()}"
            for i in range(min(<Py_ssize_t>count, 64))
        ] + ([f"and {count - 64} more"] if count > 64 else [])


cdef tuple _address(const c.vr_addr *addr):
    cdef char text[64]
    if c.vr_ip_is_v4(addr.ip):
        inet_ntop(AF_INET, addr.ip + 12, text, sizeof(text))
    else:
        inet_ntop(AF_INET6, addr.ip, text, sizeof(text))
    return (<bytes>text).decode(), ntohs(addr.port_be)


cdef object _token(const c.vr_flow_rest *rest, unsigned i):
    """The token's text, None where there is none."""
    cdef bytes sealed = token_bytes(rest, i)[:c.VR_TOKEN_BYTES]
    return binascii.b2a_base64(sealed, newline=False).decode() if any(sealed) else None


cdef dict _flow(int pool, const c.vr_flow *flow, const c.vr_flow_rest *rest):
    cdef c.uint32_t now_ms = c.vr_clock_ms(c.vr_loop_now_ns())
    owners = []
    for i in range(c.VR_FLOW_OWNERS):
        if flow.valid & 1 << i:
            host, port = _address(&flow.half[i].owner.address)
            owners.append({
                "cluster": flow.half[i].owner.cluster_id,
                "address": host,
                "port": port,
                "token": _token(rest, i),
                "success_age_s": c.vr_age_ms(now_ms, rest.success_ms[i]) / 1e3,
            })
    if pool == c.VR_POOL_ESTABLISHED:
        state = "established"
    else:
        state = "provisional" if owners else "half_open"
    return {
        "client": _address(&flow.key.client),
        "proxy": _address(&flow.key.proxy),
        "state": state,
        "owners": owners,
        "packets_up": flow.up_packets,
        "bytes_up": flow.up_bytes,
        "packets_down": flow.down_packets,
        "bytes_down": flow.down_bytes,
        "age_s": c.vr_age_ms(now_ms, flow.created_ms) / 1e3,
        "idle_s": c.vr_age_ms(now_ms, flow.owner_seen_ms) / 1e3,
    }


# --- addresses ---


cdef int _parse_ip(text, c.uint8_t *ip) except -1:
    """Writes 16 bytes, IPv4 mapped. Returns 4 or 6."""
    cdef c.uint8_t v4[4]
    cdef bytes encoded = str(text).encode()
    if inet_pton(AF_INET, encoded, v4) == 1:
        c.vr_ip_from_v4(ip, v4)
        return 4
    if inet_pton(AF_INET6, encoded, ip) != 1:
        raise ValueError(f"not an IP address: {text!r}")
    return 6


cdef int _parse_addr(address, c.vr_addr *addr) except -1:
    host, port = address
    if not 0 < port < 65536:
        raise ValueError(f"not a UDP port: {port!r}")
    _parse_ip(host, addr.ip)
    addr.port_be = htons(port)
    return 0


cdef int _parse_cidr(text, c.vr_cidr *cidr) except -1:
    host, _, bits = str(text).partition("/")
    cdef int most = 32 if _parse_ip(host, cidr.ip) == 4 else 128
    if bits and not (bits.isdigit() and int(bits) <= most):
        raise ValueError(f"not a network: {text!r}")
    cidr.prefix_bits = (int(bits) if bits else most) + 128 - most
    cidr.port_max = 65535
    return 0


# --- configuration ---


cdef void *_array(size_t count, size_t size) except NULL:
    cdef void *memory = calloc(count or 1, size)
    if memory == NULL:
        raise MemoryError
    return memory


cdef class PublicSocket:
    """One socket that clients send to."""

    cdef readonly int fd
    cdef readonly int index
    cdef readonly object public_address

    def __init__(self, fd, index, public_address=None):
        if not 0 <= index < 256:
            raise ValueError(f"index: {index}")
        self.fd = fd
        self.index = index
        self.public_address = public_address


cdef class ForwardConfig:
    """What the forwarder needs to know; JSON-friendly on purpose."""

    cdef c.vr_forward_config config
    cdef c.vr_cidr *allow_transceiver
    cdef c.vr_cidr *backbone_allow
    cdef c.vr_cluster_route *routes

    def __init__(self, *, cluster_id, keys, allow_transceiver, ipv6_prefixes={}, backbone_allow=(),
                 cluster_routes={}, backbone_keys=(), limits={}, idle_timeout_s=60.0, park=False):
        if self.config.keyring != NULL:
            raise ValueError("a configuration is made once")
        if not 0 <= cluster_id < 65536:
            raise ValueError(f"cluster_id: {cluster_id}")
        if not 0 < idle_timeout_s < 1e6:
            raise ValueError(f"idle_timeout_s: {idle_timeout_s}")
        self.config.cluster_id = cluster_id
        self.config.idle_timeout_ns = int(idle_timeout_s * 1e9)
        self.config.park_enabled = park
        self._set_keys(keys)
        self._set_prefixes(ipv6_prefixes)
        self._set_allowed(allow_transceiver, backbone_allow)
        self._set_routes(cluster_routes)
        self._set_backbone_keys(backbone_keys)
        self._set_limits(limits)

    def __dealloc__(self):
        c.vr_keyring_free(self.config.keyring)
        c.vr_trailer_keys_free(self.config.backbone_keys)
        free(self.allow_transceiver)
        free(self.backbone_allow)
        free(self.routes)

    cdef int _set_keys(self, keys) except -1:
        self.config.keyring = c.vr_keyring_new()
        if self.config.keyring == NULL:
            raise MemoryError
        for key_id, key in keys:
            if not 0 <= key_id <= 6 or len(key) != c.VR_TOKEN_KEY_BYTES:
                raise ValueError(f"key {key_id} of {len(key)} bytes")
            if c.vr_keyring_add(self.config.keyring, key_id, <const c.uint8_t *><bytes>key) < 0:
                raise MemoryError
        return 0

    cdef int _set_prefixes(self, prefixes) except -1:
        cdef c.vr_cidr cidr
        for index, text in prefixes.items():
            _parse_cidr(text, &cidr)
            if not 0 <= index < 16 or cidr.prefix_bits != 64:
                raise ValueError(f"not an indexed /64: {index}={text}")
            self.config.ipv6_prefixes.known_mask |= 1 << <int>index
            memcpy(self.config.ipv6_prefixes.prefix[<int>index], cidr.ip, 8)
        return 0

    cdef int _set_allowed(self, transceivers, peers) except -1:
        self.allow_transceiver = <c.vr_cidr *>_array(len(transceivers), sizeof(c.vr_cidr))
        for i, (text, first, last) in enumerate(transceivers):
            if not 0 <= first <= last <= 65535:
                raise ValueError(f"not a port range: {first}-{last}")
            _parse_cidr(text, &self.allow_transceiver[i])
            self.allow_transceiver[i].port_min = first
            self.allow_transceiver[i].port_max = last
        self.backbone_allow = <c.vr_cidr *>_array(len(peers), sizeof(c.vr_cidr))
        for i, text in enumerate(peers):
            _parse_cidr(text, &self.backbone_allow[i])
        self.config.allow_transceiver = self.allow_transceiver
        self.config.allow_transceiver_count = len(transceivers)
        self.config.backbone_allow = self.backbone_allow
        self.config.backbone_allow_count = len(peers)
        return 0

    cdef int _set_routes(self, routes) except -1:
        if sum([len(addresses) for addresses in routes.values()]) > c.VR_ROUTE_ADDRS_SHOWN:
            raise ValueError(f"cluster routes with more than {c.VR_ROUTE_ADDRS_SHOWN} addresses")
        self.routes = <c.vr_cluster_route *>_array(len(routes), sizeof(c.vr_cluster_route))
        for i, (cluster_id, addresses) in enumerate(routes.items()):
            if not 0 <= cluster_id < 65536 or not 0 < len(addresses) <= c.VR_CLUSTER_ROUTE_ADDRS:
                raise ValueError(f"not a cluster route: {cluster_id}={addresses}")
            self.routes[i].cluster_id = cluster_id
            self.routes[i].addrs = len(addresses)
            for j, address in enumerate(addresses):
                _parse_addr(address, &self.routes[i].addr[j])
        self.config.routes = self.routes
        self.config.route_count = len(routes)
        return 0

    cdef int _set_backbone_keys(self, keys) except -1:
        if len(keys) > c.VR_TRAILER_KEYS_MAX:
            raise ValueError(f"{len(keys)} backbone keys")
        for key in keys:
            if len(key) != 16:
                raise ValueError(f"a backbone key of {len(key)} bytes")
            if self.config.backbone_keys == NULL:
                self.config.backbone_keys = c.vr_trailer_keys_new()
                if self.config.backbone_keys == NULL:
                    raise MemoryError
            if c.vr_trailer_keys_add(
                self.config.backbone_keys, <const c.uint8_t *><bytes>key
            ) < 0:
                raise MemoryError
        return 0

    cdef int _set_limits(self, given) except -1:
        if unknown := set(given) - set(LIMITS):
            raise ValueError(f"unknown limits: {', '.join(sorted(unknown))}")
        limits = {**LIMITS, **given}
        self.config.limits.token_new_flows_per_s = limits["token_new_flows_per_s"]
        self.config.limits.token_established_flows = limits["token_established_flows"]
        self.config.limits.flow_checks_per_s = limits["flow_checks_per_s"]
        self.config.limits.transceiver_new_flows_per_s = limits["transceiver_new_flows_per_s"]
        self.config.limits.source_unanswered = limits["source_unanswered"]
        return 0


def route_digest(cluster_routes):
    """What a worker with these routes shows as theirs."""
    cdef ForwardConfig made = ForwardConfig(
        cluster_id=0, keys=(), allow_transceiver=(), cluster_routes=cluster_routes
    )
    return c.vr_probes_digest(made.routes, made.config.route_count)


# --- the desk between workers and the cache ---


def create_desks(slots):
    """Empty desks (csrc/relay/desk.h) for `slots` workers: the descriptor of a sealed memfd."""
    if slots < 1:
        raise ValueError(f"slots: {slots}")
    return _create_memfd("relay-desks", slots * sizeof(c.vr_desk))


cdef c.vr_desk *_desk_slot(_Mapping mapping, Py_ssize_t slot) except NULL:
    if slot < 0 or <size_t>(slot + 1) * sizeof(c.vr_desk) > mapping.size:
        raise IndexError(f"no desk for slot {slot}")
    return <c.vr_desk *>mapping.memory + slot


cdef class Desks:
    """The cache's side of all desks: one reader of notices, one writer of answers."""

    cdef _Mapping _mapping

    def __init__(self, fd, slots):
        self._mapping = _Mapping(fd, True)
        _desk_slot(self._mapping, slots - 1)

    def take(self, slot, limit=256):
        """Up to `limit` notices of a worker: (flow key, None) asks, (flow key, tokens) tells."""
        cdef c.vr_desk *desk = _desk_slot(self._mapping, slot)
        cdef c.vr_notice notice
        cdef list taken = []
        while len(taken) < limit and c.vr_desk_take(desk, &notice):
            key = (<const char *>&notice.key)[:sizeof(c.vr_flow_key)]
            tokens = None
            if notice.kind == c.VR_NOTICE_OWNERS:
                tokens = tuple(
                    (<const char *>notice.sealed[i])[:c.VR_TOKEN_BYTES]
                    for i in range(notice.tokens)
                )
            taken.append((key, tokens))
        return taken

    def answer(self, slot, bytes key not None, tokens):
        """Tells a worker the owners' tokens (28 characters each, at most two; none: not found)."""
        cdef c.vr_desk *desk = _desk_slot(self._mapping, slot)
        cdef c.vr_command command
        cdef c.vr_answer answer
        if len(key) != sizeof(c.vr_flow_key):
            raise ValueError(f"a flow key of {len(key)} bytes")
        if len(tokens) > 2 or any(len(token) != c.VR_TOKEN_CHARS for token in tokens):
            raise ValueError("not at most two tokens of 28 characters")
        memcpy(&answer.key, <const char *>key, sizeof(c.vr_flow_key))
        answer.tokens = len(tokens)
        for i in range(answer.tokens):
            memcpy(answer.chars[i], <const char *><bytes>tokens[i], c.VR_TOKEN_CHARS)
        command.kind = c.VR_COMMAND_ANSWER
        command.data_bytes = sizeof(c.vr_answer)
        memcpy(command.data, &answer, sizeof(c.vr_answer))
        return c.vr_mailbox_put(&desk.mailbox, &command)

    def lost(self, slot):
        """Notices for which a worker found no room, ever."""
        return _desk_slot(self._mapping, slot).lost


# --- the worker ---


cdef class Worker:
    """The relay's loop over one slot's sockets, table and counters. One per process and thread."""

    cdef ForwardConfig _config
    cdef _Mapping _table_memory
    cdef c.vr_table _table
    cdef _Mapping _stats_memory
    cdef c.vr_stats *_stats
    cdef c.vr_slots *_slots
    cdef c.vr_socket *_sockets[c.VR_LOOP_SOCKETS_MAX]
    cdef c.vr_loop_config _loop_config
    cdef _Mapping _desk_memory
    cdef c.vr_desk *_desk

    def __init__(self, *, slot, public, internal_fd, table_fd, stats_fd, stop_fd, life_fd,
                 ForwardConfig config not None, backbone_fd=-1, desks_fd=-1, answers_fd=-1,
                 bell_fd=-1, batch_max=c.VR_BATCH_MAX, coalesce_us=0, busy_poll_us=0):
        if self._slots != NULL:
            raise ValueError("a worker is made once")
        if len(public) > PUBLIC_SOCKETS_MAX:
            raise ValueError(f"too many public sockets: {len(public)}")
        if len({socket.index for socket in public}) != len(public):
            raise ValueError("two public sockets have one index")
        if not 1 <= batch_max <= c.VR_BATCH_MAX:
            raise ValueError(f"batch_max: {batch_max}")
        if not 0 <= coalesce_us <= c.VR_COALESCE_US_MAX:
            raise ValueError(f"coalesce_us: {coalesce_us}")
        if not 0 <= busy_poll_us <= c.VR_BUSY_POLL_US_MAX:
            raise ValueError(f"busy_poll_us: {busy_poll_us}")
        self._config = config
        self._table_memory = _Mapping(table_fd, True)
        _attach(&self._table, self._table_memory)
        self._stats_memory = _Mapping(stats_fd, True)
        self._stats = _stats_slot(self._stats_memory, slot)
        self._slots = c.vr_slots_new()
        if self._slots == NULL:
            raise MemoryError
        for socket in public:
            self._add_socket(socket.fd, c.VR_SIDE_PUBLIC, socket.index, socket.public_address)
        self._add_socket(internal_fd, c.VR_SIDE_INTERNAL, 0, None)
        if backbone_fd >= 0:
            self._add_socket(backbone_fd, c.VR_SIDE_BACKBONE, 0, None)
        self._loop_config.stats = self._stats
        self._loop_config.sockets = self._sockets
        self._loop_config.batch_max = batch_max
        self._loop_config.coalesce_us = coalesce_us
        self._loop_config.busy_poll_us = busy_poll_us
        self._loop_config.stop_fd = stop_fd
        self._loop_config.life_fd = life_fd
        self._loop_config.command_fd = -1
        if desks_fd >= 0:
            self._desk_memory = _Mapping(desks_fd, True)
            self._desk = _desk_slot(self._desk_memory, slot)
            self._loop_config.mailbox = &self._desk.mailbox
            self._loop_config.command_fd = answers_fd
            self._loop_config.bell_fd = bell_fd

    def __dealloc__(self):
        for i in range(self._loop_config.socket_count):
            c.vr_socket_free(self._sockets[i])
        c.vr_slots_free(self._slots)

    cdef int _add_socket(self, int fd, int side, int index, advertised) except -1:
        cdef c.vr_socket_config config
        config.fd = fd
        config.side = side
        config.listen = index
        config.advertised.port_be = 0
        config.slots = self._slots
        if advertised is not None:
            _parse_addr(advertised, &config.advertised)
        cdef c.vr_socket *socket = c.vr_socket_new(&config)
        if socket == NULL:
            raise OSError(c_errno, strerror(c_errno).decode())
        self._sockets[self._loop_config.socket_count] = socket
        self._loop_config.socket_count += 1
        return 0

    def run(self):
        """Forwards until it is told to stop, without the GIL and without a Python object."""
        cdef c.vr_forwarder *forwarder = NULL
        cdef c.vr_loop *loop = NULL
        cdef int end
        try:
            forwarder = c.vr_forwarder_new(
                &self._config.config, &self._table, self._stats, c.vr_loop_now_ns()
            )
            if forwarder == NULL:
                raise MemoryError
            self._loop_config.forwarder = forwarder
            if self._desk != NULL:
                self._loop_config.asker = c.vr_asker_new(self._desk, &self._table, forwarder)
                if self._loop_config.asker == NULL:
                    raise MemoryError
            loop = c.vr_loop_new(&self._loop_config)
            if loop == NULL:
                raise OSError(c_errno, strerror(c_errno).decode())
            self._stats.worker_pid = os.getpid()
            with nogil:
                end = c.vr_loop_run(loop)
        finally:
            c.vr_loop_free(loop)
            c.vr_asker_free(self._loop_config.asker)
            self._loop_config.asker = NULL
            c.vr_forwarder_free(forwarder)
        if end < 0:
            return f"failed: {os.strerror(-end)}"
        return "stopped" if end == c.VR_LOOP_STOPPED else "orphaned"
