"""The language: parses text in two spellings into a `Filter`.

Owns the grammar, and what an error says was expected. Never touches what predicates mean together.

    filter      := or-part | brackets
    or-part     := and-part ("or" and-part)*
    and-part    := not-part ("and" not-part)*
    not-part    := "not" not-part | "(" or-part ")" | "true" | name condition
    condition   := comparison value | "=" "*" | "exists" | "absent"
                 | ["not"] ("prefix" | "suffix" | "contains" | "wildcard" | "cidr") string
                 | "is" "not" [ "prefix" | "suffix" | "contains" | "wildcard" | "cidr" ] value
                 | ["not"] "in" "(" value ("," value)* ")"
                 | "is" ("number" | "string" | "boolean") | "isPresent" [value | "*"]
                 | "is" "not" ["prefix" | "suffix" | "contains"] string
    comparison  := "=" | "!=" | "<" | "<=" | ">" | ">="
    name        := word | quoted | "ignorecase" "(" name ")"
    value       := string | number | "true" | "false"
    brackets    := bracket ("," bracket)* [";"]
    bracket     := "[" name "," condition "]"       with a comma between the operator and its value; there, a string
                                                    may also be a bare word, or in double quotes

Also read: `a equals-ignore-case 'x'` for `ignorecase(a) = 'x'`, and `prefix-ignore-case`, `==` and `eq` for =, `<>` and
`neq` for !=, `str-prefix`, `str-suffix`, `str-postfix`, `str-contains`, and for strings only `str-eq`, `str-neq`, `str-
lt`, `str-le`, `str-gt`, `str-ge`. Keywords are case-insensitive. `and`, `or`, `not`, `true` and `false` are names only
in double quotes; the other keywords are keywords only where one can occur. `isPresent` with a value means that the
attribute has a value of that kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from shoal.errors import FilterError, FilterTooLargeError
from shoal.filters.expansion import All, Any, Expression, Leaf, Not, expand
from shoal.filters.filter import Filter
from shoal.filters.formatter import CIDR, FOLDING
from shoal.filters.predicates import BARE, UNLIKE, Operand, Operator, predicate
from shoal.filters.reader import NOTHING, Token, TokenReader
from shoal.filters.values import KINDS, Value, kind_of
from shoal.filters.views import ADDRESS, FOLDED, network_bits
from shoal.limits import DEFAULT_LIMITS, Limits

_IS_PRESENT: Final = "ispresent"
_ON_STRINGS: Final[Mapping[str, Operator]] = {
    "str-eq": Operator.EQ,
    "str-neq": Operator.NE,
    "str-lt": Operator.LT,
    "str-le": Operator.LE,
    "str-gt": Operator.GT,
    "str-ge": Operator.GE,
}
"""The papers' comparisons that take only strings."""
_IGNORING_CASE: Final[Mapping[str, Operator]] = {
    "equals-ignore-case": Operator.EQ,
    "prefix-ignore-case": Operator.PREFIX,
}
_OPERATORS: Final[Mapping[str, Operator]] = {
    **{operator.value: operator for operator in Operator if " " not in operator},
    "==": Operator.EQ,
    "eq": Operator.EQ,
    "<>": Operator.NE,
    "neq": Operator.NE,
    "str-prefix": Operator.PREFIX,
    "str-suffix": Operator.SUFFIX,
    "str-postfix": Operator.SUFFIX,
    "str-contains": Operator.CONTAINS,
    "str-wildcard": Operator.WILDCARD,
    CIDR: Operator.PREFIX,
    **_IGNORING_CASE,
    **_ON_STRINGS,
    _IS_PRESENT: Operator.EXISTS,
}
_NEGATED_BY_A_WORD: Final = (
    Operator.IN,
    Operator.PREFIX,
    Operator.SUFFIX,
    Operator.CONTAINS,
    Operator.WILDCARD,
)
"""Operators that can have `not` between the name and the operator."""
_AFTER_IS_NOT: Final = "a string, a number, 'prefix', 'suffix', 'contains', 'wildcard' or 'cidr'"
_OTHER_KINDS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("int", "integer", "float", "double", "long", "numeric"), "number"),
    **dict.fromkeys(("str", "text", "varchar"), "string"),
    "bool": "boolean",
}
"""Names that other languages have for kinds of values."""
_ADVICE_ON_OPERATORS: Final[Mapping[str, str]] = {
    "between": "write two bounds: price >= 1 and price <= 5",
    **dict.fromkeys(("starts_with", "startswith", "beginswith", "begins_with"), "write prefix: url prefix '/api/'"),
    **dict.fromkeys(("ends_with", "endswith"), "write suffix: file suffix '.png'"),
    **dict.fromkeys(("includes", "has"), "write contains: url contains 'api'"),
    **dict.fromkeys(
        ("like", "ilike", "matches", "regex", "regexp", "glob"),
        "write wildcard, with * for any characters: url wildcard '/api/*/edit'",
    ),
    **dict.fromkeys(("isnull", "is_null", "missing"), "write absent"),
    **dict.fromkeys(("notnull", "not_null", "present", "defined"), "write exists"),
    **dict.fromkeys(("lower", "upper", "ignore", "iequals", "equalsignorecase"), "write ignorecase(symbol) = 'yhoo'"),
    **{word: f"write is {kind}" for word, kind in _OTHER_KINDS.items()},
}
"""What to write instead of an operator or a function of another language."""
_AN_OPERATOR: Final = "an operator (= != < <= > >= prefix suffix contains wildcard cidr exists absent in is)"


def parse(text: str, limits: Limits = DEFAULT_LIMITS) -> Filter:
    """The filter that a text means, in either spelling. FilterError if the text is invalid."""
    parser = Parser(text, limits)
    in_brackets = parser.next_is("[")
    expression = parser.brackets() if in_brackets else parser.alternatives()
    if in_brackets:
        parser.close()
    if not parser.at_end():
        raise parser.unexpected(*(("','",) if in_brackets else ("'and'", "'or'")), "the end")
    return expand(expression, limits, text)


class Parser(TokenReader):
    """A recursive-descent parser. `filter_depth_max` limits the recursion."""

    def __init__(self, text: str, limits: Limits) -> None:
        super().__init__(text, limits)
        self._depth = 0

    def alternatives(self) -> Expression:
        """Reads expressions separated by `or`."""
        parts = [self._conjunction()]
        position = self.position
        while self.accept("or"):
            parts.append(self._conjunction())
        return parts[0] if len(parts) == 1 else Any(tuple(parts), position)

    def brackets(self) -> Expression:
        """Reads predicates in brackets, separated by commas: the papers' spelling."""
        position = self.position
        parts = [self._bracket()]
        while self.accept(","):
            parts.append(self._bracket())
        return All(tuple(parts), position)

    def _conjunction(self) -> Expression:
        parts = [self._negation()]
        position = self.position
        while self.accept("and"):
            parts.append(self._negation())
        return parts[0] if len(parts) == 1 else All(tuple(parts), position)

    def _negation(self) -> Expression:
        start = self.token
        if self.accept("not"):
            self._enter(start)
            part: Expression = Not(self._negation())
        elif self.accept("("):
            self._enter(start)
            part = self.alternatives()
            if not self.accept(")"):
                raise self.unexpected("')'", "'and'", "'or'")
        elif self.accept("true"):
            return All((), start.position)
        else:
            return self._predicate()
        self._depth -= 1
        return part

    def _enter(self, opening: Token) -> None:
        self._depth += 1
        if self._depth > self.limits.filter_depth_max:
            raise FilterTooLargeError(
                f"more than {self.limits.filter_depth_max} nested parentheses and 'not' (filter_depth_max)",
                text=self.text,
                position=opening.position,
            )

    def _bracket(self) -> Expression:
        self.expect("[")
        condition = self._predicate(",")
        self.expect("]")
        return condition

    def _predicate(self, separator: str = "") -> Expression:
        """Reads a name and a condition. The separator, if any, comes before the operator and before the value."""
        start = self.position
        folds = self.next_is(FOLDING) and self.followed_by("(")
        if folds:
            self.skip()
            self.skip()
        name = self.name()
        if folds:
            self.expect(")")
        self._separated(separator)
        negated = self.accept("not")
        sign = self.token
        operator = self._operator(negated=negated)
        word = self._tokens[self._at - 1].keyword
        operator, operand, position = self._operand(operator, sign, separator)
        try:
            if word == CIDR and isinstance(operand, str) and not folds:
                operand, name = network_bits(operand), name + ADDRESS
            elif word == CIDR:
                problem = "cannot be used with ignorecase" if folds else "takes a network in single quotes"
                raise FilterError(f"'cidr' {problem}", do="write ip cidr '10.0.0.0/8'")
            elif folds or word in _IGNORING_CASE:
                name += FOLDED
            leaf = Leaf(predicate(name, operator, operand, self.limits), start)
        except FilterError as error:
            raise type(error)(error.what, do=error.do, text=self.text, position=position) from error
        return Not(leaf) if negated else leaf

    def _operator(self, *, negated: bool) -> Operator:
        operator = _OPERATORS.get(self.token.keyword)
        if negated and operator not in _NEGATED_BY_A_WORD:
            advice = _ADVICE_ON_OPERATORS.get(self.token.keyword)
            raise self.unexpected("'in'", "'prefix'", "'suffix'", "'contains'", "'wildcard'", "'cidr'", do=advice)
        if operator is None:
            is_call = self.token.keyword == "(" and self._at > 0
            word = self._tokens[self._at - 1] if is_call else self.token
            raise self.unexpected(_AN_OPERATOR, do=_ADVICE_ON_OPERATORS.get(word.keyword))
        self.skip()
        return self._unlike() if operator is Operator.IS and self.accept("not") else operator

    def _unlike(self) -> Operator:
        """Reads the operator after `is not`."""
        if self.token.keyword in NOTHING:
            raise self.unexpected(_AFTER_IS_NOT, do="write exists")
        if self.next_is("in") or self.token.keyword in KINDS:
            raise self.unexpected(_AFTER_IS_NOT, do="put 'not' before the name")
        operator = UNLIKE.get(_OPERATORS.get(self.token.keyword, Operator.EQ), Operator.IS_NOT)
        if operator is not Operator.IS_NOT:
            self.skip()
        return operator

    def _operand(self, operator: Operator, sign: Token, separator: str) -> tuple[Operator, Operand, int]:
        """Reads what follows an operator. Returns the operator that both mean together, its value, and the position of
        the value."""
        if sign.keyword == _IS_PRESENT:
            if not (self.next_is(separator) if separator else self.at_value()):
                return operator, None, sign.position
        elif operator in BARE:
            return operator, None, sign.position
        if separator and self.next_is("]"):
            raise self.unexpected(f"'{separator}' and a value", do=f"write [name,{sign.text},value]")
        self._separated(separator)
        position = self.position
        if sign.keyword in _ON_STRINGS:
            return operator, self._string(sign, in_brackets=bool(separator)), position
        if operator in (Operator.EQ, Operator.EXISTS) and self.accept("*"):
            return Operator.EXISTS, None, position
        if operator is Operator.EXISTS:
            return Operator.IS, kind_of(self.value(in_brackets=bool(separator))).word, position
        if operator is Operator.IN:
            return operator, self._list(in_brackets=bool(separator)), position
        if operator is Operator.IS:
            return operator, self._kind(), position
        return operator, self.value(in_brackets=bool(separator)), position

    def _string(self, sign: Token, *, in_brackets: bool) -> str:
        token, value = self.token, self.value(in_brackets=in_brackets)
        if not isinstance(value, str):
            raise FilterError(
                f"'{sign.text}' takes a string, not {token.text}",
                do="put the text in single quotes, or use = != < <= > >= for numbers",
                text=self.text,
                position=token.position,
            )
        return value

    def _list(self, *, in_brackets: bool) -> tuple[Value, ...]:
        self.expect("(")
        members = [self.value(in_brackets=in_brackets)]
        while self.accept(","):
            members.append(self.value(in_brackets=in_brackets))
        if not self.accept(")"):
            raise self.unexpected("','", "')'")
        return tuple(members)

    def _kind(self) -> str:
        kind = self.token.keyword
        if kind not in KINDS:
            advice = "write absent" if kind in NOTHING else _ADVICE_ON_OPERATORS.get(kind)
            raise self.unexpected(*(f"'{each}'" for each in KINDS), do=advice)
        self.skip()
        return kind

    def _separated(self, separator: str) -> None:
        if separator:
            self.expect(separator)
