/* mailbox.h: commands from another process to a running loop: a ring in shared memory with one
 * writer and one reader, and an eventfd as its bell.
 *
 * 1. The writer puts a command, then adds 1 to the eventfd. The loop drains the ring when it rings.
 * 2. Cells are copied out before they are looked at; the reader's own position is private to it,
 *    so a writer that died or lies can only make commands appear, never break the reader.
 * 3. A full ring refuses: the writer keeps its command and tries again, it never waits.
 * 4. What does not fit a command (a configuration) lies in shared memory of its own, and the command
 *    names its generation.
 */
#ifndef VR_MAILBOX_H
#define VR_MAILBOX_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { VR_MAILBOX_CELLS = 256, VR_COMMAND_DATA_BYTES = 248 };

struct vr_command {
    uint32_t kind;       /* meaning is the handler's */
    uint32_t data_bytes; /* 0..VR_COMMAND_DATA_BYTES; the reader clamps it */
    uint8_t data[VR_COMMAND_DATA_BYTES];
};

/* Zeroed memory is an empty mailbox. The two positions are apart: no false sharing. */
struct vr_mailbox {
    uint64_t written __attribute__((aligned(64))); /* commands put, ever */
    uint64_t read __attribute__((aligned(64)));    /* commands taken, ever; for the writer's eyes */
    struct vr_command cell[VR_MAILBOX_CELLS] __attribute__((aligned(64)));
};

/* Writer. False when the ring is full. */
static inline bool vr_mailbox_put(struct vr_mailbox *mailbox, const struct vr_command *command) {
    uint64_t written = mailbox->written;
    uint64_t read = __atomic_load_n(&mailbox->read, __ATOMIC_ACQUIRE);
    if (written - read >= VR_MAILBOX_CELLS)
        return false;
    mailbox->cell[written % VR_MAILBOX_CELLS] = *command;
    __atomic_store_n(&mailbox->written, written + 1, __ATOMIC_RELEASE);
    return true;
}

/* Reader. `position` is the reader's own count, begun at mailbox->read. False when it is empty. */
static inline bool vr_mailbox_take(struct vr_mailbox *mailbox, uint64_t *position,
                                   struct vr_command *command) {
    if (__atomic_load_n(&mailbox->written, __ATOMIC_ACQUIRE) == *position)
        return false;
    *command = mailbox->cell[*position % VR_MAILBOX_CELLS];
    if (command->data_bytes > VR_COMMAND_DATA_BYTES)
        command->data_bytes = VR_COMMAND_DATA_BYTES;
    *position += 1;
    __atomic_store_n(&mailbox->read, *position, __ATOMIC_RELEASE);
    return true;
}

#endif
