/* crc32.h: the CRC-32 of ITU-T V.42 (reflected, polynomial 0xEDB88320), as zlib computes it.
 * STUN's FINGERPRINT is this value XOR 0x5354554E (RFC 8489 14.7).
 *
 * Any thread; `data` may be NULL when `bytes` is 0.
 */
#ifndef VR_CRC32_H
#define VR_CRC32_H

#include <stddef.h>
#include <stdint.h>

uint32_t vr_crc32(const uint8_t *data, size_t bytes);

#endif
