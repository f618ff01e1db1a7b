"""The reader: a walk over the tokens of a text, and the parts that filters and events have in common.

Owns: names and values as they stand in text, and the shape of an error: what was found, where, what was expected. Never
touches conditions or what they mean.
"""

from __future__ import annotations

from typing import Final

from shoal.errors import FilterError
from shoal.filters.formatter import RESERVED
from shoal.filters.lexer import Form, Token, tokens_of
from shoal.filters.values import Value, problem_of_name
from shoal.limits import Limits

_A_NAME: Final = "the name of an attribute"
_A_VALUE: Final = "a value ('text', a number, true or false)"


class Reader:
    """One pass over a text: the next token, and how to get past it. Everything wrong raises FilterError."""

    def __init__(self, text: str, limits: Limits) -> None:
        if not isinstance(text, str):
            raise FilterError(f"a text is needed, not something of type {type(text).__name__}")
        self.text = text
        self.limits = limits
        self._tokens = tokens_of(text, limits)
        self._at = 0

    @property
    def token(self) -> Token:
        """The next token."""
        return self._tokens[self._at]

    @property
    def position(self) -> int:
        """Where the next token begins."""
        return self.token.position

    def at_end(self) -> bool:
        """Whether all of the text was read."""
        return self.token.form is Form.END

    def next_is(self, keyword: str) -> bool:
        """Whether the next token is a word, in small letters or capitals, or a sign."""
        return self.token.keyword == keyword

    def skip(self) -> None:
        """Go past the next token."""
        self._at += 1

    def took(self, keyword: str) -> bool:
        """Go past the next token if it is this word or sign, and say whether it was."""
        if not self.next_is(keyword):
            return False
        self.skip()
        return True

    def take(self, sign: str) -> None:
        """Read a sign that must stand here."""
        if not self.took(sign):
            raise self.unexpected(f"'{sign}'")

    def value(self) -> Value:
        """Read a value."""
        token = self.token
        if token.form in (Form.STRING, Form.NUMBER):
            value = token.value
        elif token.keyword in ("true", "false"):
            value = token.keyword == "true"
        else:
            raise self.unexpected(_A_VALUE, do=_advice_on_value(token))
        self.skip()
        return value

    def at_value(self) -> bool:
        """Whether the next token is a value, or the star that stands for any."""
        return self.token.form in (Form.STRING, Form.NUMBER) or self.token.keyword in ("true", "false", "*")

    def name(self) -> str:
        """Read the name of an attribute."""
        token = self.token
        if token.form is Form.QUOTED:
            name = str(token.value)
        elif token.form is Form.WORD and token.keyword not in RESERVED:
            name = token.text
        else:
            raise self.unexpected(_A_NAME, do=_advice_on_name(token))
        if problem := problem_of_name(name, self.limits):
            raise FilterError(problem, text=self.text, position=token.position, expected=(_A_NAME,))
        self.skip()
        return name

    def pair(self) -> tuple[str, Value]:
        """Read `[name,value]`, of which the papers make events."""
        self.take("[")
        name = self.name()
        self.take(",")
        value = self.value()
        self.take("]")
        return name, value

    def unexpected(self, *expected: str, do: str | None = None) -> FilterError:
        """The error for a token that cannot stand here."""
        either = expected[0] if len(expected) == 1 else f"{', '.join(expected[:-1])} or {expected[-1]}"
        return FilterError(
            f"found {self.token.shown}, expected {either}",
            do=do,
            text=self.text,
            position=self.position,
            expected=expected,
        )


def _advice_on_name(token: Token) -> str | None:
    if token.form is Form.END:
        return "write true for a filter that every event matches" if token.position == 0 else None
    if token.keyword in RESERVED:
        return f'put an attribute of that name in double quotes, "{token.text}"'
    if token.form in (Form.STRING, Form.NUMBER):
        return "the name stands first, in double quotes if it is not a plain word"
    if token.keyword == "[":
        return "brackets are the papers' spelling; write the whole filter in one spelling"
    return None


def _advice_on_value(token: Token) -> str | None:
    if token.form is Form.WORD:
        return f"put strings in single quotes, '{token.text}'"
    if token.form is Form.QUOTED:
        return "double quotes are for names; put strings in single quotes"
    return None
