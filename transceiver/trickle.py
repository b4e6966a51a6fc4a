"""What a client sends after its offer: an SDP fragment with candidates (RFC 8840), or a wish to restart ICE.

1. Candidates are of no use to an ICE-lite side: it answers where checks come from.
2. A fragment of the session that was offered repeats its ufrag; with another one it belongs to a new session,
   which is an ICE restart (RFC 9725 4.3.3), whatever `If-Match` says.
"""

from __future__ import annotations

import re

from .offer import Offer

_UFRAG = re.compile(rb"^a=ice-ufrag:[ \t]*([^\s]*)", re.MULTILINE)


def is_restart(fragment: bytes, offer: Offer) -> bool:
    """Whether the fragment names a ufrag that the offer did not; bytes that are no SDP name none."""
    levels = [section.attributes.ice_ufrag for section in offer.sections]
    known = {offer.ice_ufrag, *levels} - {None}
    return any(named.decode("latin-1") not in known for named in _UFRAG.findall(fragment))
