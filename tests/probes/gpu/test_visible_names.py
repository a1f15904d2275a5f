"""CUDA_VISIBLE_DEVICES is read as CUDA reads it, by whoever counts slots."""

import pytest

from hetero_hvd import supervisor
from hetero_hvd.cli.cluster.agent import _visible_gpus

UUIDS = ("GPU-0a1b", "MIG-GPU-0a1b/1/0", "MIG-0a1b")
GIVEN = {
    "indices": ("2, 3", ["2", "3"]),
    "UUIDs": (",".join(UUIDS), list(UUIDS)),
    "nothing": ("", []),
    "none": ("-1", []),
    "none behind one": ("0,-1", ["0"]),
    "one behind none": ("0,-1,1", ["0"]),
    "a gap": ("0,,1", ["0"]),
    "an end": ("0,1,", ["0", "1"]),
    "words": ("1,all,2", ["1"]),
    "as Slurm says that there is none": ("NoDevFiles", []),
    "digits that are none": ("0,\u00b2,1", ["0"]),
    "half a UUID": ("0,GPU-,1", ["0"]),
    "beyond those that are there": ("0,4,1", ["0"]),
    "out of all proportion": ("0," + "9" * 5000, ["0"]),
    "one twice": ("1,0,1", []),
    "no UTF-8": ("0,\udcff,1", ["0"]),
}


@pytest.mark.parametrize("case", GIVEN)
def test_what_follows_the_first_that_is_none_does_not_count(case, tmp_path, monkeypatch):
    """For a supervisor; for an agent too, which asks NVML what is there."""
    given, names = GIVEN[case]
    for index in range(4):
        (tmp_path / f"nvidia{index}").touch()
    monkeypatch.setattr(supervisor, "GPU_FOLDER", tmp_path / "none")
    monkeypatch.setattr(supervisor, "DEVICES", tmp_path)
    assert supervisor.visible_gpus({"CUDA_VISIBLE_DEVICES": given}) == names
    if "beyond" not in case:
        assert _visible_gpus(given) == tuple(names)
    assert _visible_gpus(None) is None
