#include "crc32.h"

/* Slicing by four: step[k][b] is what byte `b` becomes after 8 * (k + 1) shifts of the register.
 * That is linear in the bits of `b`, so each of the four tables is the XOR of eight constants,
 * which the compiler works out; nothing is built at run time and no thread has to be first. */
#define BIT(b, i, c) ((((b) >> (i)) & 1) ? (c) : 0)
#define E1(b, c0, c1, c2, c3, c4, c5, c6, c7)                                                      \
    (BIT(b, 0, c0) ^ BIT(b, 1, c1) ^ BIT(b, 2, c2) ^ BIT(b, 3, c3) ^ BIT(b, 4, c4) ^               \
     BIT(b, 5, c5) ^ BIT(b, 6, c6) ^ BIT(b, 7, c7))
#define E4(b, ...)                                                                                 \
    E1((b), __VA_ARGS__), E1((b) + 1, __VA_ARGS__), E1((b) + 2, __VA_ARGS__),                      \
        E1((b) + 3, __VA_ARGS__)
#define E16(b, ...)                                                                                \
    E4((b), __VA_ARGS__), E4((b) + 4, __VA_ARGS__), E4((b) + 8, __VA_ARGS__),                      \
        E4((b) + 12, __VA_ARGS__)
#define E64(b, ...)                                                                                \
    E16((b), __VA_ARGS__), E16((b) + 16, __VA_ARGS__), E16((b) + 32, __VA_ARGS__),                 \
        E16((b) + 48, __VA_ARGS__)
#define TABLE(...)                                                                                 \
    {E64(0, __VA_ARGS__), E64(64, __VA_ARGS__), E64(128, __VA_ARGS__), E64(192, __VA_ARGS__)}

static const uint32_t step[4][256] = {
    TABLE(0x77073096, 0xEE0E612C, 0x076DC419, 0x0EDB8832, 0x1DB71064, 0x3B6E20C8, 0x76DC4190,
          0xEDB88320),
    TABLE(0x191B3141, 0x32366282, 0x646CC504, 0xC8D98A08, 0x4AC21251, 0x958424A2, 0xF0794F05,
          0x3B83984B),
    TABLE(0x01C26A37, 0x0384D46E, 0x0709A8DC, 0x0E1351B8, 0x1C26A370, 0x384D46E0, 0x709A8DC0,
          0xE1351B80),
    TABLE(0xB8BC6765, 0xAA09C88B, 0x8F629757, 0xC5B428EF, 0x5019579F, 0xA032AF3E, 0x9B14583D,
          0xED59B63B),
};

uint32_t vr_crc32(const uint8_t *data, size_t bytes) {
    uint32_t crc = 0xFFFFFFFF;

    for (; bytes >= 4; data += 4, bytes -= 4) {
        crc ^= (uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 |
               (uint32_t)data[3] << 24;
        crc = step[3][crc & 0xFF] ^ step[2][crc >> 8 & 0xFF] ^ step[1][crc >> 16 & 0xFF] ^
              step[0][crc >> 24];
    }
    for (; bytes > 0; data++, bytes--)
        crc = crc >> 8 ^ step[0][(crc ^ *data) & 0xFF];
    return ~crc;
}
