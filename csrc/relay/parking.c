#include "parking.h"

#include "../wire/spp.h"

#include <stdlib.h>
#include <string.h>

enum {
    WAYS = 8,
    SETS = VR_PARKED_FLOWS / WAYS,
    /* 8-aligned payload, SPP header at 2 mod 8 before it, as in a receive slot. */
    PAYLOAD_OFFSET = 48,
    HEADER_OFFSET = PAYLOAD_OFFSET - VR_SPP_BYTES,
    PLACE_BYTES = PAYLOAD_OFFSET + 2048,
};

_Static_assert(VR_PARKED_BYTES_MAX == 2048 + VR_SPP_BYTES,
               "a payload and, from inside, its header");

union place {
    uint64_t align;
    uint8_t data[PLACE_BYTES];
};

struct group {
    uint64_t hash;
    uint64_t since_ns; /* 0: free */
    struct vr_flow_key key;
    struct vr_parked parked;
};

struct vr_parking {
    unsigned flows;
    struct group group[SETS][WAYS];
    union place place[SETS][WAYS][VR_PARKED_PACKETS];
};

struct vr_parking *vr_parking_new(void) {
    return calloc(1,
                  sizeof(struct vr_parking)); /* large: pages that no datagram used are no memory */
}

void vr_parking_free(struct vr_parking *parking) {
    free(parking);
}

unsigned vr_parking_flows(const struct vr_parking *parking) {
    return parking->flows;
}

/* The way of the flow in its set, or WAYS. */
static unsigned find(const struct group *set, const struct vr_flow_key *key, uint64_t hash) {
    for (unsigned way = 0; way < WAYS; way++)
        if (set[way].since_ns && set[way].hash == hash && vr_flow_key_equal(&set[way].key, key))
            return way;
    return WAYS;
}

static void store(struct group *group, union place *place, const struct vr_ingress *in) {
    unsigned i = group->parked.count++;
    uint8_t *data = place[i].data + (in->side == VR_SIDE_PUBLIC ? PAYLOAD_OFFSET : HEADER_OFFSET);
    memcpy(data, in->data, in->data_bytes);
    group->parked.in[i] = *in;
    group->parked.in[i].data = data;
    group->parked.in[i].parked = true;
}

enum vr_park vr_parking_put(struct vr_parking *parking, const struct vr_flow_key *key,
                            uint64_t hash, const struct vr_ingress *in, uint64_t now_ns) {
    unsigned index = (unsigned)(hash % SETS);
    struct group *set = parking->group[index];
    uint32_t longest = in->side == VR_SIDE_PUBLIC ? 2048 : VR_PARKED_BYTES_MAX;
    if (in->data_bytes > longest)
        return VR_PARK_FULL;
    unsigned way = find(set, key, hash);
    if (way < WAYS) {
        if (set[way].parked.count == VR_PARKED_PACKETS)
            return VR_PARK_FULL;
        store(&set[way], parking->place[index][way], in);
        return VR_PARK_WAIT;
    }
    for (way = 0; way < WAYS && set[way].since_ns; way++)
        continue;
    if (way == WAYS)
        return VR_PARK_FULL;
    set[way] = (struct group){.hash = hash, .since_ns = now_ns ? now_ns : 1, .key = *key};
    store(&set[way], parking->place[index][way], in);
    parking->flows++;
    return VR_PARK_ASK;
}

bool vr_parking_take(struct vr_parking *parking, const struct vr_flow_key *key, uint64_t hash,
                     struct vr_parked *parked) {
    struct group *set = parking->group[hash % SETS];
    unsigned way = find(set, key, hash);
    if (way == WAYS)
        return false;
    *parked = set[way].parked;
    set[way].since_ns = 0;
    parking->flows--;
    return true;
}

unsigned vr_parking_sweep(struct vr_parking *parking, uint64_t now_ns) {
    unsigned given_up = 0;
    if (parking->flows == 0)
        return 0;
    for (unsigned i = 0; i < SETS * WAYS; i++) {
        struct group *group = &parking->group[i / WAYS][i % WAYS];
        if (group->since_ns && now_ns - group->since_ns >= (uint64_t)VR_PARKED_MS * 1000000) {
            given_up += group->parked.count;
            group->since_ns = 0;
            parking->flows--;
        }
    }
    return given_up;
}
