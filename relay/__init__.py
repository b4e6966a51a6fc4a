"""A UDP relay that routes WebRTC sessions by a hint in the first packet.

Importing this package costs nothing: workers import it before every instruction that matters.
"""
