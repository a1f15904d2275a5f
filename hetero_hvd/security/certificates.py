"""Makes certificates: for one job, for who holds the cluster key, and as files.

Those of a job and of a cluster key bear no date: they live in memory, and whoever could steal one
there could take the key that makes new ones. So no clock has a say in who may talk to whom.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hetero_hvd.errors import UserError
from hetero_hvd.security.secret_files import write_secret

LIFETIME = timedelta(days=3650)
SKEW = timedelta(days=1)
"""A certificate in a file is good from a day ago: clocks differ."""

UNDATED = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
"""From when until when a certificate is good that never leaves the memory of a process."""

_LABEL = b"hetero_hvd authority 1"
"""Sets this use of the cluster key apart from all others."""

_P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_MAX_COMMON_NAME = 64
AUTHORITY = "authority.pem"
_USAGES = {
    "server": ExtendedKeyUsageOID.SERVER_AUTH,
    "client": ExtendedKeyUsageOID.CLIENT_AUTH,
}
Role = Literal["server", "client"]


class Authority:
    """Who signs certificates; P-256 throughout.

    Args:
        key: Its private key.
        certificate: Its own, self-signed.
    """

    def __init__(self, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self._key = key
        self._certificate = certificate

    @classmethod
    def new(cls) -> Authority:
        """One that nobody knows yet, without a date."""
        return cls._self_signed(ec.generate_private_key(ec.SECP256R1()), *UNDATED)

    @classmethod
    def of_key(cls, secret: bytes) -> Authority:
        """The one that follows from a secret: who has it signs for this authority, nobody else.

        Args:
            secret: At least 32 bytes that cannot be guessed.
        """
        wide = HKDF(hashes.SHA256(), length=48, salt=None, info=_LABEL).derive(secret)
        number = 1 + int.from_bytes(wide, "big") % (_P256_ORDER - 1)
        return cls._self_signed(ec.derive_private_key(number, ec.SECP256R1()), *UNDATED)

    @classmethod
    def _self_signed(
        cls, key: ec.EllipticCurvePrivateKey, begins: datetime, ends: datetime
    ) -> Authority:
        name = _name("hetero_hvd authority")
        builder = (
            _builder(name, name, key.public_key())
            .not_valid_before(begins)
            .not_valid_after(ends)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
        )
        return cls(key, builder.sign(key, hashes.SHA256()))

    @classmethod
    def of_folder(cls, folder: Path) -> Authority:
        """The one that is kept in a folder; made if there is none.

        Raises:
            UserError: It cannot be read or written.
        """
        path = folder / AUTHORITY
        try:
            if not path.exists():
                now = datetime.now(UTC)
                fresh = ec.generate_private_key(ec.SECP256R1())
                made = cls._self_signed(fresh, now - SKEW, now + LIFETIME)
                write_secret(path, made.as_pem())
                return made
            content = path.read_bytes()
            key = serialization.load_pem_private_key(content, password=None)
            certificate = x509.load_pem_x509_certificate(content)
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}") from error
        except TypeError as error:
            raise UserError(f"{path}: its key is encrypted; store it without a password") from error
        except (ValueError, UnsupportedAlgorithm) as error:
            raise UserError(f"{path}: is not what hetero-hvd key certificates has made") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise UserError(f"{path}: is not what hetero-hvd key certificates has made")
        return cls(key, certificate)

    def as_pem(self) -> bytes:
        """Key and certificate, to be kept secret."""
        return _bundle(self._key, self._certificate)

    def issue(self, *names: str, roles: Sequence[Role] = ("server", "client")) -> bytes:
        """A new key and its certificate, which is good for as long as the authority's own.

        Args:
            names: Names and addresses whom it is for, as the other end checks them.
            roles: What it may be used for.

        Returns:
            PEM: private key, certificate, and the authority's certificate.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            _builder(_name(names[0]), self._certificate.subject, key.public_key())
            .not_valid_before(self._certificate.not_valid_before_utc)
            .not_valid_after(self._certificate.not_valid_after_utc)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(map(_general, names)), critical=False)
            .add_extension(x509.ExtendedKeyUsage([_USAGES[role] for role in roles]), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
        )
        return _bundle(key, builder.sign(self._key, hashes.SHA256()), self._certificate)


def _bundle(key: ec.EllipticCurvePrivateKey, *certificates: x509.Certificate) -> bytes:
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return secret + b"".join(certificate.public_bytes(pem) for certificate in certificates)


def _name(text: str) -> x509.Name:
    """For people: the other end looks at the alternative names."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:_MAX_COMMON_NAME])])


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
