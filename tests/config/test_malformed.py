"""Wrong files get good messages: where, what was found, what is allowed."""

import os
import sys
from pathlib import Path

import pytest

from hetero_hvd.config import load_cluster
from hetero_hvd.config.launchers import KINDS
from hetero_hvd.config.setting import REMOVED
from hetero_hvd.errors import ConfigError

ALWAYS_TLS = REMOVED["channel_tls"]
NODE = "nodes: [{name: a}]\n"
INTEGER = "must be an integer of at least 1"
PORT = "must be an integer from 1 to 65535"
QUOTE = "which YAML reads as a date; quote it"
NAME = "must be 1 to 64 letters, digits, '.' or '-', a letter or digit at both ends"
HOST = "must be a host name or an IP address, without a port"
SIZE = "must be a size such as 8GiB, 512MB or a number of bytes, at least 1MiB"
SPEED = "must be a number above 0 and at most 1"
LIST = "must be a list of at least one node, each with its own name"
MAPPING = "must be a mapping of keys to values"
DEVICE = "must be a device index such as 0, or a UUID that begins with GPU- or MIG-"
NO_CHARACTER = (
    "chr() arg not in range(0x110000)"
    if sys.version_info >= (3, 13)
    else "Python int too large to convert to C int"
)
OPTION = "must be a keyword of ssh_config, such as ConnectTimeout"
VARIABLE = "must be letters, digits and '_'; for CUDA_VISIBLE_DEVICES use 'devices'"
LOCAL = "but address 127.0.0.1 is started locally; set 'launcher: ssh' or remove it"
OVERHEAD = "needs 'seconds_per_sample'; it has no effect otherwise"
EMULATE = "must hold exactly one of 'relative_speed' and 'seconds_per_sample'"


def one(*lines: str) -> str:
    """A file with one node, whose further keys begin in line 3."""
    return "nodes:\n  - name: a\n" + "".join(f"    {line}\n" for line in lines)


MALFORMED = {
    "empty": ("", ["F: is empty; key 'nodes' is missing"]),
    "comment only": ("# soon\n", ["F: is empty; key 'nodes' is missing"]),
    "a list": ("- name: a\n", [f"F:1: found a list, {MAPPING}"]),
    "a word": ("nodes\n", [f"F:1: found 'nodes', {MAPPING}"]),
    "no nodes": ("job: {}\n", [f"F:1: nodes: is missing, {LIST}"]),
    "nodes left blank": ("job: {}\nnodes:\n", [f"F:2: nodes: is missing, {LIST}"]),
    "nodes empty": ("nodes: []\n", [f"F:1: nodes: found an empty list, {LIST}"]),
    "nodes a mapping": ("nodes:\n  a: {}\n", [f"F:2: nodes: found a mapping, {LIST}"]),
    "node a word": ("nodes:\n  - a\n", [f"F:2: nodes[0]: found 'a', {MAPPING}"]),
    "no name": ("nodes:\n  - slots: 1\n", [f"F:2: nodes[0].name: is missing, {NAME}"]),
    "unknown section": (
        NODE + "jobs: {}\n",
        ["F:2: jobs: unknown key; nearest known key is 'job'"],
    ),
    "unknown key": (
        one("slot: 2"),
        ["F:3: nodes[0].slot: unknown key; nearest known key is 'slots'"],
    ),
    "a key of the nodes": (
        NODE + "job: {max_local_batch_size: 10}\n",
        ["F:2: job.max_local_batch_size: belongs to nodes[], not to job: move it"],
    ),
    "a key of the job": (
        one("discover: true"),
        ["F:3: nodes[0].discover: belongs to job, not to nodes[0]: move it"],
    ),
    "a key of the job, above": (
        NODE + "rule: lbb\n",
        ["F:2: rule: belongs to job, not to the top level: move it"],
    ),
    "a key of the guard": (
        NODE + "job: {cpu_temperature: 80}\n",
        ["F:2: job.cpu_temperature: belongs to guard, not to job: move it"],
    ),
    "a key of the top level": (
        NODE + "job: {pools: []}\n",
        ["F:2: job.pools: belongs to the top level, not to job: move it"],
    ),
    "a key of two others": (
        NODE + "job: {relative_speed: 1}\n",
        ["F:2: job.relative_speed: belongs to nodes[] or nodes[].emulate, not to job: move it"],
    ),
    "a key of others, and near": (
        NODE + "pool: a\n",
        ["F:2: pool: belongs to nodes[], not to the top level: move it; or did you mean 'pools'?"],
    ),
    "a key that there was": (
        NODE + "job: {channel_tls: true}\n",
        [f"F:2: job.channel_tls: there is no such key any more: {ALWAYS_TLS}; remove it"],
    ),
    "nothing near": (
        NODE + "x: 1\n",
        ["F:2: x: unknown key; known keys are 'job', 'nodes', 'guard', 'pools'"],
    ),
    "key twice": (
        one("slots: 1", "slots: 2"),
        ["F:4: nodes[0].slots: given twice, first in line 3"],
    ),
    "key of two lines": (
        '"a\\nb": 1\n' + NODE,
        ["F:1: 'a\\nb': unknown key; known keys are 'job', 'nodes', 'guard', 'pools'"],
    ),
    "key a list": (
        "? [a]\n: 1\n" + NODE,
        ["F:1: a list: unknown key; known keys are 'job', 'nodes', 'guard', 'pools'"],
    ),
    "text for integer": (one("port: abc"), [f"F:3: nodes[0].port: found 'abc', {PORT}"]),
    "out of range": (one("port: 65536"), [f"F:3: nodes[0].port: found '65536', {PORT}"]),
    "boolean for integer": (
        NODE + "job: {min_np: yes}\n",
        [f"F:2: job.min_np: found 'yes', {INTEGER}"],
    ),
    "exponent for integer": (
        NODE + "job: {min_np: 1e3}\n",
        [f"F:2: job.min_np: found '1e3', {INTEGER}"],
    ),
    "octal": (NODE + "job: {min_np: 010}\n", [f"F:2: job.min_np: found '010', {INTEGER}"]),
    "sexagesimal": (NODE + "job: {min_np: 1:30}\n", [f"F:2: job.min_np: found '1:30', {INTEGER}"]),
    "underscore": (NODE + "job: {min_np: 1_0}\n", [f"F:2: job.min_np: found '1_0', {INTEGER}"]),
    "very long": (
        NODE + "job: {min_np: " + "9" * 5000 + "}\n",
        [f"F:2: job.min_np: found '{'9' * 56}..., {INTEGER}"],
    ),
    "not a number": (
        one("relative_speed: .nan"),
        [f"F:3: nodes[0].relative_speed: found '.nan', {SPEED}"],
    ),
    "infinite": (
        one("relative_speed: .inf"),
        [f"F:3: nodes[0].relative_speed: found '.inf', {SPEED}"],
    ),
    "overflow": (
        one("relative_speed: 1e999"),
        [f"F:3: nodes[0].relative_speed: found '1e999', {SPEED}"],
    ),
    "zero speed": (one("relative_speed: 0"), [f"F:3: nodes[0].relative_speed: found '0', {SPEED}"]),
    "integer for boolean": (
        NODE + "job: {balance: 2}\n",
        ["F:2: job.balance: found '2', must be true or false"],
    ),
    "list for scalar": (one("port: [1]"), [f"F:3: nodes[0].port: found a list, {PORT}"]),
    "scalar for list": (
        one("devices: 0"),
        [
            (
                "F:3: nodes[0].devices: found '0', must be a list of devices such as [0, 1]; [] "
                "is the CPU"
            )
        ],
    ),
    "bad device": (
        one("devices: [-1]"),
        [f"F:3: nodes[0].devices[0]: found '-1', {DEVICE}"],
    ),
    "devices and slots": (
        one("slots: 2", "devices: [0]"),
        ["F:4: nodes[0].devices: found 1 devices for 2 slots, must be equal"],
    ),
    "unit without B": (
        one("memory_limit_bytes: 8G"),
        [f"F:3: nodes[0].memory_limit_bytes: found '8G', {SIZE}"],
    ),
    "tiny memory": (
        one("memory_limit_bytes: 8"),
        [f"F:3: nodes[0].memory_limit_bytes: found '8', {SIZE}"],
    ),
    "unknown launcher": (
        one("launcher: rsh"),
        [f"F:3: nodes[0].launcher: found 'rsh', must be {' or '.join(map(repr, KINDS))}"],
    ),
    "port in address": (
        one("address: 10.0.0.2:22"),
        [f"F:3: nodes[0].address: found '10.0.0.2:22', {HOST}"],
    ),
    "no such address": (
        one("address: 10.0.0.256"),
        [f"F:3: nodes[0].address: found '10.0.0.256', {HOST}"],
    ),
    "address is an option": (
        one("address: -oProxyCommand=x"),
        [f"F:3: nodes[0].address: found '-oProxyCommand=x', {HOST}"],
    ),
    "user is an option": (
        one("address: b", "user: -l"),
        ["F:4: nodes[0].user: found '-l', must be a login name"],
    ),
    "ssh key for a local node": (
        one("port: 2222"),
        [f"F:3: nodes[0].port: found 2222, {LOCAL}"],
    ),
    "ssh option": (
        one("address: b", "ssh_options: {Port=1: x}"),
        [f"F:4: nodes[0].ssh_options.Port=1: found key 'Port=1', {OPTION}"],
    ),
    "ssh option without value": (
        one("address: b", "ssh_options: {Port: }"),
        ["F:4: nodes[0].ssh_options.Port: found '', must be a text on one line"],
    ),
    "Norway": (
        "nodes: [{name: no}]\n",
        ["F:1: nodes[0].name: found no, which YAML reads as true or false; quote it: 'no'"],
    ),
    "number for text": (
        one("python: 3.11"),
        ["F:3: nodes[0].python: found 3.11, which YAML reads as a number; quote it: '3.11'"],
    ),
    "date for text": (
        "nodes: [{name: 2024-01-31}]\n",
        [f"F:1: nodes[0].name: found 2024-01-31, {QUOTE}: '2024-01-31'"],
    ),
    "bad name": ("nodes: [{name: a/b}]\n", [f"F:1: nodes[0].name: found 'a/b', {NAME}"]),
    "same name": (
        "nodes:\n  - name: a\n  - name: a\n",
        ["F:3: nodes[1].name: found 'a', which is also nodes[0].name; must be unique"],
    ),
    "environment a list": (one("env: [A=1]"), [f"F:3: nodes[0].env: found a list, {MAPPING}"]),
    "environment name": (
        one("env: {CUDA_VISIBLE_DEVICES: 0}"),
        [f"F:3: nodes[0].env.CUDA_VISIBLE_DEVICES: found key 'CUDA_VISIBLE_DEVICES', {VARIABLE}"],
    ),
    "secret is not shown": (
        one("env: TOKEN=s3cret"),
        ["F:3: nodes[0].env: must be a mapping of names to texts"],
    ),
    "secret value is not shown": (
        one('env: {TOKEN: "s3cret\\0"}'),
        ["F:3: nodes[0].env.TOKEN: must be a text without NUL"],
    ),
    "variable a list": (
        one("env: {TOKEN: [s3cret]}"),
        ["F:3: nodes[0].env.TOKEN: found a list, must be a text without NUL"],
    ),
    "emulate both": (
        one("emulate: {relative_speed: 0.5, seconds_per_sample: 0.1}"),
        [f"F:3: nodes[0].emulate: {EMULATE}"],
    ),
    "emulate neither": (one("emulate: {}"), [f"F:3: nodes[0].emulate: {EMULATE}"]),
    "useless overhead": (
        one("emulate: {relative_speed: 0.5, overhead_seconds: 0.1}"),
        [f"F:3: nodes[0].emulate.overhead_seconds: {OVERHEAD}"],
    ),
    "min over max": (
        NODE + "job:\n  min_np: 3\n  max_np: 2\n",
        ["F:4: job.max_np: found 2, must be at least min_np, which is 3"],
    ),
    "min over slots": (
        one("slots: 2") + "job:\n  min_np: 3\n",
        ["F:5: job.min_np: found 3, must be at most 2, the slots of all nodes"],
    ),
    "tab": (
        "nodes:\n\t- name: a\n",
        [
            "F:2: found character '\\t' that cannot start any token; indent with spaces, not tabs",
        ],
    ),
    "not closed": ("nodes: [\n", ["F:2: expected the node content, but found '<stream end>'"]),
    "two documents": (NODE + "---\n" + NODE, ["F:2: but found another document"]),
    "tag": (
        "nodes: !!os [x]\n",
        ["F:1: tags ('tag:yaml.org,2002:os') are not supported; remove it"],
    ),
    "anchor": (
        "nodes: &n\n  - name: a\n",
        ["F:1: anchors and aliases (& and *) are not supported; write it out"],
    ),
    "alias": (
        "nodes: *n\n",
        ["F:1: anchors and aliases (& and *) are not supported; write it out"],
    ),
    "deep": ("[" * 10_000, ["F:1: nested deeper than 16 levels"]),
    "control character": (
        "nodes:\n  - name: a\x00\n",
        ["F:2: control character '\\x00' is not allowed"],
    ),
    "no such character": ('nodes:\n  - name: "\\U99999999"\n', [f"F:2: not YAML: {NO_CHARACTER}"]),
    "surrogate": (
        one('env: {A: "\\ud800"}'),
        ["F:3: surrogates (\\ud800 to \\udfff) are no characters"],
    ),
    "all at once, in the order of the file": (
        "nodes:\n  - {name: a, slots: 0}\n  - {name: a, prot: 1}\njob: {min_np: x, balans: no}\n",
        [
            "F:2: nodes[0].slots: found '0', must be an integer from 1 to 1024",
            "F:3: nodes[1].name: found 'a', which is also nodes[0].name; must be unique",
            "F:3: nodes[1].prot: unknown key; nearest known key is 'port'",
            "F:4: job.balans: unknown key; nearest known key is 'balance'",
            f"F:4: job.min_np: found 'x', {INTEGER}",
        ],
    ),
}


def problems_of(path: Path) -> list[str]:
    """The problems, with the file called F."""
    with pytest.raises(ConfigError) as caught:
        load_cluster(path, environment={}, flags={})
    return [problem.replace(str(path), "F") for problem in caught.value.problems]


@pytest.mark.parametrize(("content", "expected"), MALFORMED.values(), ids=MALFORMED)
def test_malformed_file(tmp_path: Path, content: str, expected: list[str]):
    """Each problem is one line that names file, line, key, what was found and what is allowed."""
    path = tmp_path / "nodes.yaml"
    path.write_text(content, encoding="utf-8")
    assert problems_of(path) == expected


def test_a_file_that_is_missing(tmp_path: Path):
    """A file that does not exist is named."""
    assert problems_of(tmp_path / "nodes.yaml") == ["F: no such file"]


def test_a_folder(tmp_path: Path):
    """A folder is not read."""
    assert problems_of(tmp_path) == ["F: is a directory, must be a YAML file"]


def test_a_pipe_does_not_block(tmp_path: Path):
    """A pipe could not be read again, and opening it would wait for a writer for ever."""
    os.mkfifo(tmp_path / "pipe")
    assert problems_of(tmp_path / "pipe") == ["F: is not a regular file, must be a YAML file"]


def test_a_path_that_cannot_be_opened(tmp_path: Path):
    """What the system says is passed on."""
    (tmp_path / "file").touch()
    assert problems_of(tmp_path / "file" / "x") == ["F: cannot be read: Not a directory"]


def test_invalid_utf8(tmp_path: Path):
    """The line of the first byte that is not UTF-8 is named."""
    path = tmp_path / "nodes.yaml"
    path.write_bytes(b"nodes:\n  - name: \xff\n")
    assert problems_of(path) == ["F:2: not UTF-8 text"]


def test_a_huge_file(tmp_path: Path):
    """A file that cannot be meant is refused before it is parsed."""
    path = tmp_path / "nodes.yaml"
    path.write_bytes(b"#" * (2**20 + 1))
    assert problems_of(path) == ["F: larger than 1048576 bytes, is it the right file?"]
