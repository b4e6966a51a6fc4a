/* asker.h: a worker's side of the flow cache: what waits for an answer, and what the cache should know.
 *
 * Sans-IO: the loop rings the bell, sends and counts. The cache may be slow, wrong or gone: nothing
 * here waits for it, and what it answers is checked like bytes from the wire (vr_forward_recover).
 */
#ifndef VR_ASKER_H
#define VR_ASKER_H

#include "desk.h"
#include "forward.h"
#include "parking.h"

struct vr_asker;

/* All are borrowed; `desk` is shared memory, zeroed or left by an earlier worker. NULL: no memory. */
struct vr_asker *vr_asker_new(struct vr_desk *desk, const struct vr_table *table,
                              struct vr_forwarder *forwarder);
void vr_asker_free(struct vr_asker *asker);

/* After VR_VERDICT_PARK. False when there is no room for the datagram: drop it. */
bool vr_asker_park(struct vr_asker *asker, const struct vr_ingress *in, uint64_t now_ns);

/* After a datagram with `owners_due`: tells the cache who owns its flow. */
void vr_asker_owners(struct vr_asker *asker, const struct vr_ingress *in, uint64_t now_ns);

/* True once for one or more notices since the last call: ring the cache's bell. */
bool vr_asker_must_ring(struct vr_asker *asker);

/* An answer of the cache. Fills `parked` with what waited for it: to be forwarded when `*recovered`,
 * else to be dropped. False when nothing waits for it, or the command is no answer. */
bool vr_asker_answer(struct vr_asker *asker, const struct vr_command *command, uint64_t now_ns,
                     struct vr_parked *parked, bool *recovered);

/* Gives up what has waited too long; how many datagrams that were. Due every 10 ms while any wait. */
unsigned vr_asker_sweep(struct vr_asker *asker, uint64_t now_ns);
bool vr_asker_is_waiting(const struct vr_asker *asker);

#endif
