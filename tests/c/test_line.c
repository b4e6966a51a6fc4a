/* One line of numbers and timestamps, whatever the sources do. */
#include "../../csrc/media/line.h"

#include "check.h"

#define MS 1000000ull
enum { UNITS = 960 };

struct passing {
    struct vr_line line;
    struct vr_rtp in, out;
    uint64_t now_ns;
    uint16_t last_sequence;
    uint32_t last_timestamp;
};

static struct passing *start(void) {
    static struct passing p;
    memset(&p, 0, sizeof p);
    vr_line_init(&p.line, 48000, 65000, 0xfffff000u);
    p.in = (struct vr_rtp){.ssrc = 7, .sequence = 65530, .timestamp = 0xffffff00u};
    p.now_ns = 1000 * MS;
    return &p;
}

/* The next packet, `ms` after the last one; `steps` and `units` tell how the line went on. */
static void pass(struct passing *p, uint64_t ms, int *steps, int64_t *units) {
    p->last_sequence = p->out.sequence;
    p->last_timestamp = p->out.timestamp;
    p->now_ns += ms * MS;
    vr_line_place(&p->line, &p->in, p->now_ns, &p->out);
    vr_line_passed(&p->line, &p->out, p->now_ns);
    *steps = (int16_t)(p->out.sequence - p->last_sequence);
    *units = (int32_t)(p->out.timestamp - p->last_timestamp);
}

TEST(what_networks_do_stays_and_what_sources_do_is_passed_over) {
    static const struct {
        const char *what;
        uint64_t ms; /* since the packet before */
        uint32_t ssrc;
        int sequence, timestamp_ms;
        int steps, ms_on;
    } cases[] = {
        {"the next", 20, 7, 1, 20, 1, 20},
        {"three were lost", 80, 7, 4, 80, 4, 80},
        {"a pause", 30000, 7, 1, 30000, 1, 30000},
        {"a stall of two seconds", 2000, 7, 1, 20, 1, 20},
        {"and what it brings at once", 0, 7, 1, 20, 1, 20},
        {"with a pause that was in it", 0, 7, 1, 1900, 1, 1900},
        {"a clock that slept", 600000, 7, 1, 20, 1, 20},
        {"reordered", 20, 7, -1, -20, -1, -20},
        {"an hour ahead", 20, 7, 1, 3600000, 1, 20},
        {"an hour back", 20, 7, 1, -3600000, 1, 20},
        {"two seconds back", 20, 7, 1, -2000, 1, 20},
        {"another source", 60, 8, -4000, 12345, 1, 60},
        {"a jump of the number", 20, 7, 20000, 20, 1, 20},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct passing *p = start();
        int steps;
        int64_t units;
        CASE(cases[i].what);
        for (int k = 0; k < 10; k++) {
            pass(p, 20, &steps, &units);
            p->in.sequence++;
            p->in.timestamp += UNITS;
        }
        p->in.ssrc = cases[i].ssrc;
        p->in.sequence = (uint16_t)(p->in.sequence + cases[i].sequence - 1);
        p->in.timestamp += (uint32_t)(cases[i].timestamp_ms - 20) * 48;
        pass(p, cases[i].ms, &steps, &units);
        CHECK_EQ(steps, cases[i].steps);
        CHECK_EQ(units, cases[i].ms_on * 48);
        if (cases[i].sequence <= 0 && cases[i].ssrc == 7)
            continue;
        p->in.sequence++;
        p->in.timestamp += UNITS;
        pass(p, 20, &steps, &units);
        CHECK_EQ(steps, 1);
        CHECK_EQ(units, UNITS);
    }
}
