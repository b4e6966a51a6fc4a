"""What both programs take for a URL of a server."""

from urllib.parse import urlsplit


def names_a_server(url: str) -> bool:
    """Whether there is a host that DNS can be asked for, or an address, and no port that cannot be."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        host.encode("idna")
        return bool(host) and parts.port != 0
    except ValueError:  # UnicodeError is one: a label that is empty or too long
        return False
