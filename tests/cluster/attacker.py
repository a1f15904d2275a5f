"""Somebody in the network, on a host of his own, without any key: `attacker.py WHAT ARGUMENTS`."""

from __future__ import annotations

import os
import pickle
import socket
import sys
from contextlib import suppress

from zeroconf import DNSOutgoing, DNSText

from hetero_hvd.discovery.advert import OF_NODE, Advert, sign
from hetero_hvd.discovery.multicast import GROUP, GROUP6, PORT

HOSTILE_TEXTS = [b"\x05hello", b"\x0f0=$(touch /boom)", b"\xff" * 8000, b"", b"\x000=" * 300]
BURST = 10_000
FLOOD = 400
HALF_WORDS = [b"", b"GET /channel HTTP/1.1\r\nHost: ", b"\x16\x03\x01\x02\x00\x01"]


def packet_of(*texts, name="$(reboot)"):
    """A multicast packet with such TXT records."""
    packet = DNSOutgoing(0x8400)
    for text in texts:
        packet.add_answer_at_time(DNSText(f"{name}.{OF_NODE.service}", 16, 1, 120, text), 0)
    return packet.packets()[0]


def forged(address):
    """What an agent would say, but signed with another key."""
    advert = Advert(
        name="mallory",
        machine="f" * 32,
        instance=bytes(8),
        addresses=(address,),
        port=9388,
        slots=1,
        issued_at_seconds=2e9,
        nonce=bytes(16),
    )
    strings = [name.encode() + b"=" + value for name, value in sign(bytes(32), advert).items()]
    return packet_of(b"".join(bytes([len(string)]) + string for string in strings))


def shout(address, interface, *recorded):
    """Hostile adverts over IPv4 and IPv6, 100 kB, a burst, and what was recorded of others."""
    packets = [packet_of(text) for text in HOSTILE_TEXTS] + [forged(address)] * 2
    packets += [bytes.fromhex(packet) for packet in recorded]
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as v4,
        socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as v6,
    ):
        v4.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(address))
        index = socket.if_nametoindex(interface)
        v6.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
        for packet in packets:
            v4.sendto(packet, (GROUP, PORT))
            with suppress(OSError):  # a kernel without IPv6
                v6.sendto(packet, (GROUP6, PORT, 0, index))
        for _ in range(2):  # 100 kB in the largest packets that there are
            v4.sendto(b"\xff" * 50_000, (GROUP, PORT))
        for _ in range(BURST):
            v4.sendto(packets[0], (GROUP, PORT))


class Bomb:
    """Whoever unpickles it runs a command."""

    def __init__(self, marker):
        self._marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self._marker}",)


def requests(marker):
    """What a stranger may try on a port that speaks HTTP."""
    bomb = pickle.dumps(Bomb(marker))
    paths = ["worker_addresses/local-0:0", "rank_and_size/local-0:0", "global0/0", "x" * 9000]
    puts = [f"PUT /{path} HTTP/1.1\r\nContent-Length: {len(bomb)}\r\n\r\n" for path in paths]
    yield from (put.encode() + bomb for put in puts)
    yield b"PUT /global0/0 HTTP/1.1\r\nContent-Length: 999999999\r\n\r\n" + bomb
    yield b"GET /rank_and_size/local-0:0 HTTP/1.1\r\n\r\n"
    yield b"POST /stop HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
    yield b"\x16\x03\x01\x02\x00" + bytes(600)
    yield bomb


def besiege(address, marker, *ports):
    """Try all requests, flood, and hold connections half-open until the input ends."""
    held = []
    for port in map(int, ports):
        for request in requests(marker):
            with suppress(OSError), socket.create_connection((address, port), timeout=0.5) as end:
                end.sendall(request)
                end.recv(1000)
        for number in range(FLOOD):
            with suppress(OSError):
                end = socket.create_connection((address, port), timeout=5)
                end.setblocking(False)
                end.send(HALF_WORDS[number % len(HALF_WORDS)])
                held.append(end)
    sys.stdout.write("besieged\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    {"shout": shout, "besiege": besiege}[sys.argv[1]](*sys.argv[2:])
