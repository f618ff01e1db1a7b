"""The lexer: text of a filter or of an event in tokens, each with its position.

Owns: how names, strings, numbers and signs are spelled, in both spellings of the language. Never touches what they mean
together.

    name      letters, digits and _, not a digit first; a single . or - may join two such parts (`a.b`, `str-prefix`)
    "name"    any other name; a doubled "" is one quote, everything else stands for itself
    'text'    a string; a doubled '' is one quote, everything else stands for itself
              the curly single quotes that papers print do as well: the string ends at a closing one
    number    as in Python: 10, -2.5, +1e-3, 300_000; with a point or an exponent it is a float64
    signs     = == != <> < <= > >= ( ) [ ] , *

Blanks and line ends separate tokens and mean nothing else.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Final

import msgspec

from shoal.errors import FilterError, FilterTooLargeError
from shoal.filters.values import Value, canonical_number, problem_of
from shoal.limits import Limits

_DIGITS: Final = r"[0-9](?:_?[0-9])*"
_TOKEN: Final = re.compile(
    rf"""
      (?P<blank>   [ \t\r\n\f\v\u00a0]+ )
    | (?P<word>    [A-Za-z_][A-Za-z0-9_]* (?: [.-][A-Za-z0-9_]+ )* )
    | (?P<number>  [+-]? (?: {_DIGITS} (?: \. (?: {_DIGITS} )? )? | \.{_DIGITS} ) (?: [eE][+-]?{_DIGITS} )? )
    | (?P<string>  '[^']*(?:''[^']*)*' | [\u2018\u2019][^\u2019]*(?:\u2019\u2019[^\u2019]*)*\u2019 )
    | (?P<quoted>  "[^"]*(?:""[^"]*)*" )
    | (?P<sign>    == | != | <> | <= | >= | [=<>()\[\],*] )
    """,
    re.VERBOSE,
)
_OPEN_QUOTES: Final = {"'": "'", '"': '"', "\u2018": "\u2019", "\u2019": "\u2019"}
_INTEGER_DIGITS_MAX: Final = 20
"""Digits of the largest 64-bit integer; Python refuses to read integers of thousands of digits at all."""


class Form(Enum):
    """What a token is."""

    WORD = auto()
    QUOTED = auto()
    STRING = auto()
    NUMBER = auto()
    SIGN = auto()
    END = auto()


class Token(msgspec.Struct, frozen=True):
    """A piece of text: `text` as it stands there, and for strings, numbers and quoted names what it stands for."""

    form: Form
    text: str
    position: int
    value: Value = ""

    @property
    def keyword(self) -> str:
        """The word in lower case, or the sign; empty for everything else."""
        if self.form is Form.WORD:
            return self.text.lower()
        return self.text if self.form is Form.SIGN else ""

    @property
    def shown(self) -> str:
        """How an error message names it."""
        if self.form is Form.END:
            return "the end"
        text = self.text if len(self.text) <= _SHOWN_CHARACTERS else f"{self.text[:_SHOWN_CHARACTERS]}..."
        return text if self.form in (Form.STRING, Form.QUOTED) else f"'{text}'"


_SHOWN_CHARACTERS: Final = 40


def tokens_of(text: str, limits: Limits) -> list[Token]:
    """The tokens of a text, the last of which is its end."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise FilterError(
            "half of a surrogate pair, which UTF-8 cannot carry", text=text, position=error.start
        ) from error
    if size > limits.filter_text_bytes_max:
        raise FilterTooLargeError(
            f"the text is {size} bytes long, more than filter_text_bytes_max={limits.filter_text_bytes_max}"
        )
    tokens: list[Token] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _stray(text, position)
        if match.lastgroup != "blank":
            tokens.append(_token(text, match))
        position = match.end()
    tokens.append(Token(Form.END, "", len(text)))
    return tokens


def _token(text: str, match: re.Match[str]) -> Token:
    piece, position = match.group(), match.start()
    match match.lastgroup:
        case "word":
            return Token(Form.WORD, piece, position)
        case "sign":
            return Token(Form.SIGN, piece, position)
        case "number":
            return Token(Form.NUMBER, piece, position, _number(text, match))
        case "quoted":
            return Token(Form.QUOTED, piece, position, piece[1:-1].replace('""', '"'))
        case _:
            return Token(Form.STRING, piece, position, piece[1:-1].replace(piece[-1] * 2, piece[-1]))


def _number(text: str, match: re.Match[str]) -> int | float:
    piece, position = match.group(), match.start()
    following = text[match.end() : match.end() + 1]
    if following.isalnum() or following in ("_", "."):
        raise FilterError(
            f"'{piece}' goes on with '{following}', which is no part of a number",
            do="put a blank behind the number, or quotes around a string",
            text=text,
            position=match.end(),
            expected=("a number",),
        )
    digits = piece.lstrip("+-").replace("_", "")
    if digits.isdecimal() and len(digits.lstrip("0")) <= _INTEGER_DIGITS_MAX:
        number: int | float = int(piece)
    else:
        number = float(piece)
    if digits.isdecimal() and (isinstance(number, float) or problem_of(number)):
        raise FilterError(
            "this integer does not fit in 64 bits",
            do="write it with an exponent to get the nearest float64",
            text=text,
            position=position,
        )
    if problem_of(number):
        raise FilterError("this number is beyond the range of float64", text=text, position=position)
    return canonical_number(number)


def _stray(text: str, position: int) -> FilterError:
    found = text[position]
    if close := _OPEN_QUOTES.get(found):
        return FilterError(
            f"the quote that opens here is never closed; expected {close}",
            do=f"close it with {close}; a quote inside is doubled",
            text=text,
            position=position,
            expected=(close,),
        )
    return FilterError(
        f"found {found!r}, which begins nothing here",
        do="put names with such characters in double quotes, strings in single quotes",
        text=text,
        position=position,
        expected=("a name", "a value", "an operator"),
    )
