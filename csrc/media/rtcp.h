/* rtcp.h: compound RTCP, read and written (RFC 3550 6), and the statistics that reports are made of.
 *
 * 1. A reader takes what it knows out of a compound packet and steps over the rest; a length that
 *    runs past the packet ends everything: nothing of such a packet is used.
 * 2. Reduced-size packets (RFC 5506) are read like any other.
 * 3. Clocks are arguments: `now_ns` monotonic, `ntp` 32.32 fixed-point seconds of any epoch that stays
 *    the same for a session's life.
 */
#ifndef VR_RTCP_H
#define VR_RTCP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    VR_RTCP_HEADER_BYTES = 8,  /* common header and sender SSRC: what SRTCP leaves in clear */
    VR_RTCP_WRITE_BYTES = 128, /* room that vr_rtcp_write needs at most */
    VR_RTCP_CNAME_BYTES = 32,
    VR_RTCP_ROUND_TRIP_MAX_S = 30, /* a call without anything authentic for so long is over */
};

enum vr_rtcp_status {
    VR_RTCP_OK = 0,
    VR_RTCP_SHORT,   /* under 8 bytes, or a part is shorter than its own counts say */
    VR_RTCP_VERSION, /* version is not 2 */
    VR_RTCP_LENGTH,  /* a length runs past the packet, or bytes are left over */
    VR_RTCP_PADDING, /* padding anywhere but in the last part, or of an impossible length */
};

/* RFC 3550 6.4.1: what one side says about a stream that it receives. */
struct vr_rtcp_block {
    uint32_t ssrc;
    uint8_t fraction_lost;     /* 1/256 since the previous report */
    int32_t lost;              /* cumulative, 24 bits signed */
    uint32_t highest_sequence; /* extended: cycles in the upper half */
    uint32_t jitter;           /* timestamp units */
    uint32_t last_sr;          /* middle 32 bits of the NTP time of the last SR; 0 when none came */
    uint32_t delay_since_sr;   /* 1/65536 s */
};

struct vr_rtcp {
    bool has_report;            /* an SR or RR was there */
    uint32_t sender_ssrc;       /* of the first of them */
    bool has_sender_info;       /* an SR was there */
    bool has_block;             /* somebody reports on `about_ssrc` */
    bool has_bye;               /* `bye_ssrc` says goodbye */
    uint64_t ntp;               /* of the first SR */
    uint32_t rtp_timestamp;     /* of the SR */
    uint32_t bye_ssrc;          /* first of the list; 0 with an empty list */
    struct vr_rtcp_block block; /* about `about_ssrc` */
    unsigned unknown_count;     /* parts that were stepped over (feedback, XR, APP) */
};

enum vr_rtcp_status vr_rtcp_read(const uint8_t *data, size_t bytes, uint32_t about_ssrc,
                                 struct vr_rtcp *out);

/* What we say: an SR when `sent_packets` is not 0, else an RR; then SDES CNAME, and BYE if asked. */
struct vr_rtcp_report {
    uint32_t ssrc;
    uint64_t ntp;
    uint32_t rtp_timestamp; /* of the instant `ntp` on our stream's clock */
    uint32_t sent_packets;
    uint32_t sent_bytes; /* payload only */
    bool has_block;
    bool bye;
    struct vr_rtcp_block block;
    const char *cname; /* at most VR_RTCP_CNAME_BYTES characters are used */
};

/* Returns the bytes written; `out` has VR_RTCP_WRITE_BYTES. */
size_t vr_rtcp_write(uint8_t *out, const struct vr_rtcp_report *report);

/* The round trip of RFC 3550 6.4.1 in ns; 0 when the block answers no report of ours, or when it comes out
 * negative (clock resolution on a short path) or over VR_RTCP_ROUND_TRIP_MAX_S (a peer that cannot count). */
uint64_t vr_rtcp_round_trip_ns(const struct vr_rtcp_block *block, uint64_t ntp_now);

/* Reception of one source (RFC 3550 A.1, A.3, A.8). Zero-initialised; a new SSRC starts again. A sequence number far
 * off is no loss: when the next one confirms it, counting goes on from there. */
struct vr_reception {
    bool started;
    uint32_t ssrc;
    uint32_t clock_hz;
    uint16_t highest_sequence;
    uint32_t cycles; /* in the upper 16 bits */
    uint32_t base_sequence;
    uint32_t received;
    uint32_t lost_before; /* of numbers that the source jumped away from */
    bool jump_pending;
    uint16_t jump_sequence; /* what would confirm it */
    uint32_t expected_prior;
    uint32_t received_prior;
    uint32_t jitter_16; /* jitter times 16, timestamp units */
    bool has_transit;
    uint32_t last_transit; /* arrival minus timestamp, timestamp units */
    uint32_t last_sr;      /* middle 32 bits of the peer's last SR */
    uint64_t last_sr_at_ns;
};

void vr_reception_start(struct vr_reception *r, uint32_t ssrc, uint16_t sequence,
                        uint32_t clock_hz);
void vr_reception_add(struct vr_reception *r, uint16_t sequence, uint32_t timestamp,
                      uint64_t now_ns);

/* A packet without a time of its own: an event has that of its beginning. */
void vr_reception_add_untimed(struct vr_reception *r, uint16_t sequence);

/* The source's timestamps have another clock from now on. */
void vr_reception_change_clock(struct vr_reception *r, uint32_t clock_hz);

void vr_reception_sender_report(struct vr_reception *r, uint64_t ntp, uint64_t now_ns);

/* Packets that never came, by the extended sequence numbers; never negative. */
uint32_t vr_reception_lost(const struct vr_reception *r);

/* Fills a block and starts the next interval of `fraction_lost`. */
void vr_reception_block(struct vr_reception *r, uint64_t now_ns, struct vr_rtcp_block *out);

#endif
