/* replay.c: a main for fuzz targets without libFuzzer: runs each file of the given directories. */
#include "fuzz.h"

#include <dirent.h>
#include <stdio.h>

enum { INPUT_MAX_BYTES = 1 << 17 };

static int replay_file(const char *path) {
    static uint8_t data[INPUT_MAX_BYTES];
    FILE *file = fopen(path, "rb");
    if (!file) {
        perror(path);
        return 1;
    }
    size_t bytes = fread(data, 1, sizeof data, file);
    fclose(file);
    uint8_t *input = exact_copy(data, bytes);
    LLVMFuzzerTestOneInput(input, bytes);
    free(input);
    return 0;
}

int main(int argc, char **argv) {
    unsigned passed = 0, failed = 0;
    for (int i = 1; i < argc; i++) {
        DIR *directory = opendir(argv[i]);
        if (!directory) {
            perror(argv[i]);
            return 1;
        }
        for (struct dirent *entry; (entry = readdir(directory));) {
            char path[4096];
            if (entry->d_name[0] == '.')
                continue;
            snprintf(path, sizeof path, "%s/%s", argv[i], entry->d_name);
            if (replay_file(path) == 0)
                passed++;
            else
                failed++;
        }
        closedir(directory);
    }
    printf("%u passed, %u failed\n", passed, failed);
    return failed != 0 || passed == 0;
}
