"""What relay and transceiver agree on: addresses, keyring, token, SPP framing and STUN.

1. Nothing here does I/O except `Keyring.load`, which reads one file.
2. The transceiver imports this package and nothing else of `relay`.
"""
