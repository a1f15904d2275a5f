"""The tasks of an array are read as sbatch reads them; its options are tested with `--no-kill`."""

import pytest

from hetero_hvd.slurm.batch_script import array_of, own_options

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


LINES = {
    "none": ("", ""),
    "a command": ("srun -k", ""),
    "after the options": ("-N2 -k srun -k", "-N2 -k"),
    "after two dashes": ("-N2 -- -k", "-N2"),
    "the other parts of a job": ("-N2 -k : -N4 --no-kill", "-N2 -k"),
    "a value of its own": ("-N 2 --job-name -k -k", "-N --job-name -k"),
    "a value in the word": ("-N2 --nodes=2 -kN2 cmd", "-N2 --nodes=2 -kN2"),
    "a value behind flags": ("-QN 2 -k", "-QN -k"),
    "flags": (
        "-Q --exclusive -I --no-shell -K9 --x11 -k",
        "-Q --exclusive -I --no-shell -K9 --x11 -k",
    ),
    "the begin of a flag": ("--no-k --overc cmd", "--no-k --overc"),
}


@pytest.mark.parametrize("case", LINES)
def test_what_the_user_calls_has_options_of_its_own(case):
    """They are not salloc's, nor is a value that looks like one."""
    line, expected = LINES[case]
    assert list(own_options(line.split())) == expected.split()
