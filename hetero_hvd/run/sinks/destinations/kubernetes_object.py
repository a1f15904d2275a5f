"""The latest state of a run as annotations of the object that Kubernetes knows it by."""

from __future__ import annotations

import http
import http.client
import json
import os
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path

from hetero_hvd.errors import UserError
from hetero_hvd.messages import RunStarted
from hetero_hvd.run.sinks.sample import Sample, latest
from hetero_hvd.run.sinks.sink import TIMEOUT_SECONDS
from hetero_hvd.security.http_requests import NoRedirects, why_no_answer
from hetero_hvd.security.tls import context_for_others

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Token, certificate and namespace of a pod with a service account."""

OF_ACCOUNT = ("namespace", "token")
KINDS = {
    "job": "apis/batch/v1/namespaces/{namespace}/jobs/{name}",
    "mpijob": "apis/kubeflow.org/v2beta1/namespaces/{namespace}/mpijobs/{name}",
    "pytorchjob": "apis/kubeflow.org/v1/namespaces/{namespace}/pytorchjobs/{name}",
}
PREFIX = "hetero-hvd/"
PERIOD_SECONDS = 30.0
"""Between two patches: the cluster keeps each on several disks, and tells all who watch."""

MAX_WAIT_SECONDS = 300.0
"""However long a busy server asks us to wait."""

LAST_WAIT_SECONDS = 2.0
"""At the end of a run, which waits for its exports for some seconds only."""

MAX_CHARACTERS = 1024
NUMBERS = {
    "run/loss": "loss",
    "run/learning_rate": "learning-rate",
    "run/samples_per_second": "samples-per-second",
    "run/checkpoint_step": "checkpoint-step",
}
"""Path of a sample to its annotation; evaluations are `evaluation-NAME`."""

AGAIN = (http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.CONFLICT)
"""Tried once more: the token was rotated just now, or somebody else has changed the object."""

LASTING: Mapping[int, str] = {
    http.HTTPStatus.UNAUTHORIZED: "the token of the service account is not known there",
    http.HTTPStatus.FORBIDDEN: "a Role must let this pod's service account patch it",
    http.HTTPStatus.NOT_FOUND: "there is no such object in this namespace, or no such kind in this "
    "cluster",
    http.HTTPStatus.UNPROCESSABLE_ENTITY: "it does not take such annotations",
}
"""Answers after which nothing is tried again."""

PASSING: Mapping[int, str] = {
    http.HTTPStatus.CONFLICT: "others change it at the same time",
    http.HTTPStatus.INTERNAL_SERVER_ERROR: "the API server has failed",
    http.HTTPStatus.SERVICE_UNAVAILABLE: "the API server is not ready",
    http.HTTPStatus.GATEWAY_TIMEOUT: "the API server has not got done in time",
}
"""Answers after which another try may help, as after all that are named nowhere here."""


class ObjectAnnotations:
    """Annotations of `kubernetes:job/NAME`, also mpijob and pytorchjob, of the same namespace.

    The pod's service account must be allowed to `patch` it. No other object is read or written.

    Attributes:
        resumes: Whether another try may help.
        is_busy: Whether the server has asked to wait.
        next_at_seconds: On the monotonic clock; until then nothing is to be told.

    Raises:
        UserError: The URL names no object, or this is no pod.
    """

    def __init__(self, url: str) -> None:
        found = re.fullmatch(r"kubernetes:([a-z]+)/([a-z0-9]([a-z0-9.-]*[a-z0-9])?)", url)
        if found is None or found[1] not in KINDS:
            kinds = ", ".join(f"kubernetes:{kind}/NAME" for kind in KINDS)
            raise UserError(f"{url}: must be one of {kinds}")
        host = os.environ.get("KUBERNETES_SERVICE_HOST", "")
        if not host:
            raise UserError(f"{url}: KUBERNETES_SERVICE_HOST is not set: this is no pod")
        port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        self._server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        self._kind = found[1]
        self._name = found[2]
        self.resumes = True
        self.is_busy = False
        self.next_at_seconds = 0.0

    @property
    def name(self) -> str:
        """Of the object, with its kind."""
        return f"{self._kind}/{self._name}"

    def tell(self, facts: Mapping[str, str]) -> None:
        """Set these, by their names without our prefix; a busy server has not taken them.

        Raises:
            OSError: It does not answer, or does not take them.
        """
        cut = {f"{PREFIX}{key}": value[:MAX_CHARACTERS] for key, value in facts.items()}
        content = json.dumps({"metadata": {"annotations": cut}}).encode()
        self.next_at_seconds = time.monotonic() + PERIOD_SECONDS
        error = self._send(content)
        if error is not None and error.code in AGAIN:
            error = self._send(content)
        self.is_busy = error is not None and error.code == http.HTTPStatus.TOO_MANY_REQUESTS
        if error is None:
            return
        if self.is_busy:
            self.next_at_seconds = time.monotonic() + _seconds(error.headers.get("Retry-After"))
            return
        self.resumes = error.code not in LASTING
        words = {**LASTING, **PASSING}.get(error.code, "the API server does not take it")
        raise OSError(f"{self.name}: {words} (status {error.code})")

    def _send(self, content: bytes) -> urllib.error.HTTPError | None:
        """One request, with the token as it is now; what the server has refused.

        Raises:
            OSError: It does not answer, or is not the cluster's.
        """
        namespace, token, context = self._account()
        path = KINDS[self._kind].format(namespace=namespace, name=self._name)
        headers = {
            "Authorization": f"Bearer {token}",
            "Content-Type": "application/merge-patch+json",
        }
        request = urllib.request.Request(  # noqa: S310 - always https
            f"{self._server}/{path}", content, headers, method="PATCH"
        )
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}),  # the token is for this server alone
            urllib.request.HTTPSHandler(context=context),
            NoRedirects(),
        )
        try:
            with opener.open(request, timeout=TIMEOUT_SECONDS):
                return None
        except urllib.error.HTTPError as error:
            with closing(error):
                return error
        except (OSError, http.client.HTTPException) as error:
            why = why_no_answer(error)
            raise OSError(f"{self.name}: the API server does not answer ({why})") from error

    def _account(self) -> tuple[str, str, ssl.SSLContext]:
        """Namespace and token as they are now, and whom this pod trusts.

        Raises:
            OSError: The pod has no service account, which nobody gives it later.
        """
        try:
            namespace, token = ((ACCOUNT / name).read_text().strip() for name in OF_ACCOUNT)
            return namespace, token, context_for_others(str(ACCOUNT / "ca.crt"))
        except (OSError, ValueError) as error:
            self.resumes = False
            why = getattr(error, "strerror", None) or "is no text"
            raise OSError(
                f"{self.name}: this pod has no service account whose token and certificate can be "
                f"read in {ACCOUNT}: {why}"
            ) from error


class KubernetesObject:
    """See `ObjectAnnotations`; a sink for the latest state of a run."""

    def __init__(self, url: str) -> None:
        self._object = ObjectAnnotations(url)
        self._facts: dict[str, str] = {}

    @property
    def resumes(self) -> bool:
        """Whether another try may help."""
        return self._object.resumes

    def begin(self, run: RunStarted) -> None:
        """Say which run it is."""
        self._facts = {"run": run.run_id, "state": "running"}
        self._patch()

    def write(self, samples: Sequence[Sample]) -> None:
        """The newest of each; told when it is time."""
        newest = latest(samples)
        if not newest:
            return
        self._facts["step"] = str(max(one.step for one in newest.values()))
        for path, one in newest.items():
            kind, _, name = path.partition("/")
            key = NUMBERS.get(path) or (f"evaluation-{name}" if kind == "evaluation" else "")
            if re.fullmatch(r"[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?", key, re.ASCII):
                self._facts[key] = f"{one.value:.6g}"
        if workers := [path for path in newest if path.endswith("/local_batch_size")]:
            self._facts["workers"] = str(len(workers))
        if time.monotonic() >= self._object.next_at_seconds:
            self._patch()

    def end(self, state: str) -> None:
        """Say how the run has ended; a busy server is waited for, but not for long."""
        self._facts["state"] = state
        self._patch()
        wait_seconds = self._object.next_at_seconds - time.monotonic()
        if self._object.is_busy:
            time.sleep(max(0.0, min(wait_seconds, LAST_WAIT_SECONDS)))
            self._patch()
        if self._object.is_busy:
            raise OSError(f"{self._object.name}: the server is busy, the end is not told")

    def _patch(self) -> None:
        self._object.tell(self._facts | {"updated": time_of_now()})


def time_of_now() -> str:
    """As annotations have it."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"


def _seconds(retry_after: str | None) -> float:
    """What a busy server asks for, in reason."""
    with suppress(TypeError, ValueError):
        return min(max(float(retry_after or ""), 1.0), MAX_WAIT_SECONDS)
    return PERIOD_SECONDS
