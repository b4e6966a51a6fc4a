/* loop.h: a worker's life: wait, receive a batch, vr_forward each datagram, send what it says.
 *
 * 1. One thread, no allocation after vr_loop_new, no Python: it runs where nobody holds the GIL.
 * 2. Each turn serves every ready socket once, with one batch of at most batch_max datagrams, and
 *    starts with another socket each time: a flood on one side delays the other by one batch.
 * 3. A batch is finished, sends included, before the next is received: a worker that dies at any
 *    instruction loses at most one batch and the backlogs (socket.h 3). All else waits in sockets. Only
 *    where trains come unannounced (socket.h 6) the first receive call may bring more than a batch.
 * 4. The clock is read once per batch (CLOCK_MONOTONIC_COARSE: a few milliseconds coarse, and cheap).
 * 5. Progress is counted every turn, and a turn comes at least every 100 ms; a stale count is a hang.
 * 6. stop_fd and life_fd are only watched, never read: all workers may share them.
 * 7. It never waits for more datagrams, unless coalesce_us asks for that: then, after a turn without a
 *    full batch, it sleeps so long, and the next batch is larger.
 * 8. With busy_poll_us the kernel looks into the network card for so long before the loop sleeps
 *    (EPIOCSPARAMS); a kernel that does not know how (before 6.9) just sleeps.
 */
#ifndef VR_LOOP_H
#define VR_LOOP_H

#include "asker.h"
#include "forward.h"
#include "mailbox.h"
#include "socket.h"
#include "stats.h"

#include <stddef.h>
#include <stdint.h>

enum { VR_LOOP_SOCKETS_MAX = 64, VR_COALESCE_US_MAX = 10000, VR_BUSY_POLL_US_MAX = 10000 };

enum vr_loop_end {
    VR_LOOP_GOES_ON = 0,
    VR_LOOP_STOPPED,  /* stop_fd is readable */
    VR_LOOP_ORPHANED, /* life_fd is readable or hung up: the supervisor is gone */
};

/* Called between two turns for each command that came in; must not block. */
typedef void vr_command_handler(void *context, const struct vr_command *command, uint64_t now_ns);

/* All pointers and descriptors are borrowed and outlive the loop; the array is copied. */
struct vr_loop_config {
    struct vr_forwarder *forwarder;
    struct vr_stats *stats;
    struct vr_socket *const *sockets; /* PUBLIC ones have distinct listen indexes */
    size_t socket_count;              /* 1..VR_LOOP_SOCKETS_MAX */
    unsigned batch_max;               /* 1..VR_BATCH_MAX */
    unsigned coalesce_us;             /* 0..VR_COALESCE_US_MAX */
    unsigned busy_poll_us;            /* 0..VR_BUSY_POLL_US_MAX */
    int stop_fd;                      /* an eventfd */
    int life_fd;                      /* the reading end of a pipe */
    int command_fd;                   /* the mailbox's eventfd, or -1: no commands */
    struct vr_mailbox *mailbox;
    vr_command_handler *on_command; /* gets what is no answer of the cache; may be NULL */
    void *command_context;
    struct vr_asker *asker; /* NULL: no cache. Its answers come by the mailbox */
    int bell_fd;            /* the cache's eventfd, with an asker */
};

struct vr_loop;

/* NULL with errno set: EINVAL, ENOMEM, or what epoll said. */
struct vr_loop *vr_loop_new(const struct vr_loop_config *config);
void vr_loop_free(struct vr_loop *loop);

/* One turn: waits at most `timeout_ms`, serves what is ready, expires flows when that is due.
 * An enum vr_loop_end, or -errno when the kernel refuses one of the loop's own descriptors. */
int vr_loop_turn(struct vr_loop *loop, int timeout_ms);

/* Turns until the end; returns as vr_loop_turn does, never VR_LOOP_GOES_ON. */
int vr_loop_run(struct vr_loop *loop);

/* The loop's clock, for those who share its sense of time (vr_forwarder_new). */
uint64_t vr_loop_now_ns(void);

#endif
