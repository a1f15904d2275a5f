"""Laws of `hetero_hvd.probes.gpu.leased_names`."""

from __future__ import annotations

import pytest

from hetero_hvd.probes.gpu.leased_names import leased_names

FIRST = "GPU-11111111-2222-3333-4444-555555555555"
CASES = {
    "no GPU": ([], {}, False, ["slot alpha:0"]),
    "by its UUID": ([FIRST], {}, False, [FIRST]),
    "by the beginning of it": (["GPU-11111111"], {}, False, [FIRST]),
    "by its place": (["0"], {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, False, [FIRST]),
    "by its index, as two models are numbered by their speed": (["0"], {}, False, ["GPU 0"]),
    "one that is not there": (["7"], {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, False, ["GPU 7"]),
    "of a node that is emulated": ([FIRST], {}, True, [f"{FIRST} as alpha:0"]),
}


@pytest.mark.parametrize(
    ("gpus", "order", "is_emulated", "names"), CASES.values(), ids=CASES.keys()
)
def test_a_device_has_one_name_for_all_jobs(with_gpus, gpus, order, is_emulated, names):
    """However each of them names it, as far as that is known."""
    asked = f"{gpus!r}, {order!r}, slot='alpha:0', is_emulated={is_emulated}"
    code = "from hetero_hvd.probes.gpu.leased_names import leased_names\n"
    assert with_gpus(f"{code}found = leased_names({asked})") == names


def test_a_slot_that_others_count_is_not_leased():
    """As an agent or Slurm does."""
    assert leased_names([], {}, slot="", is_emulated=False) == []
