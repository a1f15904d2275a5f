"""Which variables hold torch's libraries to an instruction set, and which processors have it."""

from __future__ import annotations

import pytest

from hetero_hvd.core.numerics.cpu_capability import (
    ATEN,
    INSTRUCTION_SETS,
    chosen,
    in_force,
    missing,
    variables,
)
from hetero_hvd.messages.launch import CPU_CAPABILITIES

HASWELL = {"avx", "avx2", "fma", "sse4_1"}
SKYLAKE = HASWELL | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}


def test_every_setting_is_an_instruction_set_or_none():
    """`auto` is one of them; with `native` nothing is set."""
    assert {chosen(name) for name in CPU_CAPABILITIES} == {*INSTRUCTION_SETS, ""}
    assert chosen("auto") == "avx2"
    assert not variables("native")
    for name, found in INSTRUCTION_SETS.items():
        assert variables(name) == found.variables
        assert in_force(found.variables | {"HOME": "/"}) == name


@pytest.mark.parametrize(
    "environment",
    [{}, {ATEN: "avx2"}, {**variables("avx2"), "MKL_CBWR": "AUTO"}],
    ids=["none", "one of them", "another one's"],
)
def test_nothing_is_in_force_unless_all_libraries_keep_to_it(environment):
    """ATen alone does not decide the bits."""
    assert in_force(environment) == ""
    assert missing(environment, {"sse2"}) == ""


@pytest.mark.parametrize(
    ("name", "flags", "lacks"),
    [
        ("default", {"sse2"}, ""),
        ("avx2", {"sse2", "avx"}, "avx2, fma"),
        ("avx2", HASWELL, ""),
        ("avx512", HASWELL, "avx512bw, avx512dq, avx512f, avx512vl"),
        ("avx512", SKYLAKE, ""),
        ("avx2", (), ""),
    ],
)
def test_a_processor_without_the_instructions_is_named(name, flags, lacks):
    """In one line with what to do; another kind of processor, which has no such flags, is not."""
    why = missing(variables(name), flags)
    assert bool(why) == bool(lacks)
    if lacks:
        assert f"this processor has no {lacks}: leave the node out, or" in why
