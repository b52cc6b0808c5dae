"""Numbers in answers, in the many ways in which models write them."""

from decimal import Decimal

import pytest

from looped.evaluation.number_extraction import flexible_number, reference_number, strict_number

# text, strict, flexible
ANSWERS = [
    ("The answer is 250.", "250", "250"),
    ("The answer is $ 18.", "18", "18"),
    ("The answer is **$ 18**.", "18", "18"),
    ("The answer is \\$ 1,800.50.", "1800.5", "1800.5"),
    ("The answer is -$ 18", "-18", "-18"),
    ("It costs $ 18 - $ 3", None, "3"),
    ("The answer is $250.", "250", "250"),
    ("The answer is \\$250.", "250", "250"),
    ("The answer is $1,250", "1250", "1250"),
    ("The answer is 1,234,567.89.", "1234567.89", "1234567.89"),
    ("The answer is -3.", "-3", "-3"),
    ("The answer is -$3", "-3", "-3"),
    ("The answer is $-3", "-3", "-3"),
    ("The answer is \u22123.", "-3", "-3"),
    ("The answer is 3.5", "3.5", "3.5"),
    ("The answer is .5", "0.5", "0.5"),
    ("The answer is 3.50.", "3.5", "3.5"),
    ("the answer is: 7", "7", "7"),
    ("The answer is **7**.", "7", "7"),
    ("The answer is\n7", "7", "7"),
    ("The answer is 7 apples, not 8.", "7", "8"),
    ("The answer is 7. The answer is 8.", "7", "8"),
    ("The answer is 12 %", "12", "12"),
    ("He has 3 + 4 = 7 of them.", None, "7"),
    ("He spends 10 - 3", None, "3"),
    ("10-3", None, "3"),
    ("(2)-3", None, "3"),
    ("from 5 to -3", None, "-3"),
    ("#### 7", None, "7"),
    ("1,2 and 3,4", None, "4"),
    ("12,5000", None, "5000"),
    ("The answer is about seven.", None, None),
    ("The answer is unknown", None, None),
    ("", None, None),
]


@pytest.mark.parametrize(("text", "strict", "flexible"), ANSWERS)
def test_numbers_are_read_in_every_form(text, strict, flexible):
    assert strict_number(text) == (None if strict is None else Decimal(strict))
    assert flexible_number(text) == (None if flexible is None else Decimal(flexible))


@pytest.mark.parametrize(
    ("solution", "number"),
    [
        ("3 + 4 = <<3+4=7>>7\n#### 7", "7"),
        ("…\n#### 1,080", "1080"),
        ("…\n####-3\n", "-3"),
        ("…\n#### $12.50 ", "12.5"),
        ("first #### 3, then\n#### 4", "4"),
        ("…\n#### seven", None),
        ("…\n#### 7 apples", None),
        ("…\n####", None),
        ("The answer is 7", None),
    ],
)
def test_references_end_in_their_number(solution, number):
    assert reference_number(solution) == (None if number is None else Decimal(number))
