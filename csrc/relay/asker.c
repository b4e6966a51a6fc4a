#include "asker.h"

#include <stdlib.h>

struct vr_asker {
    struct vr_desk *desk;
    const struct vr_table *table;
    struct vr_forwarder *forwarder;
    struct vr_parking *parking;
    bool must_ring;
};

struct vr_asker *vr_asker_new(struct vr_desk *desk, const struct vr_table *table,
                              struct vr_forwarder *forwarder) {
    struct vr_asker *asker = calloc(1, sizeof *asker);
    if (!asker)
        return NULL;
    *asker = (struct vr_asker){desk, table, forwarder, vr_parking_new(), false};
    if (!asker->parking) {
        free(asker);
        return NULL;
    }
    return asker;
}

void vr_asker_free(struct vr_asker *asker) {
    if (!asker)
        return;
    vr_parking_free(asker->parking);
    free(asker);
}

static void tell(struct vr_asker *asker, const struct vr_notice *notice) {
    if (vr_desk_put(asker->desk, notice))
        asker->must_ring = true;
}

bool vr_asker_park(struct vr_asker *asker, const struct vr_ingress *in, uint64_t now_ns) {
    struct vr_notice notice = {.kind = VR_NOTICE_ASK};
    if (!vr_forward_key(in, &notice.key))
        return false;
    uint64_t hash = vr_flow_hash(asker->table, &notice.key);
    enum vr_park status = vr_parking_put(asker->parking, &notice.key, hash, in, now_ns);
    if (status == VR_PARK_ASK)
        tell(asker, &notice);
    return status != VR_PARK_FULL;
}

void vr_asker_owners(struct vr_asker *asker, const struct vr_ingress *in, uint64_t now_ns) {
    struct vr_notice notice = {.kind = VR_NOTICE_OWNERS};
    if (!vr_forward_key(in, &notice.key))
        return;
    notice.tokens = vr_forward_owners(asker->forwarder, &notice.key, now_ns, notice.sealed);
    if (notice.tokens > 0)
        tell(asker, &notice);
}

bool vr_asker_must_ring(struct vr_asker *asker) {
    bool must_ring = asker->must_ring;
    asker->must_ring = false;
    return must_ring;
}

bool vr_asker_answer(struct vr_asker *asker, const struct vr_command *command, uint64_t now_ns,
                     struct vr_parked *parked, bool *recovered) {
    struct vr_answer answer;
    struct vr_cached_token tokens[2];
    if (command->kind != VR_COMMAND_ANSWER || command->data_bytes < sizeof answer)
        return false;
    memcpy(&answer, command->data, sizeof answer);
    uint64_t hash = vr_flow_hash(asker->table, &answer.key);
    if (!vr_parking_take(asker->parking, &answer.key, hash, parked))
        return false;
    unsigned count = answer.tokens < 2 ? answer.tokens : 2;
    for (unsigned i = 0; i < count; i++)
        tokens[i] = (struct vr_cached_token){answer.chars[i], VR_TOKEN_CHARS};
    *recovered = vr_forward_recover(asker->forwarder, &parked->in[0], tokens, count, now_ns) > 0;
    return true;
}

unsigned vr_asker_sweep(struct vr_asker *asker, uint64_t now_ns) {
    return vr_parking_sweep(asker->parking, now_ns);
}

bool vr_asker_is_waiting(const struct vr_asker *asker) {
    return vr_parking_flows(asker->parking) > 0;
}
