"""A pod's address, and whether it reaches the driver by its name."""

from __future__ import annotations

import errno
import http.client
import ipaddress
import os
import socket
from collections.abc import Iterator
from contextlib import suppress

from hetero_hvd.pod.findings import PodFinding, PodPlaces
from hetero_hvd.probes.machine.hardware import interfaces

SECONDS = 5.0
"""For each answer."""

REFUSAL_SECONDS = 0.5
"""For the word that nobody takes a datagram; that somebody does is never told."""

SIDECARS = {15021: "Istio", 4191: "Linkerd"}
"""Port at the loopback of a proxy that takes a pod's traffic."""

BLOCKED = "no answer: NetworkPolicy, or the network, lets nothing through to it"
POD_IP = "POD_IP"
NO_IPV4 = (
    "must be an IPv4 address, as Horovod knows nothing else: set it from status.podIP, as the "
    "manifest does; a pod with IPv6 only cannot take part"
)
NO_ADDRESS = "set it from status.podIP, as the manifest does"


def address_findings(places: PodPlaces) -> Iterator[PodFinding]:
    """Whether the address that others are told is that of an interface here."""
    given = os.environ.get(POD_IP, "")
    own = _own_address()
    if own is None:
        found, to_do = (f"found {given!r}", NO_IPV4) if given else ("is not set", NO_ADDRESS)
        yield PodFinding(what=POD_IP, found=found, to_do=to_do, stops_training=True)
        return
    names = [one.name for one in interfaces() if one.is_up and own in one.addresses]
    yield PodFinding(
        what="interface for Gloo",
        found=f"{names[0]}, {own}" if names else f"{own} is of no interface here that is up",
        to_do=""
        if names
        else "addresses must not be translated: is this the pod's own network, and POD_IP its "
        "status.podIP?",
        stops_training=not names,
    )
    if names:
        yield _as_others_see_it(own, places)


def _own_address() -> str | None:
    """What this pod is told of its address; None: nothing that Horovod can use."""
    try:
        return str(ipaddress.IPv4Address(os.environ.get(POD_IP, "")))
    except ValueError:
        return None


def _as_others_see_it(own: str, places: PodPlaces) -> PodFinding:
    """The address from which the kernel would send to the driver; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((places.driver, places.advert_port))
            found = str(probe.getsockname()[0])
        except OSError:  # the driver's name has a line of its own
            return PodFinding(what="address towards the driver", found="not known")
    is_own = found == own or found.startswith("127.")  # the driver is in this pod
    to_do = (
        "" if is_own else f"others are told {own}: give the pod one network, or the right POD_IP"
    )
    return PodFinding(
        what="address towards the driver", found=found, to_do=to_do, stops_training=not is_own
    )


def sidecar_findings() -> Iterator[PodFinding]:
    """Whether a proxy is in the pod that takes its connections."""
    for port, name in SIDECARS.items():
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), SECONDS):
            yield PodFinding(
                what="sidecar",
                found=f"{name} answers at port {port}",
                to_do="keep it out of this job's pods: it takes what workers say to each other",
                stops_training=True,
            )


def driver_findings(places: PodPlaces) -> Iterator[PodFinding]:
    """Whether the driver's name is known, and its ports are reached."""
    what = f"name {places.driver}"
    try:
        found = socket.getaddrinfo(
            places.driver, places.page_port, socket.AF_INET, socket.SOCK_STREAM
        )
    except socket.gaierror as error:
        to_do = (
            "no name server answers: NetworkPolicy must let port 53 out (OpenShift: 5353)"
            if error.errno == socket.EAI_AGAIN
            else "there is no driver: kubectl get service,pod; is the job of another name? "
            "doctor --kubernetes NAME"
        )
        yield PodFinding(what=what, found=str(error), to_do=to_do, stops_training=True)
        return
    addresses = sorted({str(entry[4][0]) for entry in found})
    to_do = "" if len(addresses) == 1 else "only one driver may be there: kubectl get pod"
    yield PodFinding(what=what, found=", ".join(addresses), to_do=to_do)
    for address in addresses:
        yield _page(address, places.page_port)
        yield _adverts(address, places.advert_port)


def _page(address: str, port: int) -> PodFinding:
    what = f"driver's page, TCP {port}"
    try:
        socket.create_connection((address, port), SECONDS).close()
    except OSError as error:
        return PodFinding(what=what, found=_said(error), to_do=_remedy(error), stops_training=True)
    return PodFinding(what=what, found="reached")


def _adverts(address: str, port: int) -> PodFinding:
    """A datagram without a word: only a refusal would be told."""
    what = f"driver's ear for agents, UDP {port}"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.settimeout(REFUSAL_SECONDS)
        try:
            probe.connect((address, port))
            probe.send(b"")
            probe.recv(1)
        except TimeoutError:
            pass
        except OSError as error:
            return PodFinding(
                what=what, found=_said(error), to_do=_remedy(error), stops_training=True
            )
    return PodFinding(what=what, found="not refused, which is all that can be seen")


def probe_finding(places: PodPlaces) -> PodFinding:
    """Whether what this pod's probes ask answers: the agent, or the driver's page."""
    own = _own_address() or "127.0.0.1"
    tried = []
    for name, port, path in (
        ("the agent", places.agent_port, "/alive"),
        ("the driver", places.page_port, "/"),
    ):
        connection = http.client.HTTPConnection(own, port, timeout=SECONDS)
        try:
            connection.request("GET", path)
            status = connection.getresponse().status
            if status < http.HTTPStatus.BAD_REQUEST:
                return PodFinding(what="probes", found=f"{name} answers at {own}:{port}{path}")
            tried.append(f"{name}, {port}{path}: {status}")
        except (OSError, http.client.HTTPException) as error:
            tried.append(f"{name}, {port}{path}: {_said(error)}")
        finally:
            connection.close()
    return PodFinding(
        what="probes",
        found="; ".join(tried),
        to_do="neither answers, so Kubernetes ends this pod: kubectl logs, and the ports",
        stops_training=True,
    )


def _said(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def _remedy(error: OSError) -> str:
    if error.errno == errno.ECONNREFUSED:
        return "nobody listens there: the driver starts, has ended, or has other ports"
    return BLOCKED
