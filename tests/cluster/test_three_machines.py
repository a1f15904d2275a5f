"""docs/guide/three-machines.md, carried out as it is read: its nodes, its commands, what it prints.

Only addresses and keys are those of the hosts here; numbers may differ from the page's.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time

import pytest
import yaml

from tests.documentation.page_commands import BLOCK, commands_of
from tests.kit.checkout import CHECKOUT, variables

pytestmark = [pytest.mark.cluster, pytest.mark.matrix, pytest.mark.timeout(1200)]
PAGE = CHECKOUT / "docs" / "guide" / "three-machines.md"
TEXT = PAGE.read_text()
SCRIPT = CHECKOUT / "docs" / "examples" / "digits.py"
DEADLINE_SECONDS = 300.0
"""From machines with nothing to the end of a first training: what we promise, where nothing else
runs; with so many other programs for each core it may take as many times as long."""
CUT = "..."
"""Stands for lines that the page leaves out."""


def steps():
    """Each command of the page's sections with the lines that it prints there.

    A command with a prompt prints what follows it in its block; the one that a sentence shows,
    what the next block without a prompt holds.
    """
    said = [
        c for c in commands_of(PAGE) if c.text.startswith("hetero-hvd doctor") and not c.is_shown
    ]
    found = [
        (said[0].text, TEXT[: TEXT.index("## 3.")].rpartition("```\n")[0].rpartition("```\n")[2])
    ]
    for block in BLOCK.finditer(TEXT):
        for part in re.split(r"^\$ ", block[3], flags=re.MULTILINE)[1:]:
            command, _, printed = part.partition("\n")
            found.append((command, printed))
    return [(command, printed.splitlines()) for command, printed in found]


def plain(text):
    """Without what differs from one machine to the next: numbers, signs, blanks."""
    return re.sub(r"\s+", "", re.sub(r"[+-]?\d+(\.\d+)?", "N", text))


def rows_of(lines):
    """The rows of the tables among some lines, each as its cells; the last may be cut."""
    rows = []
    for line in lines:
        if line.startswith(("│", "┃")):
            cells = [cell.strip() for cell in re.split("[│┃]", line)[1:-1]]
            if cells[0] or not rows:
                rows.append([""] * len(cells))
            rows[-1] = [f"{old} {new}" for old, new in zip(rows[-1], cells, strict=True)]
        elif line == CUT:
            rows.append(None)
    for number, row in enumerate(rows):
        if row is not None:
            is_cut = rows[number + 1 : number + 2] == [None]
            yield [plain(cell) for cell in row], is_cut


def missing(expected, printed):
    """What the page shows and the command has not printed, in any order."""
    found = [cells for cells, _ in rows_of(printed)]
    for cells, is_cut in rows_of(expected):
        if not any(is_row(cells, others, is_cut=is_cut) for others in found):
            yield cells
    lines = {plain(line) for line in printed}
    for line in expected:
        if line != CUT and line[:1] not in "│┃┏┡└├" and plain(line) not in lines:
            yield line


def is_row(cells, others, *, is_cut):
    """Whether two rows say the same, as far as the first is shown."""
    pairs = zip(cells, others, strict=False)
    same = all(b.startswith(a) if is_cut else a == b for a, b in pairs)
    return same and len(cells) == len(others)


class Reader:
    """Who does what the page says, at three machines of his own.

    Attributes:
        seconds: Of each command.
    """

    def __init__(self, folder, hosts):
        self.folder = folder
        self.hosts = hosts
        self.seconds = {}
        shutil.copy(SCRIPT, folder)
        (folder / "nodes.yaml").write_text(self._nodes())

    def _nodes(self):
        """The page's, with the addresses of here, and what leads to these hosts."""
        (block,) = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
        nodes = yaml.safe_load(block)["nodes"]
        by_address = dict(zip(("10.77.1.11", "10.77.1.12"), self.hosts, strict=True))
        for node in nodes:
            if host := by_address.get(node.get("address")):
                ways = host.node()
                node["address"] = host.address
                node |= {key: ways[key] for key in ("identity_file", "ssh_options") if key in ways}
        assert sum("identity_file" in node for node in nodes) == len(self.hosts)
        return yaml.safe_dump({"nodes": nodes})

    def gives(self, command):
        """Give a command as it stands there; its exit code and what it prints."""
        began = time.monotonic()
        code, text = 0, ""
        for words in (shlex.split(part) for part in command.split("; ")):
            done = subprocess.run(
                self._here(words),
                cwd=self.folder,
                env=variables(COLUMNS="100"),
                capture_output=True,
                text=True,
                check=False,
            )
            code, text = code or done.returncode, text + done.stdout + done.stderr
        self.seconds[f"{len(self.seconds)} {command[:30]}"] = round(time.monotonic() - began, 1)
        return code, text

    def _here(self, words):
        """Ours by this interpreter; ssh and scp to the host that has that address here."""
        if words[0] == "hetero-hvd":
            return [sys.executable, "-m", "hetero_hvd", *words[1:]]
        place = next(word for word in words if "@" in word)
        host = self.hosts["10.77.1.12" in place]
        if words[0] == "ssh":
            return host.ssh(" ".join(words[2:]))
        name, folder = words[1], place.partition(":")[2]
        return ["sh", "-c", f"{shlex.join(host.ssh(f'cat >{folder}{name}'))} <{name}"]


def test_the_page_is_read():
    """Its commands, each with what it prints."""
    programs = [command.split()[:2] for command, _ in steps()]
    ours = [words[1] for words in programs if words[0] == "hetero-hvd"]
    assert ours == ["doctor", "install", "doctor", "run"]
    assert [bool(printed) for command, printed in steps() if "hvd" in command] == [True] * 4


def test_the_page_does_what_it_says(bare_cluster, tmp_path, capsys):
    """The doctor says what is missing, install brings it, and two machines and this one train."""
    hosts = [bare_cluster[name] for name in ("gamma", "delta")]
    for host in hosts:
        subprocess.run(host.ssh("rm -rf .local train"), check=True)
    reader = Reader(tmp_path, hosts)
    given = steps()
    for number, (command, expected) in enumerate(given):
        code, text = reader.gives(command)
        assert code == (number == 0), (command, text)  # nothing is there at first
        assert list(missing(expected, text.splitlines())) == [], (command, text)
    with capsys.disabled():
        sys.stdout.write(f"\n  seconds by command: {reader.seconds}\n")
    num_others = os.getloadavg()[2] / os.cpu_count()
    assert sum(reader.seconds.values()) <= DEADLINE_SECONDS * max(1.0, num_others)
    (file,) = {path.resolve() for path in (tmp_path / "runs").glob("*/summary.json")}
    summary = json.loads(file.read_text())
    assert set(summary["workers"]) == {"desk:0", "alpha:0", "beta:0"}
    assert len({worker["checksum"] for worker in summary["workers"].values()}) == 1

    code, text = reader.gives(next(command for command, _ in given if " install " in command))
    assert code == 0
    assert text.count("is there already") == len(hosts)
