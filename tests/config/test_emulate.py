"""Settings of emulated devices that make no sense together are refused, with the reason."""

from __future__ import annotations

import pytest

from hetero_hvd.config import load_cluster
from hetero_hvd.errors import ConfigError

MALFORMED = {
    "relative_speed: 0.5, spike_ratio: 3": ["spike_ratio: needs 'spike_probability'"],
    "relative_speed: 0.5, noise_seed: 3": [
        "noise_seed: needs 'noise_ratio' or 'spike_probability'"
    ],
    "relative_speed: 0.5, noise_ratio: -0.1, spike_probability: 2%": [
        "noise_ratio: found '-0.1', must be a number of at least 0 and at most 2",
        "spike_probability: found '2%', must be a number of at least 0 and at most 1",
    ],
}


@pytest.mark.parametrize(("settings", "expected"), MALFORMED.items(), ids=MALFORMED)
def test_malformed_emulation(tmp_path, settings, expected):
    """Each problem is one line that names file, line, key and what is allowed."""
    path = tmp_path / "nodes.yaml"
    path.write_text(f"nodes:\n  - name: a\n    emulate: {{{settings}}}\n")
    with pytest.raises(ConfigError) as caught:
        load_cluster(path, environment={}, flags={})
    problems = [
        problem.removeprefix(f"{path}:3: nodes[0].emulate.") for problem in caught.value.problems
    ]
    assert len(problems) == len(expected)
    assert all(map(str.startswith, problems, expected)), problems
