"""What a client sends after its offer: an SDP fragment with candidates (RFC 8840), or a wish to restart ICE.

1. Candidates are of no use to an ICE-lite side: it answers where checks come from.
2. A fragment of the session that was offered repeats its ufrag; with another one it belongs to a new session,
   which is an ICE restart (RFC 9725 4.3.3), whatever `If-Match` says.
3. What is no SDP at all is refused; an empty body is a fragment without candidates.
"""

from __future__ import annotations

import re

from .offer import Offer

_LINE = re.compile(rb"[a-z]=[^\r\0]*")
_UFRAG = re.compile(rb"^a=ice-ufrag:[ \t]*([^\s]*)", re.MULTILINE)


def is_fragment(body: bytes) -> bool:
    """Whether every line is one of SDP (RFC 8866 5)."""
    lines = (line.removesuffix(b"\r") for line in body.split(b"\n"))
    return all(_LINE.fullmatch(line) for line in lines if line.strip())


def is_restart(fragment: bytes, offer: Offer) -> bool:
    """Whether the fragment names a ufrag that the offer did not; bytes that are no SDP name none."""
    levels = [section.attributes.ice_ufrag for section in offer.sections]
    known = {offer.ice_ufrag, *levels} - {None}
    return any(named.decode("latin-1") not in known for named in _UFRAG.findall(fragment))
