/* vectors.h: the named messages of tests/vectors/stun.txt. */
#ifndef VR_VECTORS_H
#define VR_VECTORS_H

#include "check.h"

struct vector {
    uint8_t data[256];
    size_t bytes;
};

/* Reads the hex of `name`: from behind its colon to the next blank line. Ends the program when
 * there is none. */
static inline struct vector vector_load(const char *name) {
    struct vector vector = {.bytes = 0};
    char line[256], label[64];
    bool inside = false;
    FILE *file = fopen(VR_TESTS_DIR "/vectors/stun.txt", "r");
    if (!file)
        abort();
    snprintf(label, sizeof label, "%s:", name);
    while (fgets(line, sizeof line, file)) {
        size_t indent = strspn(line, " ");
        if (!inside)
            inside = strncmp(line, label, strlen(label)) == 0;
        else if (indent == 0)
            break;
        else
            vector.bytes += from_hex(line + indent, vector.data + vector.bytes,
                                     sizeof vector.data - vector.bytes);
    }
    fclose(file);
    if (vector.bytes == 0) {
        printf("no vector %s\n", name);
        abort();
    }
    return vector;
}

#endif
