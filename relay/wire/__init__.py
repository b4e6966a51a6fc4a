"""What relay and transceiver have in common: addresses, keyring, token, SPP framing, STUN and the fleet's announcements on
the wire; how options are read, errors are said and lines are logged on the command line.

1. What is of the wire does no I/O; only `Keyring.load` reads a file.
2. The transceiver imports this package and nothing else of `relay`.
"""
