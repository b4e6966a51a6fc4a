/* SipHash-1-3 against CPython's own (hash() of bytes under PYTHONHASHSEED=0, whose key is zero; its
 * result is the hash's low 64 bits). Little-endian machines, as CPython's vectors are. */
#include "check.h"
#include "relay/siphash.h"

TEST(vectors_of_another_implementation) {
    static const struct {
        size_t bytes;
        bool counting; /* 0, 1, 2 ... ; else 'a', 'b', 'c' ... */
        uint64_t hash;
    } vectors[] = {{1, false, 0x407448d2b89b1813},
                   {7, false, 0x6db12aae9070f506},
                   {8, false, 0x3f7b849c0b8e35ea},
                   {36, true, 0xac77921fcc642bd3},
                   {63, true, 0x385d3e39e5f37359}};
    const struct vr_hash_key zero = {{0, 0}};
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        uint8_t data[64];
        for (size_t j = 0; j < vectors[i].bytes; j++)
            data[j] = (uint8_t)(vectors[i].counting ? j : 'a' + j);
        const uint8_t *guarded = guard_copy(data, vectors[i].bytes);
        CHECK(vr_siphash(&zero, guarded, vectors[i].bytes) == vectors[i].hash);
    }
}

TEST(the_key_matters) {
    const struct vr_hash_key one = {{1, 0}}, two = {{0, 1}};
    CHECK(vr_siphash(&one, "flow", 4) != vr_siphash(&two, "flow", 4));
}
