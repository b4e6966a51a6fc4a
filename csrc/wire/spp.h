/* spp.h: Cloudflare's Simple Proxy Protocol, the 38 bytes before every datagram
 * between a relay and a transceiver or another relay, in both directions.
 *
 *     0x56EC | client address 16 | proxy address 16 | client port 2 | proxy port 2 | payload
 *
 * 0x56 is outside every range of RFC 7983: a wrapped datagram is never taken for a bare one.
 */
#ifndef VR_SPP_H
#define VR_SPP_H

#include "addr.h"
#include "bytes.h"

#include <stddef.h>

enum { VR_SPP_MAGIC = 0x56EC, VR_SPP_BYTES = 38 };

/* Writes VR_SPP_BYTES at `header`. It is at 2 mod 8 when the payload is aligned to 8. */
static inline void vr_spp_write(uint8_t *header, const struct vr_flow_key *key) {
    vr_store_be16(header, VR_SPP_MAGIC);
    memcpy(header + 2, key->client.ip, 16);
    memcpy(header + 18, key->proxy.ip, 16);
    memcpy(header + 34, &key->client.port_be, 2);
    memcpy(header + 36, &key->proxy.port_be, 2);
}

/* Reads the header of a datagram of `bytes` bytes into `key`. Returns false, `key` untouched,
 * when the datagram is shorter than a header or the magic differs. The payload may be empty. */
static inline bool vr_spp_read(const uint8_t *datagram, size_t bytes, struct vr_flow_key *key) {
    if (bytes < VR_SPP_BYTES || vr_load_be16(datagram) != VR_SPP_MAGIC)
        return false;
    memcpy(key->client.ip, datagram + 2, 16);
    memcpy(key->proxy.ip, datagram + 18, 16);
    memcpy(&key->client.port_be, datagram + 34, 2);
    memcpy(&key->proxy.port_be, datagram + 36, 2);
    return true;
}

#endif
