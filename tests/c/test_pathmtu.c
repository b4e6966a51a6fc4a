/* What the kernel is asked about path MTUs: once in a while for a peer, and never much. */
#define _GNU_SOURCE
#include "net_check.h"
#include "relay/pathmtu.h"

#include <sys/syscall.h>

/* --- the kernel's socket, counted --- */

static unsigned asked;

int socket(int family, int type, int protocol) {
    asked++;
    return (int)syscall(SYS_socket, family, type, protocol);
}

static struct vr_pathmtu pathmtu;

static void start(void) {
    memset(&pathmtu, 0, sizeof pathmtu);
    asked = 0;
}

static void grow_old(void) {
    for (unsigned i = 0; i < VR_PATHMTU_PEERS; i++)
        pathmtu.place[i].asked_s -= pathmtu.place[i].asked_s ? VR_PATHMTU_REFRESH_S : 0;
}

static struct vr_addr peer(unsigned i) {
    return addr_of("127.0.0.1", (uint16_t)(5000 + i));
}

static uint32_t payload(unsigned i) {
    struct vr_addr addr = peer(i);
    return vr_pathmtu_payload(&pathmtu, &addr);
}

static bool is_known(unsigned i) {
    uint32_t bytes = payload(i);
    return bytes > VR_PATHMTU_SAFE_BYTES && bytes < UINT32_MAX;
}

TEST(a_peer_is_asked_about_once_until_the_answer_is_old) {
    start();
    for (unsigned round = 0; round < 100; round++)
        CHECK(is_known(0));
    CHECK_EQ(asked, 1);
    grow_old();
    for (unsigned round = 0; round < 100; round++)
        CHECK(is_known(0));
    CHECK_EQ(asked, 2);

    CASE("a failed question is not repeated either");
    struct vr_addr broadcast = addr_of("255.255.255.255", 9);
    start();
    for (unsigned round = 0; round < 100; round++)
        CHECK_EQ(vr_pathmtu_payload(&pathmtu, &broadcast), UINT32_MAX);
    CHECK_EQ(asked, 1);
}

TEST(twenty_busy_peers_are_all_known) {
    start();
    for (unsigned round = 0; round < 100; round++)
        for (unsigned i = 0; i < 20; i++)
            CHECK(is_known(i));
    CHECK_EQ(asked, 20);
}

TEST(peers_that_share_their_places_do_not_push_each_other_out) {
    enum { SHARING = VR_PATHMTU_WAYS + 3 };
    unsigned sharing[SHARING], count = 0;
    struct vr_addr first = peer(0);
    unsigned place = vr_addr_mix(&first, 0) >> (32 - VR_PATHMTU_PEERS_BITS);
    for (unsigned i = 0; count < SHARING; i++) {
        struct vr_addr addr = peer(i);
        if (vr_addr_mix(&addr, 0) >> (32 - VR_PATHMTU_PEERS_BITS) == place)
            sharing[count++] = i;
    }
    start();
    for (unsigned round = 0; round < 100; round++)
        for (unsigned i = 0; i < SHARING; i++)
            CHECK_EQ(is_known(sharing[i]), i < VR_PATHMTU_WAYS);
    CHECK_EQ(asked, VR_PATHMTU_WAYS);

    CASE("who comes first takes a place that is old; the others keep theirs");
    grow_old();
    CHECK(is_known(sharing[SHARING - 1]));
    for (unsigned i = 1; i < VR_PATHMTU_WAYS; i++)
        CHECK(is_known(sharing[i]));
    CHECK_EQ(payload(sharing[0]), UINT32_MAX);
    CHECK_EQ(asked, 2 * VR_PATHMTU_WAYS);
}

TEST(however_many_peers_there_are_the_questions_are_few) {
    start();
    for (unsigned round = 0; round < 3; round++)
        for (unsigned i = 0; i < 2000; i++)
            payload(i);
    CHECK_EQ(asked, VR_PATHMTU_PEERS);
}
