"""A UDP relay that routes WebRTC sessions by the sealed token in their first packet.

Importing this package costs nothing: workers import it before every instruction that matters.
"""
