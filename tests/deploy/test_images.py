"""The image is built and run: it is what its recipe promises, and its containers train."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request

import pytest

from hetero_hvd.deploy.compose import AGENTS, DRIVER
from hetero_hvd.deploy.kubernetes.options import RUNS, USER_ID, WORKSPACE
from tests.deploy.containers import with_words
from tests.deploy.oci import Container, Images, why_not
from tests.deploy.test_compose import SCRIPT, written
from tests.kit.checkout import CHECKOUT
from tests.kit.virtual_cluster import missing_for_a_cluster, running_cluster
from tests.leftovers import wait_until

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.process,
    pytest.mark.matrix,
    pytest.mark.timeout(2400),  # where nothing is kept: a Debian, and Horovod twice
]

BASE = "localhost/debian-python"
IMAGE = "localhost/hetero-hvd:0.1.0"
GUIDE = CHECKOUT / "docs" / "guide" / "containers.md"
DOCKERFILE = "hetero_hvd/deploy/Dockerfile"
QUOTAS = {"driver": 100, **{name: round(100 * cores) for name, (_, cores) in AGENTS.items()}}
PLANTED = ("cluster.key", "hetero_hvd/security/my.key", "scripts/my.key", "nodes.yaml", "runs/a")
"""What may lie in a checkout and belongs into no image."""

COMPILERS = ("cc", "c++", "gcc", "g++", "cpp", "clang", "ld", "as", "make", "cmake", "ninja")


def told(capsys, text):
    """Show a figure in the output of the tests."""
    with capsys.disabled():
        sys.stdout.write(f"\n  {text}")


@pytest.fixture(scope="module")
def images(tmp_path_factory, pytestconfig):
    """Where images are built, with the base for them."""
    if missing := why_not() or missing_for_a_cluster():
        pytest.skip(missing)
    made = Images(tmp_path_factory.mktemp("images"), pytestconfig.cache.mkdir("images"))
    try:
        made.make_base(BASE)
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """What git has of this checkout, and what else may lie in one."""
    if shutil.which("git") is None or not (CHECKOUT / ".git").exists():
        pytest.skip("needs git, and a checkout that it has made")
    folder = tmp_path_factory.mktemp("checkout")
    any_owner = ("-c", f"safe.directory={CHECKOUT}")  # CI checks out as one user, and tests as root
    listed = ["git", *any_owner, "ls-files", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.check_output(listed, cwd=CHECKOUT, text=True).splitlines():
        if (CHECKOUT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(CHECKOUT / name, folder / name)
    for name in PLANTED:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("planted-in-the-checkout")
    return folder


@pytest.fixture(scope="module")
def image(images, checkout):
    """The image: its name, the seconds that its build took."""
    return IMAGE, images.build(IMAGE, checkout / DOCKERFILE, checkout, BASE=BASE)


@pytest.fixture(scope="module")
def root(images, image):
    """The image's files."""
    return images.root(image[0])


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    """A network for the containers of a Compose file, with their shares of the processor."""
    with running_cluster(QUOTAS, folder=tmp_path_factory.mktemp("hosts")) as cluster:
        yield cluster


class Composed:
    """The services of a Compose file that are ours, as containers.

    Attributes:
        services: Name to container.
        folder: Of the file.
    """

    def __init__(self, folder, images, root, hosts, *flags, command=()):
        content = written(folder, *flags, command=command)
        addresses = {address: hosts[name].address for name, (address, _) in AGENTS.items()}
        addresses[DRIVER] = hosts["driver"].address
        one_fewer = {f"--min-np {len(AGENTS)}": f"--min-np {len(AGENTS) - 1}"}  # goes on without
        content = with_words(content, addresses | one_fewer)
        settings = images.settings(IMAGE)
        self.folder = folder
        self.services = {
            name: Container(
                name,
                content["services"][name],
                settings,
                root=root,
                folder=folder,
                enter=hosts[name].enter(),
            )
            for name in QUOTAS
        }
        self.began = time.monotonic()

    def __getitem__(self, name):
        return self.services[name]

    def __enter__(self):
        for service in self.services.values():
            service.start()
        return self

    def __exit__(self, *_):
        for service in self.services.values():
            service.close()

    def wait_for(self, text, *, times=1, seconds=120):
        """Until the driver has said so."""
        driver = self["driver"]

        def is_said():
            assert driver.process.poll() is None, driver.said()
            return driver.said().count(text) >= times

        wait_until(is_said, seconds, f"{text!r} in {driver.log}")

    def run(self):
        """The folder of the run that it has recorded."""
        (found,) = (path for path in (self.folder / "runs").iterdir() if path.is_dir())
        return found

    def step(self):
        """How many steps the job has applied."""
        url = re.search(r"status: (http://\S+)", self["driver"].said())[1]
        request = urllib.request.Request(url)  # noqa: S310 - our own
        token = (self.folder / "keys" / "token").read_text().strip()
        request.add_header("Authorization", f"Bearer {token}")
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
            return json.load(answer)["step"]

    def wait_for_steps(self, number):
        """Until the job has applied so many more, by those who are left."""
        goal = self.step() + number
        wait_until(lambda: self.step() >= goal, 60, f"step {goal}: {self['driver'].log}")


def test_the_image_holds_what_its_recipe_promises(images, image, root, capsys):
    """No compiler, no key, nothing else of a checkout; its user, its folders, its command."""
    name, seconds = image
    used = subprocess.check_output(["du", "-s", "--block-size=1M", str(root)], text=True)
    told(capsys, f"built in {seconds:.0f} s, {used.split()[0]} MiB with its base")
    settings = images.settings(name)
    assert settings["User"] == f"{USER_ID}:{USER_ID}"
    assert settings["WorkingDir"] == WORKSPACE
    assert settings["StopSignal"] == "SIGTERM"
    places = ("usr/bin", "usr/local/bin", "opt/hetero_hvd/.venv/bin")
    programs = {path.name for place in places for path in (root / place).iterdir()}
    assert "python3.11" in programs
    assert programs.isdisjoint(COMPILERS)
    assert [path for path in root.rglob("*.key") if path.is_file()] == []
    for planted in PLANTED:
        assert not (root / "opt/hetero_hvd" / planted).exists(), planted
    for folder in (WORKSPACE, RUNS):
        made = (root / folder.lstrip("/")).stat()
        assert (made.st_uid, made.st_gid) == (USER_ID, USER_ID)


def test_the_default_command_and_what_was_built_work(images, image):
    """As the image's user, in its folder; Horovod finds its torch; nothing is compiled then."""
    container = images.buildah("from", "--pull=never", image[0])
    run = ("run", "--isolation=chroot", "--network=host", container, "--")
    assert "usage: hetero-hvd" in images.buildah(*run, *images.settings(image[0])["Cmd"])
    facts = "import os, horovod.torch as h, torch; print(os.getuid(), os.getcwd(), h.gloo_built())"
    said = images.buildah(*run, "python", "-c", facts).split()
    assert said == [str(USER_ID), WORKSPACE, "True"]
    loads = "python -v -c 'import hetero_hvd.cli, horovod.torch' 2>&1 | grep 'code object from'"
    loaded = re.findall(r"from '(/opt/.*)'", images.buildah(*run, "sh", "-c", loads))
    assert loaded
    assert {path for path in loaded if not path.endswith(".pyc")} == set()


def test_an_image_with_more_packages_is_made_as_documented(images, image, tmp_path):
    """The recipe of docs/guide/containers.md, with a script that needs what it has installed."""
    (text,) = re.findall(r"```\n(FROM .*?)```", GUIDE.read_text(), re.DOTALL)
    assert f"localhost/{text.split()[1]}" == image[0]
    recipe = tmp_path / "recipe"
    recipe.write_text(text)
    (tmp_path / "train.py").write_text("import hetero_hvd, tokenizers; print('trains')\n")
    images.build("localhost/more", recipe, tmp_path)
    container = images.buildah("from", "--pull=never", "localhost/more")
    run = ("run", "--isolation=chroot", "--network=host", container, "--")
    assert images.buildah(*run, "python", "train.py") == "trains"


def test_the_demo_trains_in_containers(images, root, hosts, tmp_path, capsys):
    """As user 10001 on a root that nobody can change; health checks succeed; all ends in order."""
    with Composed(tmp_path / "demo", images, root, hosts) as demo:
        driver = demo["driver"]
        demo.wait_for(f"{len(AGENTS)} workers train together")
        told(capsys, f"3 workers train {time.monotonic() - demo.began:.0f} s after the start")
        for service in demo.services.values():
            wait_until(service.is_healthy, 60, f"{service.name}: {service.said()}")
            check_confinement(service)
        assert driver.wait(300) == 0, driver.said()
        accuracy = re.findall(r"epoch 59 .* held-out accuracy (\S+)", driver.said())
        assert [float(found) > 0.95 for found in accuracy] == [True]
        summary = json.loads((demo.run() / "summary.json").read_text())
        assert set(summary["workers"]) == {f"{name}:0" for name in AGENTS}
        assert len({worker["checksum"] for worker in summary["workers"].values()}) == 1
        for name in AGENTS:
            demo[name].send(signal.SIGTERM)
        assert {name: demo[name].wait(45) for name in AGENTS} == dict.fromkeys(AGENTS, 0)


def check_confinement(service):
    """It is nobody's root, may nothing, changes /tmp alone and sees no other's processes."""
    code, said = service.do("sh", "-c", "id -u; grep -E 'NoNewPrivs|CapBnd|CapEff' /proc/1/status")
    facts = dict(re.findall(r"(\w+):\s+(\w+)", said))
    assert (code, said.split()[0]) == (0, str(USER_ID)), said
    assert facts == {"NoNewPrivs": "1", "CapEff": "0" * 16, "CapBnd": "0" * 16}
    for place in ("/opt/hetero_hvd/hetero_hvd/new", f"{WORKSPACE}/new", "/keys/new"):
        code, said = service.do("touch", place)
        assert code != 0, place
        assert "Read-only file system" in said
    assert service.do("sh", "-c", "cp /bin/true /tmp/own && /tmp/own") == (0, "")
    code, said = service.do("sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    others = {name for name in AGENTS if f"--name {name} " in said} - {service.name}
    assert others == set()


def test_a_container_that_is_killed_costs_its_worker_only(images, root, hosts, tmp_path):
    """The others go on; it comes back when it is started again; one that is stopped leaves."""
    flags = ("--script", str(SCRIPT))
    with Composed(
        tmp_path / "job", images, root, hosts, *flags, command=("train.py", "5000")
    ) as job:
        job.wait_for("3 workers train together")
        job.wait_for_steps(20)
        job["beta"].send(signal.SIGKILL)
        assert job["beta"].wait(20) == 128 + signal.SIGKILL
        job.wait_for("2 workers train")
        job.wait_for_steps(20)

        job["beta"].start()
        job.wait_for("3 workers train", times=2)
        job["gamma"].send(signal.SIGTERM)
        assert job["gamma"].wait(45) == 0
        job.wait_for("gamma:0 has left")
        job.wait_for_steps(20)

        job["driver"].send(signal.SIGTERM)
        assert job["driver"].wait(60) == 128 + signal.SIGTERM
        summary = json.loads((job.run() / "summary.json").read_text())
        workers = summary["workers"]
        assert set(workers) == {"alpha:0", "beta:0", "gamma:0"}
        assert workers["alpha:0"]["exit_codes"] == [143]
        assert workers["gamma:0"]["exit_codes"] == [0]
        assert summary["samples"] == 16 * summary["steps"]  # of train.py: none lost, none twice
        kept = [path.name for path in (job.run() / "checkpoints").iterdir()]
        assert any(name.startswith(f"step-{summary['steps']:012d}-") for name in kept)
        for name in ("alpha", "beta"):
            assert job[name].is_healthy()
            job[name].send(signal.SIGTERM)
            assert job[name].wait(45) == 0
