"""The number that an answer in words arrives at: exact, so that 18 equals 18.00.

strict     the number in "The answer is N.", the form that the worked examples end with
flexible   the last number in the text, wherever it stands
"""

import re
from collections import deque
from decimal import Decimal

# A minus belongs to a number unless something to subtract from stands right before it. A dollar
# sign may stand on either side of the minus, with a space after it; commas only where they group
# three digits.
NUMBER = (
    r"(?:\\?\$\s?)?(?P<sign>(?<![\w)])[-\u2212])?(?:\\?\$\s?)?"
    r"(?P<digits>\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)"
)
ANYWHERE = re.compile(NUMBER)
STATED = re.compile(r"\bthe answer is:?[\s*]*" + NUMBER, re.IGNORECASE)
REFERENCE = re.compile(r"####\s*" + NUMBER + r"\s*")


def strict_number(text: str) -> Decimal | None:
    """The number of the first "The answer is N.", with "$", commas and decimals as they come.

    Returns:
        None where the text never says so.
    """
    return _value(STATED.search(text))


def flexible_number(text: str) -> Decimal | None:
    """The last number in the text; None if there is none."""
    return _value(next(iter(deque(ANYWHERE.finditer(text), maxlen=1)), None))


def reference_number(solution: str) -> Decimal | None:
    """The number of GSM8K's own solutions, which end in "#### N"; None for any other end."""
    marker = solution.rfind("####")
    return None if marker < 0 else _value(REFERENCE.fullmatch(solution[marker:]))


def _value(found: re.Match[str] | None) -> Decimal | None:
    if found is None:
        return None
    value = Decimal(found["digits"].replace(",", ""))
    return -value if found["sign"] else value
