"""The tasks of an array are read as sbatch reads them; its options are tested with `--no-kill`."""

import pytest

from hetero_hvd.slurm.batch_script import array_of

ARRAYS = {
    "none": ("--gpus=1", None),
    "a range": ("--array=1-3%2", ({1, 2, 3}, 2)),
    "a list": ("--array=0,7,9-10", ({0, 7, 9, 10}, None)),
    "steps": ("--array=0-10:5", ({0, 5, 10}, None)),
    "steps of nothing": ("--array=0-10:0", None),
    "the last counts": ("--array=1-3 -a5", ({5}, None)),
    "no numbers": ("--array=a-b", None),
    "empty": ("--array=", None),
    "only a cap": ("--array=%3", None),
}


@pytest.mark.parametrize("case", ARRAYS)
def test_an_array_is_read_or_it_is_none(case):
    """Of the directives before the first command."""
    options, expected = ARRAYS[case]
    found = array_of(f"#!/bin/sh\n#SBATCH -N1 {options}\nrun\n#SBATCH --array=8-9\n")
    assert (found and (found.tasks, found.most)) == expected
