"""A self-signed certificate for `relay demo --public-address`: browsers give no microphone over HTTP.

It proves nothing about who serves; the browser says so, once, and the user goes on.
"""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

VALID_DAYS = 30


def write_self_signed(
    certificate: Path,
    key: Path,
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    """Write a P-256 certificate for `address`, localhost and 127.0.0.1, and its key (mode 0600)."""
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "relay demo")])
    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)
    alternatives: list[x509.GeneralName] = [x509.DNSName("localhost")]
    loopback = ipaddress.ip_address("127.0.0.1")
    alternatives += [x509.IPAddress(ip) for ip in dict.fromkeys((address, loopback))]
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + datetime.timedelta(days=VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(private, hashes.SHA256())
    )
    key.touch(mode=0o600)
    key.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
