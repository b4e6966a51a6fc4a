/* transactions.h: the checks that were forwarded a moment ago, so that their responses are known
 * (design rule 3).
 *
 * 1. A check is remembered under flow key, transaction id and the transceiver it went to (for another
 *    cluster: that it went to a route). Somebody else's check with the same id, sent to another
 *    transceiver, lies elsewhere.
 * 2. Of two such checks to the same place the first stays: a replay cannot rewrite what a success
 *    will confirm.
 * 3. It is forgotten after VR_CHECK_MEMORY_MS, or when both its buckets are full of newer ones.
 */
#ifndef VR_TRANSACTIONS_H
#define VR_TRANSACTIONS_H

#include "table.h"

enum { VR_CHECK_MEMORY_MS = 2000 };

/* A check that was forwarded, and what a success makes of it. */
struct vr_transaction {
    struct vr_claim claim; /* its token, and whom that names */
    struct vr_path path;   /* where it came in */
};

struct vr_transactions;

/* Room for `checks` at a time. NULL when memory is not to be had. */
struct vr_transactions *vr_transactions_new(size_t checks, const struct vr_hash_key *hash_key);
void vr_transactions_free(struct vr_transactions *transactions);

/* The place of a check: `transceiver` is where it goes, NULL for a route of another cluster. */
uint64_t vr_transaction_hash(const struct vr_transactions *transactions,
                             const struct vr_flow_key *key, const uint8_t *tid,
                             const struct vr_addr *transceiver);

void vr_transactions_remember(struct vr_transactions *transactions, uint64_t hash,
                              const struct vr_transaction *transaction, uint32_t now_ms);

/* The remembered check, valid until the next vr_transactions_remember, or NULL. */
const struct vr_transaction *vr_transactions_find(const struct vr_transactions *transactions,
                                                  uint64_t hash, uint32_t now_ms);

#endif
