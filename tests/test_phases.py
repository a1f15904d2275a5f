"""The tables of the parts of a step and of causes are the only places where these stand."""

import math
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import fields

import hetero_hvd
from hetero_hvd.messages import (
    BOUND_BY,
    CAUSES,
    OWN_PHASES,
    PHASES,
    SLOW_BY,
    STEP_PARTS,
    StepTiming,
)

PRODUCT = Path(hetero_hvd.__file__).parent
TABLES = {"phases.py", "causes.py"}


@pytest.mark.parametrize("part", STEP_PARTS, ids=lambda part: part.name)
def test_a_part_of_a_step_is_a_column(part):
    """Its time is in every row, and a cause it has is one that a worker can be slow by."""
    assert part.column in StepTiming.__struct_fields__
    assert not part.cause or part.column in SLOW_BY[part.cause].columns
    assert len(part.heading) <= 7
    assert len(part.letter) == 1


def test_the_parts_are_told_apart():
    """By name, heading, letter and colour."""
    for kind in ("name", "heading", "letter", "colour", "terminal_colour"):
        assert len({getattr(part, kind) for part in STEP_PARTS}) == len(STEP_PARTS)
    assert set(OWN_PHASES) < set(PHASES)


def test_a_worker_s_own_time_is_that_of_its_own_phases():
    """Whatever else there is; what was not measured is not known."""
    row = dict.fromkeys(StepTiming.__struct_fields__, 100.0) | {"num_steps": 1}
    row |= {f"{phase}_seconds": 2.0**i for i, phase in enumerate(OWN_PHASES)}
    assert StepTiming(**row).busy_seconds == 2.0 ** len(OWN_PHASES) - 1
    assert math.isnan(StepTiming(**row | {"optimizer_seconds": math.nan}).busy_seconds)


@pytest.mark.parametrize("phase", OWN_PHASES)
def test_own_time_that_an_earlier_version_has_not_measured_is_none(phase):
    """It is a part of sums, which records of earlier versions must not lack."""
    default = {field.name: field.default for field in fields(StepTiming)}[f"{phase}_seconds"]
    assert default is msgspec.NODEFAULT or default == 0.0


@pytest.mark.parametrize("cause", CAUSES)
def test_each_cause_has_words_and_something_that_measures_it(cause):
    """One of the two ways; what is not known is measured by nothing."""
    slow = SLOW_BY[cause]
    assert slow.words
    assert slow.advice.format(node="alpha")
    columns = {*slow.columns, slow.stops_by} - {""}
    assert columns <= set(StepTiming.__struct_fields__)
    assert bool(columns) == (cause != "unknown")


def test_nobody_else_says_how_they_are_shown():
    """Pages get the names with their data; no text about a cause stands twice."""
    said = [entry.advice for entry in (*SLOW_BY.values(), *BOUND_BY.values())]
    names = [name for name in PHASES if "_" in name]
    for path in PRODUCT.rglob("*"):
        if path.suffix in {".py", ".js", ".css", ".html"} and path.name not in TABLES:
            text = path.read_text()
            assert not [words for words in said if words in text], path
            assert path.suffix == ".py" or not [name for name in names if name in text], path
