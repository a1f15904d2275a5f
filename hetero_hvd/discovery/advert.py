"""What a node says of itself to all: signed, short-lived, and never believed twice.

Pure: the clock and the nonces are arguments. An advert is MessagePack behind an HMAC-SHA256 by the
cluster key, cut into the strings of a DNS TXT record. Address and port are inside, so nobody
connects to anything that was not signed.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections import Counter
from typing import Annotated, Literal, NamedTuple

import msgspec

from hetero_hvd.config.value_types import host_in_url, is_loopback, is_one_address
from hetero_hvd.errors import DiscoveryError
from hetero_hvd.messages import NODE_NAME

MAX_ADVERT_BYTES = 1100
"""One advert fits into one packet of an ordinary network, 1500 bytes, with the other records."""

MAX_TEXT_BYTES = MAX_ADVERT_BYTES + 64
"""The same as a raw TXT record."""

LIFETIME_SECONDS = 45.0
"""From signing to expiry; the agent signs anew every third of it."""

MAX_SKEW_SECONDS = 30.0
"""An advert from further in the future comes from a wrong clock, or is kept for later."""

MAX_REMEMBERED = 4096
"""Machines whose newest advert is remembered: only holders of the key can fill that."""

OF_ANOTHER_KEY = "of another key"
"""Who has signed it holds another cluster's key, or none: nobody can tell the two apart."""

REPLAYED = "replayed"
"""It is not the newest of its machine, and somebody else than its agent has sent it."""

SAID_AGAIN = "said again"
"""The same of the agent itself, as zeroconf repeats what it says, or of a hub: both are heard at
once where both are heard, and the one is later than the other."""

MAX_FIGURES = 8
MAX_SLOTS = 1024
MAX_TEXT = 128

_CHUNK_BYTES = 250  # a TXT string holds 255, with its name
_MAC_BYTES = 32


class AdvertKind(NamedTuple):
    """Who announces himself: what is signed for one kind is none of another.

    Attributes:
        service: As zeroconf names it.
        label: Sets what is signed apart.
    """

    service: str
    label: bytes


OF_NODE = AdvertKind("_hetero-hvd._tcp.local.", b"hetero_hvd advert 1")
OF_HUB = AdvertKind("_hetero-hvd-hub._tcp.local.", b"hetero_hvd hub advert 1")
"""Its advert has the identity of its store in the place of a machine's, and no slots."""

Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]

MAX_UPTIME_SECONDS = 1e10
"""Of a machine: three hundred years."""


class Advert(msgspec.Struct, frozen=True, kw_only=True):
    """A node in its own words.

    What a later version may add is ignored, so that a driver talks to that node's agent, and both
    say of which version they are; see `agent_link.in_conflict`.

    Attributes:
        name: As in nodes.yaml.
        machine: Identity of the machine, the same under all names and addresses.
        instance: Random, new at each start of the agent.
        addresses: IPv4 and IPv6 addresses without zone, best first.
        port: Where its agent listens.
        slots: Worker processes that it offers; 0: its agent starts none.
        devices: UUIDs of its GPUs, as far as known.
        summary: Its hardware, for people.
        version: Of hetero_hvd.
        figures: What `hetero-hvd benchmark` has measured of it, per second, by name: floating point
            operations, bytes, or samples of a model; empty if nothing was.
        issued_at_seconds: When it was signed, seconds since 1970; grows with every advert.
        nonce: Random, new in each advert.
        leaves: It says good-bye.
        exporter: How Prometheus may ask its agent; empty if it may not.
        started_at_seconds: When the agent began to be this node, by the machine's clock since its
            boot, which nobody sets; 0: it does not tell, as an earlier version or as one whose
            kernel tells no boot from another.
    """

    name: Annotated[str, msgspec.Meta(max_length=64)]
    machine: Annotated[str, msgspec.Meta(min_length=8, max_length=64)]
    instance: Annotated[bytes, msgspec.Meta(min_length=8, max_length=8)]
    addresses: Annotated[tuple[Text, ...], msgspec.Meta(min_length=1, max_length=8)]
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)]
    slots: Annotated[int, msgspec.Meta(ge=0, le=MAX_SLOTS)]
    devices: Annotated[tuple[Text, ...], msgspec.Meta(max_length=16)] = ()
    summary: Text = ""
    version: Text = ""
    figures: Annotated[dict[Text, float], msgspec.Meta(max_length=MAX_FIGURES)] = {}
    issued_at_seconds: float
    nonce: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
    leaves: bool = False
    exporter: Literal["", "http", "https"] = ""
    started_at_seconds: Annotated[float, msgspec.Meta(ge=0.0, le=MAX_UPTIME_SECONDS)] = 0.0

    @property
    def exporter_url(self) -> str:
        """Where Prometheus finds its metrics, `http[s]://ADDRESS:PORT`; empty: it has none."""
        host = host_in_url(self.addresses[0])
        return f"{self.exporter}://{host}:{self.port}" if self.exporter else ""


_decoder = msgspec.msgpack.Decoder(Advert)


def _mac(key: bytes, payload: bytes, kind: AdvertKind = OF_NODE) -> bytes:
    return hmac.digest(key, kind.label + payload, "sha256")


def sign(key: bytes, advert: Advert, kind: AdvertKind = OF_NODE) -> dict[str, bytes]:
    """The advert as the properties of a TXT record.

    Raises:
        DiscoveryError: It is too large for one packet.
    """
    payload = msgspec.msgpack.encode(advert)
    blob = _mac(key, payload, kind) + payload
    if len(blob) > MAX_ADVERT_BYTES:
        raise DiscoveryError(f"advert of {len(blob)} bytes, must be at most {MAX_ADVERT_BYTES}")
    chunks = (blob[at : at + _CHUNK_BYTES] for at in range(0, len(blob), _CHUNK_BYTES))
    return {str(index): chunk for index, chunk in enumerate(chunks)}


def text_blob(text: bytes) -> bytes | None:
    """The signed bytes in a raw TXT record; None if it cannot be one of ours."""
    if len(text) > MAX_TEXT_BYTES:
        return None
    blob, at = b"", 0
    for index in range(len(text)):
        if at >= len(text):
            break
        length, mark = text[at], b"%d=" % index
        string = text[at + 1 : at + 1 + length]
        if len(string) != length or not string.startswith(mark):
            return None
        blob += string[len(mark) :]
        at += 1 + length
    return blob if len(blob) > _MAC_BYTES else None


class Verifier:
    """Tells genuine adverts from all others. Costs one HMAC for each, whatever it holds.

    Args:
        key: The cluster key.
        kind: Whose adverts are believed.

    Attributes:
        ignored: How many adverts were not believed, by reason.
    """

    def __init__(self, key: bytes, kind: AdvertKind = OF_NODE) -> None:
        self.ignored: Counter[str] = Counter()
        self._kind = kind
        self._key = key
        self._newest: dict[str, float] = {}

    def check(self, text: bytes, *, now_seconds: float, sender: str | None = "") -> Advert | str:
        """Check the raw TXT record of an advert.

        Args:
            text: As it came from the network.
            now_seconds: Seconds since 1970.
            sender: Address that it came from; None: a hub has handed it on.

        Returns:
            The advert if it is genuine and new, else why it is ignored; that is counted, unless
            a hub or the agent itself has only said it again.
        """
        verdict = self._check(text, now_seconds, sender)
        if isinstance(verdict, str) and verdict != SAID_AGAIN:
            self.ignored[verdict] += 1
        return verdict

    def _check(self, text: bytes, now_seconds: float, sender: str | None) -> Advert | str:
        blob = text_blob(text)
        if blob is None:
            return "malformed"
        mac, payload = blob[:_MAC_BYTES], blob[_MAC_BYTES:]
        if not hmac.compare_digest(mac, _mac(self._key, payload, self._kind)):
            return OF_ANOTHER_KEY
        try:
            advert = _decoder.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return "of another version"  # who holds the key means well
        if not _is_sound(advert):
            return "unsound"
        verdict = self._judge_time(advert, now_seconds)
        if verdict == REPLAYED and (sender is None or _is_of(advert, sender)):
            return SAID_AGAIN
        return verdict or advert

    def _judge_time(self, advert: Advert, now_seconds: float) -> str | None:
        age_seconds = now_seconds - advert.issued_at_seconds
        if not -MAX_SKEW_SECONDS <= age_seconds <= LIFETIME_SECONDS:
            return "stale"
        if advert.issued_at_seconds <= self._newest.get(advert.machine, 0.0):
            return REPLAYED
        self._newest[advert.machine] = advert.issued_at_seconds
        while len(self._newest) > MAX_REMEMBERED:
            del self._newest[min(self._newest, key=self._newest.__getitem__)]
        return None


def _is_of(advert: Advert, sender: str) -> bool:
    """Whether an address is of its agent, or of this machine, on which zeroconf is heard, too."""
    return sender in advert.addresses or is_loopback(sender)


def _is_sound(advert: Advert) -> bool:
    """Whether even a holder of the key may say so: names go into paths, addresses into sockets.

    The rest is shown to people.
    """
    if not all(map(str.isprintable, (advert.summary, advert.version, *advert.figures))):
        return False
    if NODE_NAME.fullmatch(advert.name) is None or not advert.machine.isalnum():
        return False
    try:
        found = [ipaddress.ip_address(address) for address in advert.addresses]
    except ValueError:
        return False
    return all(is_one_address(a) and "%" not in str(a) for a in found)
