#include "load.h"

#include "../../csrc/wire/bytes.h"
#include "../../csrc/wire/spp.h"

#include <string.h>

/* Attackers are 127.64.0.0 and on: no client's address (load.h). */
enum { STRANGERS_MASK = 0x003fffff, STRANGERS_FIRST = 0x7f400000 };

enum source { RANDOM_STRANGER, ONE_STRANGER, VICTIMS };
enum ufrag { RANDOM_CHARS, FORGED, GIVEN };

struct attack {
    const char *name;
    enum source source;
    enum ufrag ufrag;
    const char *tail; /* "mine": of a session whose password he has, so it is answered */
    bool same_bytes;  /* one captured datagram again and again */
    bool nominates;   /* with USE-CANDIDATE */
};

static const struct attack attacks[] = {
    {"random", RANDOM_STRANGER, RANDOM_CHARS, "evil", false, false},
    {"forged", RANDOM_STRANGER, FORGED, "evil", false, false},
    {"replay", RANDOM_STRANGER, GIVEN, "evil", false, false},
    {"captured", ONE_STRANGER, GIVEN, "evil", true, false},
    {"captured-anywhere", RANDOM_STRANGER, GIVEN, "evil", true, false},
    {"spoof", VICTIMS, GIVEN, "mine", false, false},
    {"nominate", RANDOM_STRANGER, GIVEN, "mine", false, true},
};

const struct attack *attack_named(const char *name) {
    for (size_t i = 0; i < sizeof attacks / sizeof attacks[0]; i++)
        if (strcmp(name, attacks[i].name) == 0)
            return &attacks[i];
    return NULL;
}

bool attack_is_answered(const uint8_t *datagram) {
    return memcmp(datagram + VR_SPP_BYTES + 24 + UFRAG_CHARS, ":mine", 5) == 0;
}

static uint64_t mix(uint64_t serial) { /* splitmix64 */
    serial = (serial + 1) * UINT64_C(0x9E3779B97F4A7C15);
    serial = (serial ^ serial >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    serial = (serial ^ serial >> 27) * UINT64_C(0x94D049BB133111EB);
    return serial ^ serial >> 31;
}

static uint32_t source_ip(const struct attack *attack, uint64_t serial) {
    if (attack->source == VICTIMS)
        return client_ip((unsigned)(mix(serial) % ends.flows));
    if (attack->source == ONE_STRANGER)
        return htonl(STRANGERS_FIRST);
    return htonl(STRANGERS_FIRST + (uint32_t)(mix(serial) & STRANGERS_MASK));
}

/* Random characters, from place `from` on. */
static void scramble(char *ufrag, unsigned from, uint64_t serial) {
    static const char base64[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint64_t bits = 0;
    for (unsigned i = from; i < UFRAG_CHARS; i++, bits >>= 6) {
        if ((i - from) % 10 == 0)
            bits = mix(serial ^ (uint64_t)i << 56);
        ufrag[i] = base64[bits & 63];
    }
}

void attack_add(struct line *line, const struct attack *attack, uint16_t port, const char *given,
                uint64_t serial) {
    char ufrag[UFRAG_CHARS + 1];
    uint8_t *data = line_add(line, port, 0, source_ip(attack, serial));
    memcpy(ufrag, given, sizeof ufrag);
    if (attack->ufrag != GIVEN)
        scramble(ufrag, attack->ufrag == FORGED ? 1 : 0, serial);
    /* Ids of their own: honest checks count from 0. */
    uint64_t tid = attack->same_bytes ? UINT64_MAX : UINT64_C(0xA77AC4) << 40 | serial;
    size_t bytes = write_check(data, ufrag, attack->tail, tid);
    if (attack->nominates) {
        vr_store_be32(data + bytes, UINT32_C(0x00250000));
        bytes += 4;
        vr_store_be16(data + 2, (uint16_t)(bytes - 20));
    }
    line->part[line->count - 1].iov_len = bytes;
}
