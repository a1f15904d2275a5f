"""Who this machine is."""

import pytest

from hetero_hvd.probes.kernel import machine_identity as machine

BOOTS = {
    "two machines": (("boot a", "id a"), ("boot b", "id b"), False),
    "copies of one disk": (("boot a", "same"), ("boot b", "same"), False),
    "copies without a machine id": (("boot a", ""), ("boot b", ""), False),
    "containers of one machine": (("boot a", "id a"), ("boot a", "id b"), True),
    "no number of the boot": (("", "id a"), ("", "id b"), False),
    "neither": (("", ""), ("", ""), True),
}


@pytest.mark.parametrize(("one", "other", "is_one"), BOOTS.values(), ids=BOOTS)
def test_identities_of_machines(tmp_path, monkeypatch, one, other, is_one):
    """What is copied with a disk does not make two machines one."""
    found = []
    for texts in (one, other):
        for name, text in zip(("_BOOT_ID", "_MACHINE_ID"), texts, strict=True):
            (tmp_path / name).write_text(f"{text}\n")
            monkeypatch.setattr(machine, name, tmp_path / name)
        found.append(machine.machine_identity())
    assert (found[0] == found[1]) is is_one
    assert all(len(identity) == 32 for identity in found)
