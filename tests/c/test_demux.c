#include "check.h"
#include "wire/demux.h"

/* RFC 7983 7; case A25 of off-by-one ranges: 64 is no DTLS, 127 and 192 are no media. */
static enum vr_protocol expected(unsigned first_byte) {
    static const struct {
        unsigned from, to;
        enum vr_protocol protocol;
    } RANGES[] = {
        {0, 3, VR_PROTOCOL_STUN},     {4, 19, VR_PROTOCOL_OTHER},    {20, 63, VR_PROTOCOL_DTLS},
        {64, 127, VR_PROTOCOL_OTHER}, {128, 191, VR_PROTOCOL_MEDIA}, {192, 255, VR_PROTOCOL_OTHER},
    };
    for (size_t i = 0; i < sizeof RANGES / sizeof *RANGES; i++)
        if (first_byte >= RANGES[i].from && first_byte <= RANGES[i].to)
            return RANGES[i].protocol;
    abort();
}

TEST(a25_every_first_byte_has_the_protocol_of_its_range) {
    for (unsigned first_byte = 0; first_byte < 256; first_byte++)
        CHECK_EQ(vr_demux((uint8_t)first_byte), expected(first_byte));
}
