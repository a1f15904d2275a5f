"""What hostile bytes look like: noise, and genuine input that was cut, changed and mixed."""

from __future__ import annotations

from hypothesis import strategies as st


def broken(*genuine):
    """Noise, or pieces of genuine inputs with noise between them."""
    pieces = st.sampled_from(genuine).flatmap(
        lambda whole: st.tuples(st.integers(0, len(whole)), st.integers(0, len(whole))).map(
            lambda ends: whole[min(ends) : max(ends)]
        )
    )
    noise = st.binary(max_size=20)
    mixed = st.lists(st.one_of(pieces, noise, st.sampled_from(genuine)), max_size=6).map(b"".join)
    return st.one_of(st.binary(max_size=300), mixed, st.sampled_from(genuine).flatmap(_flipped))


def _flipped(whole):
    at = st.integers(0, max(len(whole) - 1, 0))
    return st.builds(
        lambda index, value: whole[:index] + bytes([value]) + whole[index + 1 :],
        at,
        st.integers(0, 255),
    )
