"""Runs the containers of a manifest as local processes, as a kubelet would start them."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from tests.kit.checkout import python_path

ADDRESS = "127.0.0.1"
SEARCH = f"{Path(sys.executable).parent}:/usr/bin:/bin"


def free_ports(number):
    """Ports that nobody has; all were taken at once, so they are different."""
    ends = [socket.socket() for _ in range(number)]
    try:
        for end in ends:
            end.bind((ADDRESS, 0))
        return [end.getsockname()[1] for end in ends]
    finally:
        for end in ends:
            end.close()


def with_words(documents, words):
    """The same documents with other words, such as ports and names of services."""
    names = "|".join(re.escape(word) for word in words)
    pattern = rf"(?<![A-Za-z0-9])({names})(?![A-Za-z0-9])"
    return json.loads(re.sub(pattern, lambda found: words[found[1]], json.dumps(documents)))


def expanded(word, env):
    """What Kubernetes makes of a word of a command."""

    def value(found):
        return "$" if found[0] == "$$" else env.get(found[1], found[0])

    return re.sub(r"\$\$|\$\(([^()]*)\)", value, word)


def local_environment(folder):
    """What the image would bring: our program, and the interpreter as `python`."""
    bin_folder = folder / "bin"
    bin_folder.mkdir(exist_ok=True)
    program = bin_folder / "hetero-hvd"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m hetero_hvd "$@"\n')
    program.chmod(0o700)
    return {"PATH": f"{bin_folder}:{SEARCH}", "PYTHONPATH": python_path()}


class Pod:
    """A pod: its volumes are folders, its containers processes of this machine.

    Args:
        template: Of the pod.
        name: What Kubernetes would call it.
        folder: For its volumes.
        secret: Folder with what is in the Secret.
        config: The data of the ConfigMap, text or bytes.
        claims: Folder of the volumes that pods share, and of the working folder, unless the pod
            unpacks one.
        enter: Words before each command.
        address: Of the pod.
    """

    def __init__(
        self, template, name, folder, *, secret, config, claims, enter=(), address=ADDRESS
    ):
        self.spec = template["spec"]
        (self.container,) = self.spec["containers"]
        self.log = folder / f"{name}.txt"
        self._facts = {"status.podIP": address, "metadata.name": name}
        self._enter = enter
        self._address = address
        self._folders = {}
        for volume in self.spec["volumes"]:
            path = (claims if "persistentVolumeClaim" in volume else folder / name) / volume["name"]
            path.mkdir(parents=True, exist_ok=True)
            self._folders[volume["name"]] = path
            if "secret" in volume:
                self._put_secret(path, secret, volume["secret"]["defaultMode"])
        for volume in self.spec["volumes"]:
            if "configMap" in volume:
                self._put_config(self._folders[volume["name"]], config)
        self._work = self._folders.get("tree", claims / "workspace")
        self._work.mkdir(parents=True, exist_ok=True)
        self._outside = local_environment(folder / name)
        self.process = None

    def _put_secret(self, path, secret, mode):
        for file in secret.iterdir():
            copy = shutil.copy(file, path / file.name)
            Path(copy).chmod(mode)

    def _put_config(self, path, config):
        for name, content in config.items():
            if isinstance(content, bytes):
                (path / name).write_bytes(content)
            else:
                (path / name).write_text(self._here(content, self.container))

    def start(self):
        """Run the init containers to their end, then the container."""
        for container in self.spec["initContainers"]:
            subprocess.run(self._vector(container), check=True, env=self._environment(container))
        for mount in self.container["volumeMounts"]:
            if name := mount.get("subPath"):
                shutil.copy(self._folders[mount["name"]] / name, self._work / name)
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                self._vector(self.container),
                cwd=self._work,
                env=self._environment(self.container),
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return self

    def answers(self, probe):
        """Whether a probe of the container succeeds."""
        asked = self.container[probe]
        kind = "tcpSocket" if "tcpSocket" in asked else "httpGet"
        ports = {port["name"]: port["containerPort"] for port in self.container["ports"]}
        end = self._address, ports[asked[kind]["port"]]
        try:
            if kind == "tcpSocket":
                socket.create_connection(end, asked["timeoutSeconds"]).close()
                return True
            url = f"http://{end[0]}:{end[1]}{asked[kind]['path']}"
            with urllib.request.urlopen(url, timeout=asked["timeoutSeconds"]) as answer:
                return 200 <= answer.status < 400
        except (OSError, urllib.error.URLError):
            return False

    def wait_for(self, condition, *, seconds=100):
        """Until a condition holds; the container must not end before."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.05)

    def said(self):
        """What it has written."""
        return self.log.read_text()

    def stop(self):
        """End it as Kubernetes does; its exit code, which must come in the grace period."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(self.spec["terminationGracePeriodSeconds"])

    def kill(self):
        """End it as a node that fails does, with all that it has started."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def _vector(self, container):
        env = self._own_environment(container)
        words = [*container["command"], *container.get("args", ())]
        return [*self._enter, *(self._here(expanded(word, env), container) for word in words)]

    def _own_environment(self, container):
        found = {}
        for variable in container.get("env", ()):
            source = variable.get("valueFrom", {})
            if "fieldRef" in source:
                found[variable["name"]] = self._facts[source["fieldRef"]["fieldPath"]]
            elif "resourceFieldRef" in source:
                found[variable["name"]] = str(
                    math.ceil(float(container["resources"]["limits"]["cpu"]))
                )
            else:
                found[variable["name"]] = self._here(variable["value"], container)
        return found

    def _environment(self, container):
        store = {name: word for name, word in os.environ.items() if name.startswith("AWS_")}
        return store | self._outside | self._own_environment(container)  # the Secret has them

    def _here(self, text, container):
        """A text with the folders of this machine in the place of the container's."""
        mounts = {
            mount["mountPath"]: str(self._folders[mount["name"]])
            for mount in container["volumeMounts"]
            if "subPath" not in mount
        }
        names = "|".join(re.escape(path) for path in mounts)
        pattern = rf"(?<![A-Za-z0-9/.])({names})(?![A-Za-z0-9])"
        return re.sub(pattern, lambda found: mounts[found[1]], text)
