/* Any bytes as a ufrag; then 21 of them as a token whose MAC is made good; then as what to seal. */
#include "fuzz.h"
#include "wire/cmac.h"
#include "wire/token.h"

#include <openssl/evp.h>

static const uint8_t KEY[VR_TOKEN_KEY_BYTES] = "0123456789abcdefghijklmnopqrstu";

static struct vr_keyring *ring;
static struct vr_cmac cmac;

static void set_up(void) {
    EVP_CIPHER *aes = EVP_CIPHER_fetch(NULL, "AES-128-ECB", NULL);
    ring = vr_keyring_new();
    HOLDS(ring && vr_keyring_add(ring, 3, KEY) == 0);
    HOLDS(vr_cmac_init(&cmac, aes, KEY + VR_AES_KEY_BYTES));
    EVP_CIPHER_free(aes);
}

static void check_opened(const struct vr_token *token) {
    struct vr_ipv6_prefixes prefixes = {.known_mask = 0x00FF};
    struct vr_addr address;
    HOLDS(token->key_id == 3 && token->port_be != 0);
    HOLDS(token->kind == 4 || token->kind == 6);
    HOLDS(token->prefix_index <= (token->kind == 4 ? 0 : 15));
    HOLDS(vr_token_address(token, &prefixes, &address) == (token->prefix_index < 8));
}

static void open_with_good_mac(const uint8_t data[VR_TOKEN_BYTES]) {
    uint8_t token[VR_TOKEN_BYTES], mac[VR_AES_BLOCK_BYTES], ufrag[VR_TOKEN_CHARS + 1];
    struct vr_token opened;

    memcpy(token, data, sizeof token);
    token[0] = 3 << 5 | (token[0] & 7);
    HOLDS(vr_cmac_compute(&cmac, token, 17, mac));
    memcpy(token + 17, mac, 4);
    HOLDS(EVP_EncodeBlock(ufrag, token, sizeof token) == VR_TOKEN_CHARS);
    enum vr_token_status status = vr_token_open(ring, ufrag, VR_TOKEN_CHARS, &opened);
    HOLDS(status == VR_TOKEN_OK || status == VR_TOKEN_KIND);
    if (status == VR_TOKEN_OK)
        check_opened(&opened);
}

static void seal_and_open(const uint8_t data[VR_TOKEN_BYTES]) {
    struct vr_token token = {.kind = data[0] & 1 ? 6 : 4}, opened;
    char ufrag[VR_TOKEN_CHARS];

    memcpy(&token.cluster_id, data + 1, 2);
    memcpy(&token.port_be, data + 3, 2);
    if (token.kind == 4) {
        memcpy(token.ipv4, data + 5, 4);
    } else {
        token.prefix_index = data[0] >> 4;
        memcpy(token.interface_id, data + 5, 8);
    }
    if (vr_token_seal(ring, &token, data + 13, ufrag) != VR_TOKEN_OK) {
        HOLDS(token.port_be == 0);
        return;
    }
    HOLDS(vr_token_open(ring, (const uint8_t *)ufrag, sizeof ufrag, &opened) == VR_TOKEN_OK);
    check_opened(&opened);
    HOLDS(opened.kind == token.kind && opened.prefix_index == token.prefix_index);
    HOLDS(opened.cluster_id == token.cluster_id && opened.port_be == token.port_be);
    HOLDS(memcmp(opened.ipv4, token.ipv4, sizeof token.ipv4) == 0);
    HOLDS(memcmp(opened.interface_id, token.interface_id, sizeof token.interface_id) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct vr_token opened;
    if (!ring)
        set_up();
    if (vr_token_open(ring, data, bytes, &opened) == VR_TOKEN_OK)
        check_opened(&opened);
    if (bytes >= VR_TOKEN_BYTES) {
        open_with_good_mac(data);
        seal_and_open(data);
    }
    return 0;
}
