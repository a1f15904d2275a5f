"""What becomes of the arguments of another package's trainer: one table for each integration.

The page of an integration is made of its table, and a test walks the installed version's arguments:
one that nobody has thought of is refused, not passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, NamedTuple


class Treatment(Enum):
    """What becomes of an argument."""

    HONOURED = "honoured"
    """It means what it means in the other package."""
    TAKEN_OVER = "taken over"
    """hetero_hvd does in its own way what it asks for, or there is nothing to be done."""
    REFUSED = "refused"
    """Another value than those that are harmless ends the script in one line."""


class ArgumentRule(NamedTuple):
    """What becomes of one argument.

    Attributes:
        treatment: As above.
        why: What is done instead, or why it is refused and what to do; "" where it is honoured as
            it stands.
        is_harmless: Of a refused argument: whether a value asks for nothing; None: the default.
    """

    treatment: Treatment
    why: str = ""
    is_harmless: Callable[[Any], bool] | None = None


class Given(NamedTuple):
    """The value of an argument.

    Attributes:
        value: As the script gives it.
        default: Where it gives none.
    """

    value: Any
    default: Any


HONOURED = ArgumentRule(Treatment.HONOURED)


def honoured(why: str) -> ArgumentRule:
    """It is, with a remark."""
    return ArgumentRule(Treatment.HONOURED, why)


def taken_over(why: str) -> ArgumentRule:
    """It is; says what is done."""
    return ArgumentRule(Treatment.TAKEN_OVER, why)


def refused(why: str, is_harmless: Callable[[Any], bool] | None = None) -> ArgumentRule:
    """It is; says why, and what to do."""
    return ArgumentRule(Treatment.REFUSED, why, is_harmless)


def refusals(
    owner: str, rules: Mapping[str, ArgumentRule], given: Mapping[str, Given]
) -> list[str]:
    """A line for each argument that cannot be honoured.

    Args:
        owner: Whose arguments they are.
        rules: The table.
        given: Name to value and default of each argument that can be judged.
    """
    problems = []
    for name, (value, default) in given.items():
        rule = rules.get(name)
        if rule is None:
            if value != default:
                problems.append(
                    f"{owner}.{name}={value!r}: hetero_hvd does not know it: leave it out, or "
                    "install a version that was tested"
                )
        elif rule.treatment is Treatment.REFUSED:
            is_harmless = rule.is_harmless(value) if rule.is_harmless else value == default
            if not is_harmless:
                problems.append(f"{owner}.{name}={_shown(value)}: {rule.why}")
    return problems


def page(
    introduction: str, package: str, rules: Mapping[str, ArgumentRule], names: Iterable[str]
) -> str:
    """The page of all arguments, in Markdown.

    Args:
        introduction: What comes first.
        package: Whose arguments they are.
        rules: The table.
        names: The arguments in the other package's order.
    """
    ordered, lines = list(names), [introduction]
    for treatment, heading in _HEADINGS.items():
        lines += ["", f"## {heading}{package if treatment is Treatment.HONOURED else ''}"]
        lines += ["| argument | what becomes of it |", "| --- | --- |"]
        lines += [
            f"| `{name}` | {rules[name].why or 'as there'} |"
            for name in ordered
            if rules[name].treatment is treatment
        ]
    return "\n".join(lines) + "\n"


_HEADINGS = {
    Treatment.REFUSED: "Refused: another value than the default ends the script in one line",
    Treatment.TAKEN_OVER: "Taken over: hetero_hvd does in its own way what is asked for",
    Treatment.HONOURED: "Honoured: the same as in ",
}


def _shown(value: object) -> str:
    return repr(value.value if isinstance(value, Enum) else value)
