"""The reader: text of a filter or an event as tokens, and the parts that both have in common.

Owns how names, strings, numbers and signs are spelled in both spellings of the language, and the form of a syntax
error: what was found, where, and what was expected. Never touches conditions, or what they mean.

    name      letters, digits and _, no digit first; a single . or - may join two such parts (`a.b`, `str-prefix`)
    "name"    any other name; a doubled "" is one quote, everything else is literal
    'text'    a string; a doubled '' is one quote, everything else is literal
              curly single quotes, as papers print them, work as well: the string ends at a closing one
    number    as in Python: 10, -2.5, +1e-3, 300_000; with a point or an exponent it is a float64
    signs     = == != <> < <= > >= ( ) [ ] , * ;

Blanks and line ends separate tokens and have no other meaning.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Final

import msgspec

from shoal.errors import FilterError, FilterTooLargeError
from shoal.filters.formatter import PLAIN_NAME, RESERVED
from shoal.filters.values import Value, canonical_number, problem_of, problem_of_name
from shoal.limits import Limits

_DIGITS: Final = r"[0-9](?:_?[0-9])*"
_TOKEN: Final = re.compile(
    rf"""
      (?P<blank>   [ \t\r\n\f\v\u00a0]+ )
    | (?P<word>    {PLAIN_NAME} )
    | (?P<number>  [+-]? (?: {_DIGITS} (?: \. (?: {_DIGITS} )? )? | \.{_DIGITS} ) (?: [eE][+-]?{_DIGITS} )? )
    | (?P<string>  '[^']*(?:''[^']*)*' | [\u2018\u2019][^\u2019]*(?:\u2019\u2019[^\u2019]*)*\u2019 )
    | (?P<quoted>  "[^"]*(?:""[^"]*)*" )
    | (?P<sign>    == | != | <> | <= | >= | [=<>()\[\],*;] )
    """,
    re.VERBOSE,
)
_OPEN_QUOTES: Final = {"'": "'", '"': '"', "\u2018": "\u2019", "\u2019": "\u2019"}
_WORDS_FOR_SIGNS: Final = {"&&": "and", "&": "and", "||": "or", "|": "or", "!": "not"}
"""What the language writes for the signs of other languages."""
_INTEGER_DIGITS_MAX: Final = 20
"""Digits of the largest 64-bit integer. Python refuses to parse integers of thousands of digits."""


class TokenKind(Enum):
    """The kind of a token."""

    WORD = auto()
    QUOTED = auto()
    STRING = auto()
    NUMBER = auto()
    SIGN = auto()
    END = auto()


class Token(msgspec.Struct, frozen=True):
    """A piece of text: `text` as written, and for strings, numbers and quoted names the value that it means."""

    kind: TokenKind
    text: str
    position: int
    value: Value = ""

    @property
    def keyword(self) -> str:
        """The word in lower case, or the sign; empty for everything else."""
        if self.kind is TokenKind.WORD:
            return self.text.lower()
        return self.text if self.kind is TokenKind.SIGN else ""

    @property
    def shown(self) -> str:
        """The token in an error message."""
        if self.kind is TokenKind.END:
            return "the end"
        text = self.text if len(self.text) <= _SHOWN_CHARACTERS else f"{self.text[:_SHOWN_CHARACTERS]}..."
        return text if self.kind in (TokenKind.STRING, TokenKind.QUOTED) else f"'{text}'"


_SHOWN_CHARACTERS: Final = 40


def tokens_of(text: str, limits: Limits) -> list[Token]:
    """The tokens of a text. The last one is its end."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise FilterError("a lone surrogate, which UTF-8 cannot encode", text=text, position=error.start) from error
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
    tokens.append(Token(TokenKind.END, "", len(text)))
    return tokens


def _token(text: str, match: re.Match[str]) -> Token:
    piece, position = match.group(), match.start()
    match match.lastgroup:
        case "word":
            return Token(TokenKind.WORD, piece, position)
        case "sign":
            return Token(TokenKind.SIGN, piece, position)
        case "number":
            return Token(TokenKind.NUMBER, piece, position, _number(text, match))
        case "quoted":
            return Token(TokenKind.QUOTED, piece, position, piece[1:-1].replace('""', '"'))
        case _:
            return Token(TokenKind.STRING, piece, position, piece[1:-1].replace(piece[-1] * 2, piece[-1]))


def _number(text: str, match: re.Match[str]) -> int | float:
    piece, position = match.group(), match.start()
    following = text[match.end() : match.end() + 1]
    if following.isalnum() or following in ("_", "."):
        raise FilterError(
            f"'{piece}' is followed by '{following}', which is not part of a number",
            do="put a space after the number, or quotes around a string",
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
    sign = found * 2 if text.startswith(found * 2, position) and found in "&|" else found
    if word := _WORDS_FOR_SIGNS.get(sign):
        return FilterError(
            f"found {sign!r}, expected '{word}'", do=f"write {word}", text=text, position=position, expected=(word,)
        )
    return FilterError(
        f"found {found!r}, expected a name, a value or an operator",
        do="put names with such characters in double quotes, strings in single quotes",
        text=text,
        position=position,
        expected=("a name", "a value", "an operator"),
    )


NOTHING: Final = frozenset({"null", "none", "nil"})
"""What other languages write for absence."""
_A_NAME: Final = "the name of an attribute"
_A_VALUE: Final = "a value ('text', a number, true or false)"


class TokenReader:
    """One pass over the tokens of a text. Every mistake in the text raises FilterError."""

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
        """Whether the whole text was read."""
        return self.token.kind is TokenKind.END

    def next_is(self, keyword: str) -> bool:
        """Whether the next token is a word, in any case, or a sign."""
        return self.token.keyword == keyword

    def followed_by(self, sign: str) -> bool:
        """Whether a sign is behind the next token."""
        return not self.at_end() and self._tokens[self._at + 1].keyword == sign

    def skip(self) -> None:
        """Moves past the next token."""
        self._at += 1

    def accept(self, keyword: str) -> bool:
        """Moves past the next token if it is this word or sign. Returns whether it was."""
        if not self.next_is(keyword):
            return False
        self.skip()
        return True

    def expect(self, sign: str) -> None:
        """Reads a sign that is required here."""
        if not self.accept(sign):
            raise self.unexpected(f"'{sign}'")

    def value(self, *, in_brackets: bool = False) -> Value:
        """Reads a value. In brackets, a bare word and a text in double quotes are strings too, as PADRES writes
        them."""
        token = self.token
        if token.kind in (TokenKind.STRING, TokenKind.NUMBER) or (in_brackets and token.kind is TokenKind.QUOTED):
            value = token.value
        elif token.keyword in ("true", "false"):
            value = token.keyword == "true"
        elif in_brackets and token.kind is TokenKind.WORD:
            value = token.text
        else:
            raise self.unexpected(_A_VALUE, do=_advice_on_value(token))
        self.skip()
        return value

    def at_value(self) -> bool:
        """Whether the next token is a value, or the star that stands for any value."""
        return self.token.kind in (TokenKind.STRING, TokenKind.NUMBER) or self.token.keyword in ("true", "false", "*")

    def name(self) -> str:
        """Reads the name of an attribute."""
        token = self.token
        if token.kind is TokenKind.QUOTED:
            name = str(token.value)
        elif token.kind is TokenKind.WORD and token.keyword not in RESERVED:
            name = token.text
        else:
            raise self.unexpected(_A_NAME, do=_advice_on_name(token, is_first=self._at == 0))
        if problem := problem_of_name(name, self.limits):
            raise FilterError(problem, text=self.text, position=token.position, expected=(_A_NAME,))
        self.skip()
        return name

    def pair(self) -> tuple[str, Value]:
        """Reads `[name,value]`, the papers' spelling of an attribute of an event."""
        self.expect("[")
        name = self.name()
        self.expect(",")
        value = self.value(in_brackets=True)
        self.expect("]")
        return name, value

    def close(self) -> None:
        """Moves past the `;` that may close a text in the papers' spelling."""
        if self.accept(";") and not self.at_end():
            raise self.unexpected("the end")

    def unexpected(self, *expected: str, do: str | None = None) -> FilterError:
        """The error for a token that is not allowed here."""
        either = expected[0] if len(expected) == 1 else f"{', '.join(expected[:-1])} or {expected[-1]}"
        return FilterError(
            f"found {self.token.shown}, expected {either}",
            do=do,
            text=self.text,
            position=self.position,
            expected=expected,
        )


def _advice_on_name(token: Token, *, is_first: bool) -> str | None:
    if token.kind is TokenKind.END:
        return "write true for a filter that every event matches" if is_first else None
    if token.keyword in RESERVED:
        return f'put an attribute of that name in double quotes, "{token.text}"'
    if token.kind in (TokenKind.STRING, TokenKind.NUMBER):
        return "the name comes first, in double quotes if it is not a plain word"
    if token.keyword == "[":
        return "brackets belong to the papers' spelling; use one spelling for the whole filter"
    return None


def _advice_on_value(token: Token) -> str | None:
    if token.keyword in NOTHING:
        return "write absent after the name for an attribute without a value, exists for one with a value"
    if token.kind is TokenKind.WORD:
        return f"put strings in single quotes, '{token.text}'"
    if token.kind is TokenKind.QUOTED:
        return "double quotes are for names; put strings in single quotes"
    return None
