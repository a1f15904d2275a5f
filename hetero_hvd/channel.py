"""What the driver and a worker say to each other: genuine, in order, never replayed or unpickled.

Both ends hold the job's key. A connection starts with a mutual challenge; from the two nonces and
the key follows a session key, and each frame carries an HMAC-SHA256 over (session key, direction,
frame number, payload). So a frame cannot be forged, changed, repeated, reordered, reflected or
carried over to another connection. Payloads are MessagePack of the tagged records of `messages`.
The content is not secret: nothing secret is ever sent.
"""

from __future__ import annotations

import hmac
import secrets
from typing import Generic, TypeVar

import msgspec

from hetero_hvd.errors import ChannelError
from hetero_hvd.messages import FromDriver, FromWorker, WorkerId

MAX_FRAME_BYTES = 16 * 2**20
"""Largest frame that either end accepts; a table of 10,000 workers takes about 1 MiB."""

NOT_EXPECTED = 4001
"""Close code of a channel whose worker holds the key, but is none of the job any more."""

NONCE_BYTES = 16
MAC_BYTES = 32

Incoming = TypeVar("Incoming")
Outgoing = TypeVar("Outgoing")


def new_key() -> bytes:
    """A fresh 256-bit key for one job."""
    return secrets.token_bytes(32)


def _mac(key: bytes, *parts: bytes) -> bytes:
    """HMAC-SHA256 over length-prefixed parts, so that no two lists of parts look the same."""
    digest = hmac.new(key, digestmod="sha256")
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()


class Hello(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """First frame of a worker: who it is, its nonce, and proof that it holds the key.

    Attributes:
        host: Its name as a Horovod host; tells restarts of one worker apart.
    """

    worker: WorkerId
    host: str
    nonce: bytes
    mac: bytes


class Session(Generic[Outgoing, Incoming]):
    """One end of an authenticated connection: `seal` what goes out, `open` what comes in."""

    def __init__(self, session_key: bytes, *, sends_as: bytes, incoming: type[Incoming]) -> None:
        self._key = session_key
        self._sends_as = sends_as
        self._receives_as = b"driver" if sends_as == b"worker" else b"worker"
        self._sent = 0
        self._received = 0
        self._decoder = msgspec.msgpack.Decoder(incoming)

    def seal(self, message: Outgoing) -> bytes:
        """The next frame to send."""
        payload = msgspec.msgpack.encode(message)
        number = self._sent.to_bytes(8, "big")
        self._sent += 1
        return _mac(self._key, self._sends_as, number, payload) + payload

    def open(self, frame: bytes | str) -> Incoming:
        """Check and decode the next frame received.

        Raises:
            ChannelError: It is not the genuine next frame, or not a record that we know.
        """
        if isinstance(frame, str) or len(frame) < MAC_BYTES:
            raise ChannelError("a frame without a signature")
        mac, payload = frame[:MAC_BYTES], frame[MAC_BYTES:]
        number = self._received.to_bytes(8, "big")
        if not hmac.compare_digest(mac, _mac(self._key, self._receives_as, number, payload)):
            raise ChannelError("a frame with a wrong signature")
        self._received += 1
        try:
            return self._decoder.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ChannelError(f"a frame that is not understood: {error}") from error


def challenge() -> bytes:
    """The driver's first frame: a nonce."""
    return secrets.token_bytes(NONCE_BYTES)


def answer(
    key: bytes, driver_nonce: bytes | str, *, worker: WorkerId, host: str
) -> tuple[bytes, bytes]:
    """The worker's answer to the driver's nonce.

    Returns:
        The frame to send, and the worker's own nonce to check the driver's proof with.

    Raises:
        ChannelError: The driver's nonce is malformed.
    """
    if isinstance(driver_nonce, str) or len(driver_nonce) != NONCE_BYTES:
        raise ChannelError("not a driver of hetero_hvd")
    nonce = secrets.token_bytes(NONCE_BYTES)
    mac = _mac(key, b"hello", driver_nonce, nonce, str(worker).encode(), host.encode())
    return msgspec.msgpack.encode(Hello(worker, host, nonce, mac)), nonce


def accept(
    key: bytes, driver_nonce: bytes, frame: bytes | str
) -> tuple[Hello, bytes, Session[FromDriver, FromWorker]]:
    """The driver's check of a worker's answer.

    Returns:
        Who it is, the driver's own proof to send back, and the session.

    Raises:
        ChannelError: The worker does not hold the key, or the frame is malformed.
    """
    if isinstance(frame, str):
        raise ChannelError("not a worker of hetero_hvd: text instead of a signed frame")
    try:
        hello = msgspec.msgpack.decode(frame, type=Hello)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ChannelError(f"not a worker of hetero_hvd: {error}") from error
    expected = _mac(
        key, b"hello", driver_nonce, hello.nonce, str(hello.worker).encode(), hello.host.encode()
    )
    if not hmac.compare_digest(hello.mac, expected):
        raise ChannelError(f"{hello.worker} does not hold this job's key")
    proof = _mac(key, b"welcome", driver_nonce, hello.nonce)
    session_key = _mac(key, b"session", driver_nonce, hello.nonce)
    incoming: type[FromWorker] = FromWorker  # type: ignore[assignment]  # a union is a type to msgspec
    return hello, proof, Session(session_key, sends_as=b"driver", incoming=incoming)


def confirm(
    key: bytes, driver_nonce: bytes, nonce: bytes, proof: bytes | str
) -> Session[FromWorker, FromDriver]:
    """The worker's check of the driver's proof.

    Raises:
        ChannelError: The driver does not hold the key.
    """
    expected = _mac(key, b"welcome", driver_nonce, nonce)
    if isinstance(proof, str) or not hmac.compare_digest(proof, expected):
        raise ChannelError("the driver does not hold this job's key")
    session_key = _mac(key, b"session", driver_nonce, nonce)
    incoming: type[FromDriver] = FromDriver  # type: ignore[assignment]  # a union is a type to msgspec
    return Session(session_key, sends_as=b"worker", incoming=incoming)
