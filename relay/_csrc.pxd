"""What the data plane's binding calls of csrc/wire and csrc/relay; the headers are the manual."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t


cdef extern from "wire/addr.h" nogil:
    struct vr_addr:
        uint8_t ip[16]
        uint16_t port_be

    struct vr_flow_key:
        vr_addr client
        vr_addr proxy

    bint vr_ip_is_v4(const uint8_t *ip)
    void vr_ip_from_v4(uint8_t *ip, const uint8_t *v4)


cdef extern from "wire/token.h" nogil:
    enum:
        VR_TOKEN_KEY_BYTES
        VR_TOKEN_BYTES
        VR_TOKEN_CHARS

    struct vr_ipv6_prefixes:
        uint16_t known_mask
        uint8_t prefix[16][8]

    struct vr_keyring:
        pass

    vr_keyring *vr_keyring_new()
    void vr_keyring_free(vr_keyring *ring)
    int vr_keyring_add(vr_keyring *ring, unsigned id, const uint8_t *key)


cdef extern from "wire/trailer.h" nogil:
    enum:
        VR_TRAILER_KEYS_MAX

    struct vr_trailer_keys:
        pass

    vr_trailer_keys *vr_trailer_keys_new()
    void vr_trailer_keys_free(vr_trailer_keys *keys)
    int vr_trailer_keys_add(vr_trailer_keys *keys, const uint8_t *key)


cdef extern from "relay/stats.h" nogil:
    enum:
        VR_SIDE_PUBLIC
        VR_SIDE_INTERNAL
        VR_SIDE_BACKBONE
        VR_SIDES

    enum:
        VR_DROPS
        VR_STATS_SLOT_BYTES
        VR_ROUTE_ADDRS_SHOWN

    struct vr_side_stats:
        uint64_t rx_packets
        uint64_t rx_bytes
        uint64_t tx_packets
        uint64_t tx_bytes
        uint64_t tx_fragmented

    struct vr_stats:
        uint64_t progress
        uint64_t progress_ns
        uint64_t worker_pid
        vr_side_stats side[3]
        uint64_t drop[1]
        uint64_t kernel_drops
        uint64_t flows_half_open
        uint64_t flows_established
        uint64_t flows_created
        uint64_t flows_promoted
        uint64_t flows_expired
        uint64_t half_open_displaced
        uint64_t probes_sent
        uint64_t probes_answered
        uint64_t probes_echoed
        uint64_t route_falls
        uint64_t route_digest
        uint64_t route_down[1]


cdef extern from "relay/table.h" nogil:
    enum:
        VR_FLOWS_MAX
        VR_FLOW_OWNERS
        VR_TABLE_LAYOUT_VERSION

    enum:
        VR_POOL_ESTABLISHED
        VR_POOL_HALF_OPEN
        VR_POOLS

    enum:
        VR_VALID_OWNERS

    struct vr_owner:
        uint16_t cluster_id
        vr_addr address

    struct vr_owner_half:
        vr_owner owner

    struct vr_flow:
        vr_flow_key key
        uint8_t valid
        uint32_t owner_seen_ms
        uint32_t up_packets
        uint64_t up_bytes
        vr_owner_half half[2]
        uint32_t created_ms
        uint32_t down_packets
        uint64_t down_bytes

    struct vr_flow_rest:
        uint32_t success_ms[2]

    struct vr_table:
        uint32_t max_flows
        uint32_t slots
        uint32_t first_slot[2]

    enum vr_table_status:
        VR_TABLE_OK
        VR_TABLE_SIZE
        VR_TABLE_MAGIC
        VR_TABLE_LAYOUT
        VR_TABLE_HEADER

    size_t vr_table_bytes(uint32_t max_flows)
    vr_table_status vr_table_format(void *memory, size_t bytes, uint32_t max_flows,
                                    const uint8_t *hash_key)
    vr_table_status vr_table_attach(vr_table *table, void *memory, size_t bytes)
    void vr_table_take(vr_table *table)
    void vr_table_count(const vr_table *table, uint32_t *counts)
    uint32_t vr_clock_ms(uint64_t now_ns)
    uint32_t vr_age_ms(uint32_t now_ms, uint32_t then_ms)
    bint vr_flow_in_use(const vr_table *table, uint32_t slot)
    int vr_flow_pool(const vr_table *table, uint32_t slot)


cdef extern from "relay/audit.h" nogil:
    enum vr_fault_kind:
        pass

    struct vr_fault:
        uint32_t slot
        vr_fault_kind kind

    bint vr_flow_read(const vr_table *table, uint32_t slot, vr_flow *flow, vr_flow_rest *rest)
    size_t vr_table_audit(const vr_table *table, vr_fault *faults, size_t capacity)
    const char *vr_fault_text(vr_fault_kind kind)


cdef extern from "relay/forward.h" nogil:
    enum:
        VR_CLUSTER_ROUTE_ADDRS

    struct vr_cidr:
        uint8_t ip[16]
        uint8_t prefix_bits
        uint16_t port_min
        uint16_t port_max

    struct vr_cluster_route:
        uint16_t cluster_id
        unsigned addrs
        vr_addr addr[8]

    uint64_t vr_probes_digest(const vr_cluster_route *route, size_t routes)

    struct vr_limits:
        uint32_t token_new_flows_per_s
        uint32_t token_established_flows
        uint32_t flow_checks_per_s
        uint32_t transceiver_new_flows_per_s
        uint32_t source_unanswered

    struct vr_forward_config:
        uint16_t cluster_id
        vr_keyring *keyring
        vr_ipv6_prefixes ipv6_prefixes
        const vr_cidr *allow_transceiver
        size_t allow_transceiver_count
        const vr_cidr *backbone_allow
        size_t backbone_allow_count
        const vr_cluster_route *routes
        size_t route_count
        vr_trailer_keys *backbone_keys
        vr_limits limits
        uint64_t idle_timeout_ns
        bint park_enabled

    struct vr_forwarder:
        pass

    vr_forwarder *vr_forwarder_new(const vr_forward_config *config, vr_table *table,
                                   vr_stats *stats, uint64_t now_ns)
    void vr_forwarder_free(vr_forwarder *forwarder)


cdef extern from "relay/socket.h" nogil:
    enum:
        VR_BATCH_MAX

    struct vr_slots:
        pass

    struct vr_socket:
        pass

    struct vr_socket_config:
        int fd
        int side
        uint8_t listen
        vr_addr advertised
        vr_slots *slots

    vr_slots *vr_slots_new()
    void vr_slots_free(vr_slots *slots)
    vr_socket *vr_socket_new(const vr_socket_config *config)
    void vr_socket_free(vr_socket *socket)


cdef extern from "relay/desk.h" nogil:
    enum:
        VR_MAILBOX_CELLS
        VR_NOTICE_ASK
        VR_NOTICE_OWNERS
        VR_COMMAND_ANSWER

    struct vr_command:
        uint32_t kind
        uint32_t data_bytes
        uint8_t data[1]

    struct vr_mailbox:
        pass

    struct vr_notice:
        uint32_t kind
        uint32_t tokens
        vr_flow_key key
        uint8_t sealed[2][1]

    struct vr_answer:
        vr_flow_key key
        uint8_t tokens
        uint8_t chars[2][1]

    struct vr_desk:
        vr_mailbox mailbox
        uint64_t lost

    bint vr_mailbox_put(vr_mailbox *mailbox, const vr_command *command)
    bint vr_desk_take(vr_desk *desk, vr_notice *notice)


cdef extern from "relay/asker.h" nogil:
    struct vr_asker:
        pass

    vr_asker *vr_asker_new(vr_desk *desk, const vr_table *table, vr_forwarder *forwarder)
    void vr_asker_free(vr_asker *asker)


cdef extern from "relay/loop.h" nogil:
    enum:
        VR_LOOP_SOCKETS_MAX
        VR_COALESCE_US_MAX
        VR_BUSY_POLL_US_MAX

    enum:
        VR_LOOP_GOES_ON
        VR_LOOP_STOPPED
        VR_LOOP_ORPHANED

    struct vr_loop_config:
        vr_asker *asker
        int bell_fd
        vr_mailbox *mailbox
        vr_forwarder *forwarder
        vr_stats *stats
        vr_socket *const *sockets
        size_t socket_count
        unsigned batch_max
        unsigned coalesce_us
        unsigned busy_poll_us
        int stop_fd
        int life_fd
        int command_fd

    struct vr_loop:
        pass

    vr_loop *vr_loop_new(const vr_loop_config *config)
    void vr_loop_free(vr_loop *loop)
    int vr_loop_run(vr_loop *loop)
    uint64_t vr_loop_now_ns()
