#include "check.h"
#include "wire/crc32.h"

/* Bit by bit, as the polynomial division is defined. */
static uint32_t slow_crc32(const uint8_t *data, size_t bytes) {
    uint32_t crc = 0xFFFFFFFF;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= data[i];
        for (unsigned bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ ((crc & 1) ? 0xEDB88320 : 0);
    }
    return ~crc;
}

TEST(check_value_of_the_catalogue) {
    CHECK_EQ(vr_crc32((const uint8_t *)"123456789", 9), 0xCBF43926);
    CHECK_EQ(vr_crc32(NULL, 0), 0);
}

TEST(equals_the_bitwise_definition_at_every_length_and_alignment) {
    uint8_t data[300];
    uint32_t state = 1;
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)((state = state * 1664525 + 1013904223) >> 24);
    for (size_t bytes = 0; bytes <= sizeof data; bytes++) {
        const uint8_t *at = guard_copy(data, bytes);
        CHECK_EQ(vr_crc32(at, bytes), slow_crc32(data, bytes));
    }
}

TEST(every_byte_value_in_every_lane) {
    for (unsigned lane = 0; lane < 5; lane++) {
        for (unsigned value = 0; value < 256; value++) {
            uint8_t data[5] = {0};
            data[lane] = (uint8_t)value;
            CHECK_EQ(vr_crc32(data, sizeof data), slow_crc32(data, sizeof data));
        }
    }
}
