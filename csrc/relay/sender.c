#define _GNU_SOURCE
#include "sender.h"

#include <errno.h>
#include <netinet/udp.h>

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif

void vr_sender_init(struct vr_sender *sender, int fd, int family, enum vr_side side,
                    bool chooses_source) {
    int none = 0;
    sender->fd = fd;
    sender->family = family;
    sender->side = side;
    sender->chooses_source = chooses_source;
    /* Clients are many and each gets little: a run there is not worth looking for. */
    sender->makes_runs =
        side != VR_SIDE_PUBLIC && setsockopt(fd, IPPROTO_UDP, UDP_SEGMENT, &none, sizeof none) == 0;
}

static void count_drops(struct vr_stats *stats, enum vr_drop reason, unsigned datagrams) {
    vr_count_add(&stats->drop[reason], datagrams);
}

/* --- lining up --- */

static unsigned item_bytes(const struct vr_send_item *item) {
    return item->data_bytes + item->trailer_bytes;
}

/* The number of the group of this destination and TOS; VR_GROUPS when there are too many of them.
 * Once that is so it stays so for the whole line: all its datagrams are among the single ones.
 * One destination means one source here: runs are made inside only, where a sender is one socket and the
 * kernel chooses the address (chooses_source is for public wildcards). */
static uint16_t group_of(struct vr_sender *sender, const struct vr_addr *destination, uint8_t tos) {
    unsigned place = vr_addr_mix(destination, (uint32_t)tos << 16) >> (32 - VR_GROUPS_BITS);
    for (unsigned step = 0; step < VR_GROUPS; step++) {
        struct vr_send_group *group = &sender->group[(place + step) % VR_GROUPS];
        if (!group->used) {
            *group = (struct vr_send_group){*destination, tos, true, (uint16_t)sender->groups++};
            return group->number;
        }
        if (group->tos == tos && vr_addr_equal(&group->destination, destination))
            return group->number;
    }
    return VR_GROUPS;
}

void vr_sender_queue(struct vr_sender *sender, const struct vr_egress *egress,
                     const struct vr_hop *hop, struct vr_stats *stats) {
    struct vr_send_item *item = &sender->item[sender->count];
    if (sender->count == VR_LINE_MAX) {
        count_drops(stats, VR_DROP_SEND_BUSY, 1);
        return;
    }
    if (!vr_sockaddr_write(&item->name, sender->family, &hop->destination)) {
        count_drops(stats, VR_DROP_SEND_ERROR, 1);
        return;
    }
    item->data = egress->data;
    item->data_bytes = egress->data_bytes;
    item->tos = egress->tos;
    item->trailer_bytes = hop->is_relay ? egress->trailer_bytes : 0;
    if (item->trailer_bytes)
        memcpy(item->trailer, egress->trailer, sizeof item->trailer);
    item->has_source = sender->chooses_source && !vr_ip_is_any(hop->source_ip);
    if (item->has_source)
        memcpy(item->source_ip, hop->source_ip, 16);
    if (sender->makes_runs)
        sender->run_item[sender->count] = (struct vr_run_item){
            .flow = egress->flow,
            .bytes = (uint16_t)item_bytes(item),
            .group = group_of(sender, &hop->destination, egress->tos),
        };
    sender->count++;
}

/* All as it came, each on its own. */
static void arrange_singly(struct vr_sender *sender) {
    for (unsigned i = 0; i < sender->count; i++) {
        sender->runs.order[i] = (uint16_t)i;
        sender->runs.length[i] = 1;
    }
}

static void arrange(struct vr_sender *sender) {
    if (!sender->makes_runs || sender->count == 1)
        arrange_singly(sender);
    else
        vr_runs_arrange(&sender->runs, sender->run_item, sender->count);
    if (sender->groups > 0) {
        memset(sender->group, 0, sizeof sender->group);
        sender->groups = 0;
    }
}

/* --- messages --- */

static void add_control(struct msghdr *header, int level, int type, const void *data,
                        size_t data_bytes) {
    uint8_t *end = (uint8_t *)header->msg_control + header->msg_controllen;
    struct cmsghdr *part = (struct cmsghdr *)(void *)end;
    part->cmsg_level = level;
    part->cmsg_type = type;
    part->cmsg_len = CMSG_LEN(data_bytes);
    memcpy(CMSG_DATA(part), data, data_bytes);
    header->msg_controllen += CMSG_SPACE(data_bytes);
}

/* Makes a datagram leave from this address; the kernel goes on choosing the interface. */
static void add_source(struct msghdr *header, int family, const uint8_t source_ip[16]) {
    if (family == AF_INET) {
        struct in_pktinfo info = {0};
        memcpy(&info.ipi_spec_dst, source_ip + 12, 4);
        add_control(header, IPPROTO_IP, IP_PKTINFO, &info, sizeof info);
    } else {
        struct in6_pktinfo info = {0};
        memcpy(&info.ipi6_addr, source_ip, 16);
        add_control(header, IPPROTO_IPV6, IPV6_PKTINFO, &info, sizeof info);
    }
}

static bool goes_by_ipv4(const union vr_sockaddr *name) {
    return name->any.sa_family == AF_INET || IN6_IS_ADDR_V4MAPPED(&name->v6.sin6_addr);
}

/* As the kernel takes it: an int, for IPv6 the traffic class. An IPv6 socket sends by IPv4, too, and then
 * hears of the one for IPv4 only. */
static void add_tos(struct msghdr *header, const union vr_sockaddr *name, uint8_t tos) {
    int value = tos;
    if (goes_by_ipv4(name))
        add_control(header, IPPROTO_IP, IP_TOS, &value, sizeof value);
    else
        add_control(header, IPPROTO_IPV6, IPV6_TCLASS, &value, sizeof value);
}

static const struct vr_send_item *ordered(const struct vr_sender *sender, unsigned place) {
    return &sender->item[sender->runs.order[place]];
}

/* Makes messages of all items from `place` on, single ones before `single_until`. */
static unsigned make_messages(struct vr_sender *sender, unsigned place, unsigned single_until) {
    unsigned messages = 0, parts = 0;
    while (place < sender->count) {
        const struct vr_send_item *first = ordered(sender, place);
        unsigned items = place < single_until ? 1 : sender->runs.length[place];
        struct msghdr *header = &sender->message[messages].msg_hdr;
        *header = (struct msghdr){
            .msg_name = (void *)&first->name,
            .msg_namelen = vr_sockaddr_bytes(sender->family),
            .msg_iov = &sender->part[parts],
            .msg_control = &sender->control[messages],
        };
        if (first->has_source)
            add_source(header, sender->family, first->source_ip);
        if (first->tos)
            add_tos(header, &first->name, first->tos);
        if (items > 1) {
            uint16_t segment_bytes = (uint16_t)item_bytes(first);
            add_control(header, IPPROTO_UDP, UDP_SEGMENT, &segment_bytes, sizeof segment_bytes);
        }
        for (unsigned i = 0; i < items; i++, place++) {
            const struct vr_send_item *item = ordered(sender, place);
            sender->part[parts++] = (struct iovec){(void *)item->data, item->data_bytes};
            if (item->trailer_bytes)
                sender->part[parts++] = (struct iovec){(void *)item->trailer, item->trailer_bytes};
        }
        header->msg_iovlen = (size_t)(&sender->part[parts] - header->msg_iov);
        sender->message_items[messages++] = items;
    }
    return messages;
}

/* --- sending --- */

static enum vr_drop drop_reason(int error) {
    switch (error) {
    case EMSGSIZE:
        return VR_DROP_SEND_SIZE;
    case ENOBUFS:
    case ENOMEM:
        return VR_DROP_SEND_BUSY;
    default:
        return VR_DROP_SEND_ERROR;
    }
}

/* Whether a refused run may pass as single datagrams: a segment over the MTU, or a kernel or
 * device that cannot cut it apart. */
static bool is_about_runs(int error) {
    return error == EMSGSIZE || error == EIO || error == EINVAL || error == EOPNOTSUPP;
}

/* Whether the kernel has to send it in fragments. */
static bool is_fragmented(struct vr_sender *sender, const struct vr_send_item *item) {
    struct vr_addr peer;
    if (item_bytes(item) <= VR_PATHMTU_SAFE_BYTES || sender->side == VR_SIDE_PUBLIC)
        return false;
    vr_sockaddr_read(&peer, &item->name);
    return item_bytes(item) > vr_pathmtu_payload(&sender->pathmtu, &peer);
}

/* Counts the items of `messages` messages from `place` on as sent; returns the place after. */
static unsigned count_sent(struct vr_sender *sender, unsigned first_message, unsigned messages,
                           unsigned place, struct vr_stats *stats) {
    struct vr_side_stats *side = &stats->side[sender->side];
    unsigned items = 0, fragmented = 0;
    uint64_t bytes = 0;
    for (unsigned i = first_message; i < first_message + messages; i++)
        items += sender->message_items[i];
    for (unsigned i = place; i < place + items; i++) {
        bytes += item_bytes(ordered(sender, i));
        fragmented += is_fragmented(sender, ordered(sender, i));
    }
    if (fragmented)
        vr_count_add(&side->tx_fragmented, fragmented);
    vr_count_add(&side->tx_packets, items);
    vr_count_add(&side->tx_bytes, bytes);
    return place + items;
}

/* Sends the arranged items and skips over those that the kernel refuses. Returns how many are
 * dealt with: all, or fewer when the send buffer is full. */
static unsigned send_items(struct vr_sender *sender, struct vr_stats *stats) {
    unsigned place = 0, message = 0, single_until = 0;
    unsigned messages = make_messages(sender, 0, 0);
    bool suspicious = false; /* a run was refused, and not for its size */
    while (place < sender->count) {
        int sent =
            sendmmsg(sender->fd, sender->message + message, messages - message, MSG_DONTWAIT);
        if (sent > 0) {
            if (suspicious && place < single_until)
                sender->makes_runs = false;
            place = count_sent(sender, message, (unsigned)sent, place, stats);
            message += (unsigned)sent;
        } else if (errno == EAGAIN) {
            break;
        } else if (errno != EINTR) {
            unsigned items = sender->message_items[message];
            suspicious = items > 1 && errno != EMSGSIZE;
            if (items > 1 && is_about_runs(errno)) {
                single_until = place + items;
                messages = make_messages(sender, place, single_until);
                message = 0;
            } else {
                count_drops(stats, drop_reason(errno), items);
                place += items;
                message++;
            }
        }
    }
    return place;
}

/* --- the backlog --- */

static void backlog_push(struct vr_sender *sender, const struct vr_send_item *item,
                         struct vr_stats *stats) {
    unsigned place = (sender->backlog_first + sender->backlog_count) % VR_BACKLOG_MAX;
    struct vr_backlog_item *waiting = &sender->backlog[place];
    if (sender->backlog_count == VR_BACKLOG_MAX || item_bytes(item) > sizeof waiting->data) {
        count_drops(stats, VR_DROP_SEND_BUSY, 1);
        return;
    }
    waiting->item = *item;
    waiting->item.data = waiting->data;
    memcpy(waiting->data, item->data, item->data_bytes);
    memcpy(waiting->data + item->data_bytes, item->trailer, item->trailer_bytes);
    waiting->item.data_bytes = item_bytes(item);
    waiting->item.trailer_bytes = 0;
    sender->backlog_count++;
}

void vr_sender_flush(struct vr_sender *sender, struct vr_stats *stats) {
    if (sender->count == 0)
        return;
    arrange(sender);
    /* What comes now must not overtake what waits already. */
    unsigned done = sender->backlog_count > 0 ? 0 : send_items(sender, stats);
    for (; done < sender->count; done++)
        backlog_push(sender, ordered(sender, done), stats);
    sender->count = 0;
}

void vr_sender_flush_backlog(struct vr_sender *sender, struct vr_stats *stats) {
    sender->count = sender->backlog_count;
    for (unsigned i = 0; i < sender->count; i++) {
        sender->item[i] = sender->backlog[(sender->backlog_first + i) % VR_BACKLOG_MAX].item;
    }
    arrange_singly(sender);
    unsigned done = send_items(sender, stats);
    sender->backlog_first = (sender->backlog_first + done) % VR_BACKLOG_MAX;
    sender->backlog_count -= done;
    sender->count = 0;
}
