"""Checkpoints that several have written: valid only with all parts, in each store."""

import io
from contextlib import suppress
from hashlib import sha256

import pytest
import torch

from hetero_hvd.errors import UserError
from hetero_hvd.worker.recovery.checkpoints.background import Begun, Copy
from hetero_hvd.worker.recovery.checkpoints.reading import read_checkpoint
from hetero_hvd.worker.recovery.checkpoints.registry import store_at
from hetero_hvd.worker.recovery.checkpoints.store import CheckpointPart
from hetero_hvd.worker.recovery.replica import Replica, Unreadable
from hetero_hvd.worker.shards.whole_state import part_of

from .store_rigs import FolderRig, keeper, save

pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")  # gcsfs

NUM_PARTS, ELEMENTS = 3, 12


class InParts:
    """An optimizer with momentum, of whose state a checkpoint has the options alone."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def state_dict(self):
        """Of the options."""
        return {"param_groups": self.optimizer.state_dict()["param_groups"]}

    def load_state_dict(self, state):
        """Of the whole."""
        self.optimizer.load_state_dict(state)


def training(steps):
    """A layer whose momentum is the number of steps, and its optimizer."""
    model = torch.nn.Linear(4, 3, bias=False)
    torch.nn.init.constant_(model.weight, float(steps))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if steps:
        buffer = torch.arange(ELEMENTS).view(3, 4) + float(steps)
        optimizer.state[model.weight]["momentum_buffer"] = buffer
    return Replica({"model": model, "optimizer": InParts(optimizer)}), optimizer


def part_bytes(steps, number, version=None):
    """What one worker writes."""
    length = ELEMENTS // NUM_PARTS
    start, stop = number * length, (number + 1) * length
    values = torch.arange(start, stop) + float(steps)
    pieces = [(0, (3, 4), (start, stop), {"momentum_buffer": values})]
    buffer = io.BytesIO()
    torch.save(part_of(version or (0, steps), {"momentum_buffer"}, pieces), buffer)
    return buffer.getvalue()


def put_part(store, place, number, content):
    """As a worker does, who finds what rank 0 has begun."""
    name = f"part-{number}.pt"

    def write(file):
        file.write(content)
        return CheckpointPart(name=name, sha256=sha256(content).hexdigest(), num_bytes=len(content))

    return store.put_part(place, name, write)


def keep(rig, steps, versions=(), contents=None):
    """A checkpoint in parts, each put by a store of its own; where it is."""
    replica, _ = training(steps)
    checkpoints = keeper(rig, replica)
    name, series = checkpoints.names_of(steps)
    place = checkpoints.store.begin(name, series=series)
    parts = []
    for number in range(NUM_PARTS):
        version = versions[number] if versions else None
        content = (contents or {}).get(number) or part_bytes(steps, number, version)
        own = store_at(rig.location)
        assert own.has_begun(place)
        parts.append(put_part(own, place, number, content))
        assert name not in dict(checkpoints.store.listed())
    checkpoints.put(Copy(checkpoints.copied(steps), steps, {}, Begun(place, tuple(parts))))
    checkpoints.wait()
    return checkpoints.store.place(name)


def test_parts_become_one_checkpoint(rig):
    """Whose parts the manifest names; a script goes on from it, and one process reads it."""
    place = keep(rig, 7)
    assert rig.remains() == []
    replica, optimizer = training(0)
    assert keeper(rig, replica).load_newest() == place
    wanted = training(7)[1].state_dict()
    for found in (optimizer.state_dict(), read_checkpoint(place)["optimizer"]):
        assert found["param_groups"] == wanted["param_groups"]
        kept = found["state"][0]["momentum_buffer"]
        assert torch.equal(kept, wanted["state"][0]["momentum_buffer"])


FAULTS = {
    "a part is missing": (None, "its part part-1.pt is gone"),
    "a part is damaged": (part_bytes(8, 1)[:-1] + b"?", "its part part-1.pt is damaged: its bytes"),
    "a part is cut off": (part_bytes(8, 1)[:-9], "its part part-1.pt is damaged: "),
    "a part is another's": (part_bytes(8, 2), "its part part-1.pt is damaged: its bytes"),
    "a part is of another step": (part_bytes(7, 1), "its part part-1.pt is damaged: its bytes"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_without_one_part_it_is_none(rig, fault, caplog):
    """The one before counts, and it is said."""
    before, newest = keep(rig, 7), keep(rig, 8)
    content, words = FAULTS[fault]
    rig.spoil_part("step-000000000008-one", "part-1.pt", content)
    replica, optimizer = training(0)
    assert keeper(rig, replica).load_newest() == before
    assert f"{newest} is not taken: {words}" in caplog.text
    assert "trying the one before" in caplog.text
    assert optimizer.state_dict()["state"][0]["momentum_buffer"][0, 0] == 7.0
    with pytest.raises(UserError, match=f"step-000000000008-one: {words}"):
        read_checkpoint(newest)


def test_parts_of_several_versions_are_no_checkpoint(rig, caplog):
    """Whatever the manifest says."""
    before = keep(rig, 7)
    keep(rig, 8, versions=[(0, 8), (0, 8), (0, 7)])
    assert keeper(rig, training(0)[0]).load_newest() == before
    assert "its parts do not go together: they are of several versions" in caplog.text


def plain(content):
    """As a worker would write it."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


WHOLE_PART = {"version": (0, 8), "names": ["momentum_buffer"], "pieces": []}
PIECE = (0, (3, 4), (4, 8), {"momentum_buffer": torch.ones(4)})
FORMS = {
    "no parts at all": {"version": (0, 8)},
    "a list": [WHOLE_PART],
    "a number": 8,
    "pieces that are longer": WHOLE_PART | {"pieces": [(*PIECE, "more")]},
    "a piece beside its parameter": WHOLE_PART | {"pieces": [(0, (3, 4), (40, 44), PIECE[3])]},
    "a piece of other elements": WHOLE_PART | {"pieces": [(0, (3, 4), (4, 9), PIECE[3])]},
    "a state that is none": WHOLE_PART | {"pieces": [(*PIECE[:3], [1])]},
    "no number of a parameter": WHOLE_PART | {"pieces": [(None, *PIECE[1:])]},
}


@pytest.mark.parametrize("form", FORMS)
def test_parts_of_another_version_of_this_package_are_no_checkpoint(form, tmp_path, caplog):
    """Whatever they hold: the one before is taken."""
    rig = FolderRig(tmp_path)
    before = keep(rig, 7)
    keep(rig, 8, contents={1: plain(FORMS[form])})
    assert keeper(rig, training(0)[0]).load_newest() == before
    assert "step-000000000008-one is not taken: its parts " in caplog.text


def test_what_is_given_up_is_gone_and_who_is_late_with_it_leaves_nothing(rig, store):
    """A worker may be at its part still when the others have left."""
    name, series = keeper(rig).names_of(7)
    place = store.begin(name, series=series)
    put_part(store, place, 0, b"first")
    store.give_up(place)
    assert not store.has_begun(place)
    with suppress(OSError):  # a folder is gone
        put_part(store, place, 1, b"late")
    store.give_up(place)
    assert store.listed() == []
    assert rig.remains() == []
    with pytest.raises(Unreadable):
        store.read(name)


def test_one_process_reads_what_one_has_written(rig):
    """Checkpoints of earlier versions, and of whoever trains without parts."""
    replica, _ = training(7)
    save(keeper(rig, replica), 7)
    place = store_at(rig.location).place("step-000000000007-one")
    assert torch.equal(read_checkpoint(place)["model"]["weight"], torch.full((3, 4), 7.0))
    with pytest.raises(UserError, match="there is no complete checkpoint: must be one that"):
        read_checkpoint(place.replace("7-one", "8-one"))
    folder = place.rpartition("/")[0]
    for named in (folder, f"{folder}/", folder.removesuffix("/checkpoints")):
        with pytest.raises(UserError, match=f"it holds some, of which {place} is the newest"):
            read_checkpoint(named)
