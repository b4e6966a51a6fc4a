/* loadgen: clients on one side of a relay and transceivers on the other, in one process.
 *
 *     loadgen TRANSCEIVERS
 *
 * Prints the UDP ports of its transceivers (on 127.0.0.1), then obeys one command a line and
 * answers each with one line. Nothing is sent that no command asked for, and it ends with its input.
 *
 *     ufrags UFRAG...                 tokens, a multiple of TRANSCEIVERS: token i is of transceiver
 *                                     i mod TRANSCEIVERS, flow i has token i mod their number
 *     establish PORT FLOWS            through the relay on 127.0.0.1:PORT: a check for each flow, the
 *                                     transceiver's success back -> flows that got their success
 *     up PORT COUNT SIZES             COUNT datagrams to 127.0.0.1:PORT, from the established flows in
 *                                     turn; SIZES are bytes, or `mix` -> datagrams, bytes
 *     down PORT COUNT SIZES           the same from the transceivers, in SPP, to the internal socket; port
 *                                     0: to that of the worker that has the flow
 *     down-runs PORT COUNT SIZES      the same in runs that the kernel would cut apart (UDP_SEGMENT)
 *     evil PORT COUNT ATTACK [UFRAG]  COUNT datagrams of an attack (attack.c) -> the number sent
 *     clients                         -> the UDP port of the clients, of any address of 127/8
 *     collect                         empties all sockets -> datagrams and bytes that were in the
 *                                     transceivers', datagrams and bytes in the clients'
 *     live MS PORT PPS DOWN_PORT DOWN_PPS SIZES ATTACK ATTACK_PPS [UFRAG]
 *                                     all at once, at these rates, for so long -> for up and down:
 *                                     sent, received, astray (not at the flow's first owner),
 *                                     delay p50 p99 p99.9 in ns; attack sent, checks answered,
 *                                     responses received
 */
#include "load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct line line;
static struct inbox inbox;

static bool take_ufrags(char **word, unsigned words) {
    for (unsigned i = 0; i < words; i++) {
        if (strlen(word[i]) != UFRAG_CHARS)
            return false;
        memcpy(ends.ufrag[i], word[i], UFRAG_CHARS + 1);
    }
    ends.ufrags = words;
    return words % ends.transceivers == 0;
}

static void fill_up(uint16_t port, unsigned count, struct sizes sizes) {
    static uint64_t serial;
    uint64_t bytes = 0;
    for (unsigned sent = 0; sent < count;) {
        for (; line.count < BATCH && sent < count; sent++, serial++) {
            add_up(&line, port, (unsigned)(serial % ends.flows), sizes, serial);
            bytes += line.part[line.count - 1].iov_len;
        }
        line_send(&line, ends.clients);
    }
    printf("%u %lu\n", count, bytes);
}

/* Transceiver after transceiver, a batch each. */
static void fill_down(uint16_t port, unsigned count, struct sizes sizes) {
    static unsigned t, next[TRANSCEIVERS_MAX];
    static uint64_t serial;
    uint64_t bytes = 0;
    for (unsigned sent = 0; sent < count; t = (t + 1) % ends.transceivers) {
        unsigned own_flows = (ends.flows - t + ends.transceivers - 1) / ends.transceivers;
        for (; own_flows && line.count < BATCH && sent < count; sent++, serial++, next[t]++) {
            unsigned flow = t + next[t] % own_flows * ends.transceivers;
            add_down(&line, port ? port : ends.worker_port[flow], flow, sizes, serial);
            bytes += line.part[line.count - 1].iov_len;
        }
        line_send(&line, ends.transceiver[t]);
    }
    printf("%u %lu\n", count, bytes);
}

static bool fill_evil(uint16_t port, unsigned count, const char *name, const char *ufrag) {
    static uint64_t serial;
    const struct attack *attack = attack_named(name);
    for (unsigned sent = 0; attack && sent < count;) {
        for (; line.count < BATCH && sent < count; sent++, serial++)
            attack_add(&line, attack, port, ufrag, serial);
        line_send(&line, ends.clients);
    }
    printf("%u\n", count);
    return attack != NULL;
}

static void collect(void) {
    unsigned long datagrams[2] = {0}, bytes[2] = {0};
    for (unsigned s = 0; s <= ends.transceivers; s++) {
        unsigned side = s == ends.transceivers, received;
        while ((received = inbox_fill(&inbox, side ? ends.clients : ends.transceiver[s], 0)) > 0)
            for (unsigned i = 0; i < received; i++) {
                datagrams[side]++;
                bytes[side] += inbox.message[i].msg_len;
            }
    }
    printf("%lu %lu %lu %lu\n", datagrams[0], bytes[0], datagrams[1], bytes[1]);
}

static bool obey(char **word, unsigned words) {
    struct sizes sizes;
    uint16_t port = words > 1 ? (uint16_t)atoi(word[1]) : 0;
    unsigned count = words > 2 ? (unsigned)atoi(word[2]) : 0;
    const char *verb = words > 0 ? word[0] : "";
    if (strcmp(verb, "ufrags") == 0 && take_ufrags(word + 1, words - 1))
        printf("%u\n", ends.ufrags);
    else if (strcmp(verb, "establish") == 0 && words == 3 && ends.ufrags)
        printf("%u\n", establish(port, count));
    else if (strcmp(verb, "up") == 0 && words == 4 && ends.flows && sizes_parse(&sizes, word[3]))
        fill_up(port, count, sizes);
    else if (strncmp(verb, "down", 4) == 0 && words == 4 && ends.flows &&
             sizes_parse(&sizes, word[3])) {
        line.makes_runs = strcmp(verb, "down-runs") == 0;
        fill_down(port, count, sizes);
        line.makes_runs = false;
    } else if (strcmp(verb, "evil") == 0 && words >= 4 && ends.ufrags)
        return fill_evil(port, count, word[3], words > 4 ? word[4] : ends.ufrag[0]);
    else if (strcmp(verb, "clients") == 0)
        printf("%u\n", ntohs(ends.clients_port_be));
    else if (strcmp(verb, "collect") == 0)
        collect();
    else
        return strcmp(verb, "live") == 0 && live(word, words);
    return true;
}

int main(int argc, char **argv) {
    static char text[UFRAGS_MAX * (UFRAG_CHARS + 1) + 256];
    static char *word[UFRAGS_MAX + 1];
    unsigned transceivers = argc == 2 ? (unsigned)atoi(argv[1]) : 0;
    if (transceivers < 1 || transceivers > TRANSCEIVERS_MAX) {
        fprintf(stderr, "usage: loadgen TRANSCEIVERS (1 to %d)\n", TRANSCEIVERS_MAX);
        return 2;
    }
    open_ends(transceivers);
    for (unsigned t = 0; t < transceivers; t++)
        printf("%u%c", ends.transceiver_port[t], t + 1 < transceivers ? ' ' : '\n');
    fflush(stdout);
    while (fgets(text, sizeof text, stdin)) {
        unsigned words = 0;
        for (char *w = strtok(text, " \n"); w && words < UFRAGS_MAX + 1; w = strtok(NULL, " \n"))
            word[words++] = w;
        if (!obey(word, words))
            printf("what?\n");
        fflush(stdout);
    }
    return 0;
}
