"""One spelling of texts, and which of their differences decide nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain.evaluation import same_but_for_case, without_end


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("Oslo", "OSLO", True), ("US", "us", True), ("Stra\u00dfe", "STRASSE", True), ("B", "b", True),
        ("no", "No", True), ("usa", "USA", True), ("n!", "N!", False),
        ("Malcolm X", "malcolm x", True), ("vitamin k", "Vitamin K", True), ("x axis", "X axis", True),
        ("it's", "IT'S", True), ("5 p.m.", "5 P.M.", True), ("U.S.", "u.s.", True), ("A, C", "a, c", True),
        ("iPad", "IPAD", True), ("LaTeX", "LATEX", True), ("US", "Us", True), ("AL", "Al", True),
        ("NaCl", "NACL", True), ("5 KM", "5 km", True), ("5 PM", "5 pm", True), ("XIV", "xiv", True),
        ("5 mW", "5 MW", False), ("mW", "MW", False), ("5MB", "5Mb", False), ("10 km/H", "10 km/h", False),
        ("f(x)", "F(x)", False), ("O(n log n)", "o(n log n)", False), ("sin x", "sin X", False),
        ("CoCl2", "COCl2", False), ("\u03c3", "\u03a3", False), ("", "", True),
        ("Co", "CO", False), ("Hf", "HF", False), ("No", "NO", False), ("CO2", "Co2", False),
        ("X", "x", False), ("O(n)", "o(n)", False), ("Oslo", "Olso", False),
    ],
)  # fmt: skip
def test_case_counts_where_it_decides_the_meaning(one: str, other: str, same: bool) -> None:
    assert same_but_for_case(one, other) is same


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("Oslo.", "Oslo"), ("Oslo?! ,", "Oslo"), ("Oslo!!", "Oslo"), ("Oslo...", "Oslo"), ("5.", "5"),
        ("5!", "5!"), ("n!", "n!"), ("5!.", "5!"), ("0.33...", "0.33..."), ("\u6771\u4eac\u3002", "\u6771\u4eac"),
        ("(a)", "(a)"), (".", ""), ("", ""),
    ],
)  # fmt: skip
def test_marks_at_the_end_that_mean_nothing_are_left_out(text: str, bare: str) -> None:
    assert without_end(text) == bare


@given(st.text("aB1 .,;:!?\u3002\n'("))
def test_any_text_equals_itself_and_ends_once(text: str) -> None:
    """What is left has no more to leave out, and begins as the text does."""
    bare = without_end(text)

    assert text.startswith(bare)
    assert without_end(bare) == bare
    assert same_but_for_case(text, text)
    assert same_but_for_case(text, text.swapcase()) == same_but_for_case(text.swapcase(), text)
