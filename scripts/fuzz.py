"""Coverage-guided fuzzing of what reads bytes from strangers, with atheris.

    pip install -e .[fuzz]
    python scripts/fuzz.py TARGET [libFuzzer's options, for example -max_total_time=60]

An exception that is not the parser's own is a finding: libFuzzer writes the input to `crash-*`.
It begins with genuine inputs; what it has found since is kept in `.fuzz/TARGET`.
Not part of CI, where tests/fuzz does the same with hypothesis, for seconds.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from pathlib import Path

import atheris
import msgspec
from zeroconf import DNSOutgoing, DNSText

with atheris.instrument_imports(include=["hetero_hvd", "yaml"]):
    from hetero_hvd import channel
    from hetero_hvd.config.resolve import parse_cluster
    from hetero_hvd.discovery import advert
    from hetero_hvd.discovery import agent_link as link
    from hetero_hvd.discovery.multicast import adverts_in
    from hetero_hvd.driver.membership.http_requests import (
        MAX_HEAD_BYTES,
        RequestError,
        read_request,
    )
    from hetero_hvd.errors import ChannelError, ConfigError
    from hetero_hvd.messages import Heartbeat, Stop

KEY = bytes(32)


def fuzz_packet(content: bytes) -> None:
    """A multicast packet, and one that is a response and mentions our service."""
    adverts_in(content)
    adverts_in(content[:2] + b"\x84\x00" + content[4:] + b"\x0b_hetero-hvd")


def fuzz_advert(content: bytes) -> None:
    """A TXT record, and the same bytes as what a holder of the key has signed."""
    verifier = advert.Verifier(KEY)
    verifier.check(content, now_seconds=0.0)
    blob = advert._mac(KEY, content) + content
    chunks = [blob[at : at + 250] for at in range(0, len(blob), 250)]
    strings = [b"%d=" % index + chunk for index, chunk in enumerate(chunks)]
    verifier.check(b"".join(bytes([len(s)]) + s for s in strings), now_seconds=0.0)


def fuzz_request(content: bytes) -> None:
    """A request to the rendezvous."""

    async def read() -> None:
        reader = asyncio.StreamReader(limit=MAX_HEAD_BYTES)
        reader.feed_data(content)
        reader.feed_eof()
        with suppress(RequestError, EOFError):
            await read_request(reader)

    asyncio.run(read())


def fuzz_channel(content: bytes) -> None:
    """A frame of a worker, and of the driver."""
    for read in (channel.from_worker, channel.from_driver):
        with suppress(ChannelError):
            read(content)


def fuzz_link(content: bytes) -> None:
    """A frame between a driver and an agent."""
    with suppress(ChannelError):
        link.decode(content)


def fuzz_nodes(content: bytes) -> None:
    """A nodes.yaml."""
    with suppress(ConfigError):
        parse_cluster([(Path("F"), content)], environment={}, flags={})


TARGETS = {
    name.removeprefix("fuzz_"): function
    for name, function in list(globals().items())
    if name.startswith("fuzz_")
}


def genuine(target: str) -> list[bytes]:
    """Inputs to begin with."""
    more = {"machine": "0" * 32, "instance": bytes(8), "addresses": ("10.0.0.1",), "port": 9388}
    node = advert.Advert(name="a", slots=1, issued_at_seconds=0.0, nonce=bytes(16), **more)
    strings = [f"{n}=".encode() + chunk for n, chunk in advert.sign(KEY, node).items()]
    text = b"".join(bytes([len(string)]) + string for string in strings)
    packet = DNSOutgoing(0x8400)
    packet.add_answer_at_time(DNSText("a._hetero-hvd._tcp.local.", 16, 1, 120, text), 0)
    return {
        "packet": packet.packets(),
        "advert": [text, msgspec.msgpack.encode(node)],
        "request": [b"PUT /a/b HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"],
        "channel": [channel.encode(Heartbeat(applied_steps=1)), channel.encode(Stop(reason="x"))],
        "link": [msgspec.msgpack.encode(link.Start(what="worker"))],
        "nodes": [b'job: {min_np: 2}\nnodes:\n  - {name: a, env: {A: "\\x41"}, devices: [0]}\n'],
    }[target]


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in TARGETS:  # noqa: PLR2004 - the target
        sys.exit(f"usage: python scripts/fuzz.py {{{','.join(TARGETS)}}} [libFuzzer's options]")
    corpus = Path(".fuzz", sys.argv[1])
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(genuine(sys.argv[1])):
        (corpus / f"genuine-{number}").write_bytes(seed)
    atheris.Setup([sys.argv[0], *sys.argv[2:], str(corpus)], TARGETS[sys.argv[1]])
    atheris.Fuzz()
