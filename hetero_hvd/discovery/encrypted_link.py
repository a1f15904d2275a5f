"""The connection between a driver and an agent: both prove the cluster key, all is encrypted.

Two nonces and the key give one key for each direction (HMAC-SHA256 under different labels); each
frame is ChaCha20-Poly1305 with the frame's number as its nonce, so that it can be neither read nor
forged, changed, repeated, reordered, reflected or carried over to another connection. Who records
the traffic and steals the key later can read it: there is no forward secrecy.
"""

from __future__ import annotations

import hmac
import secrets
from typing import Literal

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from hetero_hvd.errors import ChannelError
from hetero_hvd.messages import Message

NONCE_BYTES = 16
MAX_FRAME_BYTES = 2**17
"""Both ends send at most 64 KiB at once; little, since a stranger may send as much."""

PATH = "/agent"

Role = Literal["driver", "agent"]


class Start(Message, frozen=True):
    """Driver to agent, first: run the supervisor of a worker, or let it tell of the node only.

    Attributes:
        what: A worker, the number of GPUs, or samples of what the node does.
        job: Whose worker it is, in words, for those who find no free slot because of it.
    """

    what: Literal["worker", "gpus", "samples"]
    job: str = ""


class Data(Message, frozen=True):
    """Bytes for the supervisor's input, or from its output; empty = the end of the input."""

    data: bytes


class Exited(Message, frozen=True):
    """Agent to driver, last: the supervisor's exit code."""

    code: int


Frame = Start | Data | Exited
_decoder: msgspec.msgpack.Decoder[Frame] = msgspec.msgpack.Decoder(Frame)


class Link:
    """One end: `seal` what goes out, `open` what comes in.

    Args:
        key: The cluster key.
        role: Which end this is.
        nonces: The agent's and the driver's.
    """

    def __init__(self, key: bytes, role: Role, nonces: bytes) -> None:
        if len(nonces) != 2 * NONCE_BYTES:
            raise ChannelError("a nonce of a wrong length")
        self._out = ChaCha20Poly1305(_derive(key, role, nonces))
        self._in = ChaCha20Poly1305(_derive(key, "agent" if role == "driver" else "driver", nonces))
        self._sent = self._received = 0

    def seal(self, frame: Frame) -> bytes:
        """The next frame to send."""
        sealed = self._out.encrypt(
            self._sent.to_bytes(12, "big"), msgspec.msgpack.encode(frame), None
        )
        self._sent += 1
        return sealed

    def open(self, sealed: bytes | str) -> Frame:
        """Decrypt the next frame received.

        Raises:
            ChannelError: It is not the genuine next frame, or not a record that we know.
        """
        if isinstance(sealed, str):
            raise ChannelError("text instead of a sealed frame")
        try:
            payload = self._in.decrypt(self._received.to_bytes(12, "big"), sealed, None)
            frame = _decoder.decode(payload)
        except InvalidTag as error:
            raise ChannelError("the other end does not hold this cluster's key") from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ChannelError(f"a frame that is not understood: {error}") from error
        self._received += 1
        return frame


def _derive(key: bytes, sender: Role, nonces: bytes) -> bytes:
    return hmac.digest(key, b"hetero_hvd link 1 " + sender.encode() + nonces, "sha256")


def nonce() -> bytes:
    """What each end contributes, so that no two connections have the same keys."""
    return secrets.token_bytes(NONCE_BYTES)
