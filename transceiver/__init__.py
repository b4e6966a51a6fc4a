"""The transceiver: answers WebRTC offers and is the only owner of WebRTC state."""
