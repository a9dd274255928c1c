"""Just enough of PromQL to know what an expression is about: its metrics, functions and matchers.

It is no parser of the language: `promtool check rules` is, where it is installed (test_monitoring.py).
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

FUNCTIONS = frozenset({
    "absent", "avg_over_time", "clamp_min", "histogram_quantile", "increase", "max_over_time", "rate",
    "time",
})  # fmt: skip
"""Those that are used here, and may be."""

AGGREGATIONS = frozenset({"sum", "avg", "min", "max", "count"})
_GROUPING = frozenset({"by", "without", "on", "ignoring", "group_left", "group_right"})
_WORDS = frozenset({"and", "or", "unless", "bool", "offset"})

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<range>\[[^\[\]]*\])
        | (?P<string>"(?:[^"\\]|\\.)*")
        | (?P<number>\d[\w.]*)
        | (?P<name>[a-zA-Z_:][\w:]*)
        | (?P<sign>==|!=|>=|<=|=~|!~|[-+*/%^<>=(){},])
    )""",
    re.VERBOSE,
)
_RANGE = re.compile(r"\[(\d+[smhd]|\$__rate_interval)\]")
_PAIRS = {"(": ")", "{": "}"}


class Expression(NamedTuple):
    """What an expression names."""

    metrics: frozenset[str]
    functions: frozenset[str]
    labels: frozenset[str]
    """of matchers and groupings"""
    matchers: frozenset[tuple[str, str, str, str]]
    """(metric, label, operator, value)"""


def read(text: str) -> Expression:
    """Read an expression.

    Raises:
        ValueError: brackets do not match, a call is of no known function, or something is no token.
    """
    tokens = list(_tokens(text))
    _check_brackets(tokens)
    metrics, functions, labels, matchers = set(), set(), set(), set()
    place = 0
    while place < len(tokens):
        kind, token = tokens[place]
        follows = tokens[place + 1][1] if place + 1 < len(tokens) else ""
        if token in _GROUPING and follows == "(":
            end = tokens.index(("sign", ")"), place)
            labels |= {word for kind, word in tokens[place:end] if kind == "name"} - {token}
            place = end
        elif kind == "name" and token in AGGREGATIONS | FUNCTIONS and follows in ("(", "by", "without"):
            functions.add(token)
        elif kind == "name" and follows == "(" and token not in _WORDS:
            raise ValueError(f"expected a known function, found {token} in {text!r}")
        elif kind == "name" and token not in _WORDS | _GROUPING:
            metrics.add(token)
            if follows == "{":
                end = tokens.index(("sign", "}"), place)
                found = _matchers(token, tokens[place + 2 : end])
                matchers |= found
                labels |= {label for _, label, _, _ in found}
                place = end
        elif kind == "range" and not _RANGE.fullmatch(token):
            raise ValueError(f"expected a duration, found {token} in {text!r}")
        place += 1
    return Expression(*map(frozenset, (metrics, functions, labels, matchers)))


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    place, text = 0, text.strip()
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None or match.lastgroup is None:
            raise ValueError(f"expected PromQL, found {text[place:]!r}")
        yield match.lastgroup, match[match.lastgroup]
        place = match.end()


def _check_brackets(tokens: list[tuple[str, str]]) -> None:
    ahead = []
    for kind, token in tokens:
        if kind == "sign" and token in _PAIRS:
            ahead.append(_PAIRS[token])
        elif kind == "sign" and token in _PAIRS.values() and (not ahead or ahead.pop() != token):
            raise ValueError(f"expected another bracket, found {token}")
    if ahead:
        raise ValueError(f"expected {ahead[-1]}, found the end")


def _matchers(metric: str, tokens: list[tuple[str, str]]) -> set[tuple[str, str, str, str]]:
    words = [token for _, token in tokens if token != ","]
    if len(words) % 3:
        raise ValueError(f"expected LABEL OPERATOR VALUE, found {words}")
    return {
        (metric, label, operator, value.strip('"'))
        for label, operator, value in zip(words[::3], words[1::3], words[2::3], strict=True)
    }
