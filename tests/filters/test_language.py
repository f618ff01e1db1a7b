"""The language: two spellings with one meaning, three-valued logic, limits, and errors with positions."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.filters import oracle
from tests.filters import strategies as some

from shoal.errors import EmptyFilterError, FilterError, FilterTooLargeError
from shoal.filters.conjunctions import conjunction_of
from shoal.filters.events import parse_event
from shoal.filters.expansion import All, Any, Expression, Leaf, Not, expand
from shoal.filters.filter import Filter, filter_of
from shoal.filters.formatter import predicate_text
from shoal.filters.fuzz import fuzz
from shoal.filters.language import parse
from shoal.filters.predicates import Operand, Operator, predicate
from shoal.filters.values import Event, Value

O = Operator  # noqa: E741


def one(*predicates: tuple[str, Operator, Operand]) -> object:
    """The filter of one conjunction."""
    return filter_of([conjunction_of(predicate(*each) for each in predicates)])


# -- Spellings -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "operator", "value"),
    [
        ("a = 1", O.EQ, 1),
        ("a == 1", O.EQ, 1),
        ("a eq 'x'", O.EQ, "x"),
        ("a != 1", O.NE, 1),
        ("a <> 1", O.NE, 1),
        ("a neq 1", O.NE, 1),
        ("a<1", O.LT, 1),
        ("a<=1", O.LE, 1),
        ("a>1", O.GT, 1),
        ("a>=1", O.GE, 1),
        ("a>-1", O.GT, -1),
        ("a prefix 'x'", O.PREFIX, "x"),
        ("a str-prefix 'x'", O.PREFIX, "x"),
        ("a SUFFIX 'x'", O.SUFFIX, "x"),
        ("a str-suffix 'x'", O.SUFFIX, "x"),
        ("a is not 'x'", O.IS_NOT, "x"),
        ("a IS NOT ''", O.IS_NOT, ""),
        ("a is not prefix 'x'", O.IS_NOT_PREFIX, "x"),
        ("a is not str-suffix 'x'", O.IS_NOT_SUFFIX, "x"),
        ("[a,is not,'x']", O.IS_NOT, "x"),
        ("[a,is not str-contains,'x']", O.IS_NOT_CONTAINS, "x"),
        ("not a is not 'x'", O.EQ, "x"),
        ("not a is not prefix 'x'", O.PREFIX, "x"),
        ("[a,str-postfix,'x']", O.SUFFIX, "x"),
        ("[a,not str-postfix,'x']", O.NOT_SUFFIX, "x"),
        ("[a,str-eq,'x']", O.EQ, "x"),
        ("[a,str-neq,'x']", O.NE, "x"),
        ("[a,str-lt,'x']", O.LT, "x"),
        ("[a,str-le,'x']", O.LE, "x"),
        ("[a,Str-GT,'x']", O.GT, "x"),
        ("a str-ge 'x'", O.GE, "x"),
        ("a contains 'x'", O.CONTAINS, "x"),
        ("a Str-Contains 'x'", O.CONTAINS, "x"),
        ("not a prefix 'x'", O.NOT_PREFIX, "x"),
        ("a not prefix 'x'", O.NOT_PREFIX, "x"),
        ("a not suffix 'x'", O.NOT_SUFFIX, "x"),
        ("a not contains 'x'", O.NOT_CONTAINS, "x"),
        ("a exists", O.EXISTS, None),
        ("a isPresent", O.EXISTS, None),
        ("a = *", O.EXISTS, None),
        ("a absent", O.ABSENT, None),
        ("not a exists", O.ABSENT, None),
        ("a in (1)", O.EQ, 1),
        ("a in (2, 1,1)", O.IN, (1, 2)),
        ("a is number", O.IS, "number"),
        ("a IS String", O.IS, "string"),
        ("a isPresent 0", O.IS, "number"),
        ("a isPresent '00-00-00'", O.IS, "string"),
        ("a isPresent false", O.IS, "boolean"),
        ("a isPresent *", O.EXISTS, None),
        ("a = TRUE", O.EQ, True),
        ("not a = true", O.EQ, False),
        ("not not a = 1", O.EQ, 1),
        ("((a = 1))", O.EQ, 1),
        ("[a,=,1]", O.EQ, 1),
        ("[a,eq,'x']", O.EQ, "x"),
        ("[ a , <> , 1 ]", O.NE, 1),
        ("[a,str-prefix,'x']", O.PREFIX, "x"),
        ("[a,not str-prefix,'x']", O.NOT_PREFIX, "x"),
        ("[a,in,(1,2)]", O.IN, (1, 2)),
        ("[a,isPresent,0]", O.IS, "number"),
        ("[a,isPresent,'']", O.IS, "string"),
        ("[a,isPresent]", O.EXISTS, None),
        ("[a,=,*]", O.EXISTS, None),
        ("[a,exists]", O.EXISTS, None),
        ("[a,absent]", O.ABSENT, None),
        ("[a,is,boolean]", O.IS, "boolean"),
    ],
)
def test_every_spelling_of_a_predicate(text: str, operator: Operator, value: Operand) -> None:
    assert parse(text) == one(("a", operator, value))


def test_the_examples_of_the_design_and_of_the_paper_are_one_filter() -> None:
    infix = parse("class = 'STOCK' and symbol = 'YHOO' and volume > 300000")
    assert infix == parse("[class,eq,'STOCK'],[symbol,eq,'YHOO'],[volume,>,300000]")
    assert infix == parse("[class,eq,\u2018STOCK\u2019],[symbol,eq,\u2018YHOO\u2019],[volume,>,300000]")
    assert infix == parse("volume>300_000 AND\n\tclass=='STOCK' and (symbol in ('YHOO'))")


def test_the_spelling_of_padres() -> None:
    text = """[class,eq,STOCK],[symbol,str-eq,"YHOO"],[volume,>,300000],[day,in,(Mon,"Tue")],[open,isPresent,x];"""
    same = "class = 'STOCK' and symbol = 'YHOO' and volume > 300000 and day in ('Mon', 'Tue') and open is string"
    assert parse(text) == parse(same)
    assert parse("[open,=,true]") == parse("open = true")
    assert parse_event('[class,STOCK],[note,"two words"];') == {"class": "STOCK", "note": "two words"}


def test_the_advertisement_of_the_paper() -> None:
    assert parse(
        "[class,eq,\u2018STOCK\u2019],[symbol,eq,\u2018YHOO\u2019],[open,isPresent,0],\n"
        "[volume,isPresent,0],[date,isPresent,\u201800-00-00\u2019]"
    ) == parse("class = 'STOCK' and symbol = 'YHOO' and open is number and volume is number and date is string")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("a.b = 1", "a.b"),
        ("str-prefix = 1", "str-prefix"),
        ("a-1=1", "a-1"),
        ("_x9 = 1", "_x9"),
        ("Volume = 1", "Volume"),
        ('"my attr" = 1', "my attr"),
        ('"say ""hi""" = 1', 'say "hi"'),
        ('"and" = 1', "and"),
        ("exists = 1", "exists"),
        ("in = 1", "in"),
        ("is = 1", "is"),
        ('"é\n" = 1', "é\n"),
        ('["a,b]",=,1]', "a,b]"),
    ],
)
def test_names(text: str, name: str) -> None:
    assert parse(text) == one((name, O.EQ, 1))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("10", 10),
        ("+10", 10),
        ("-2.5", -2.5),
        ("30.00", 30),
        ("-0.0", 0),
        (".5", 0.5),
        ("5.", 5),
        ("1e-3", 0.001),
        ("1_000.5E+1", 10005),
        ("007", 7),
        ("9007199254740993", 2**53 + 1),
        ("18446744073709551615", 2**64 - 1),
        ("-9223372036854775808", -(2**63)),
        ("0000000000000000000000000000000000000001", 1),
        ("'it''s'", "it's"),
        ("''", ""),
        ("'a\nb'", "a\nb"),
        ("'say \"hi\" \\n'", 'say "hi" \\n'),
        ("\u2018it's\u2019", "it's"),
        ("\u2019x\u2019", "x"),
        ("false", False),
    ],
)
def test_values(text: str, value: Value) -> None:
    assert parse(f"a = {text}") == one(("a", O.EQ, value))
    assert parse(f"[a,=,{text}]") == one(("a", O.EQ, value))


def test_not_binds_tighter_than_and_and_and_tighter_than_or() -> None:
    assert parse("a = 1 or b = 1 and not c exists") == parse("a = 1 or (b = 1 and (not c exists))")
    assert parse("not a exists and b = 1") == parse("(not a exists) and b = 1")


# -- Meaning -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("not a = 1", "a != 1"),
        ("not a < 5", "a >= 5"),
        ("not (a > 5 or b = 1)", "a <= 5 and b != 1"),
        ("not (a > 5 and b = 1)", "a <= 5 or b != 1"),
        ("a not in (1, 2)", "a != 1 and a != 2"),
        ("a in (1, 'x')", "a = 1 or a = 'x'"),
        ("a not in (1, 2, 'x')", "a not in (1, 2) or a != 'x'"),
        ("not a in (1, true)", "a != 1 or a = false"),
        ("a not in (1, true, false)", "a != 1"),
        ("not a not in (1, 'x')", "a in ('x', 1)"),
        ("not a is number", "a is string or a is boolean"),
        ("(a = 1 or b = 1) and c = 1", "a = 1 and c = 1 or b = 1 and c = 1"),
        ("a = 1 or true", "true"),
        ("a = 1 and true", "a = 1"),
        ("a = 1 or not true", "a = 1"),
        ("a = 1 or b = 1 and b = 2", "a = 1"),
        ("a > 1 and a > 2", "a > 2"),
        ("a > 1 or a > 2", "a > 1"),
        ("a = 30.0", "a = 30"),
    ],
)
def test_filters_that_mean_the_same_are_equal(text: str, same: str) -> None:
    assert parse(text) == parse(same)


@pytest.mark.parametrize(
    ("text", "event", "matches"),
    [
        ("a != 1", {}, False),
        ("not (a = 1)", {}, False),
        ("not (a = 1)", {"a": "x"}, False),
        ("not (a = 1)", {"a": 2}, True),
        ("a is not 'x'", {}, True),
        ("a is not 'x'", {"a": 1}, True),
        ("a is not 'x'", {"a": "x"}, False),
        ("a is not 'x' and a exists", {}, False),
        ("a is not prefix 'x'", {"a": "y"}, True),
        ("a is not prefix 'x'", {"a": "xy"}, False),
        ("a not in (1, 'x')", {"a": 2}, True),
        ("a not in (1, 'x')", {"a": "1"}, True),
        ("a not in (1, 'x')", {"a": "x"}, False),
        ("a not in (1, 'x')", {"a": True}, False),
        ("a not in (1, 'x')", {}, False),
        ("a != 1", {"a": True}, False),
        ("a = 1", {"a": True}, False),
        ("a = 1", {"a": 1.0}, True),
        ("a absent", {"b": 1}, True),
        ("a absent or a != 1", {}, True),
        ("a = 9007199254740993", {"a": 2**53}, False),
        ("not a is number", {}, False),
        ("not a is number", {"a": "1"}, True),
        ("a < 'b'", {"a": 1}, False),
        ("true", {}, True),
    ],
)
def test_absent_attributes_and_other_kinds(text: str, event: Event, matches: bool) -> None:
    assert parse(text).matches(event) is matches


@given(some.expressions, st.lists(some.events, min_size=1, max_size=10))
def test_a_filter_matches_where_its_expression_is_true(expression: Expression, events: list[Event]) -> None:
    try:
        made = expand(expression)
    except EmptyFilterError:
        assert not any(oracle.truth(expression, event) for event in events)
    except FilterTooLargeError:
        assume(False)
    else:
        assert parse(spelled(expression)) == made
        assert [made.matches(event) for event in events] == [
            oracle.truth(expression, event) is True for event in events
        ]


def spelled(expression: Expression) -> str:
    """The expression as text, with more parentheses than it needs."""
    match expression:
        case Leaf(each):
            return predicate_text(each)
        case Not(part):
            return f"not ({spelled(part)})"
        case All(parts):
            return " and ".join(f"({spelled(part)})" for part in parts)
        case Any(parts):
            return " or ".join(f"({spelled(part)})" for part in parts)


# -- Errors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "position", "says"),
    [
        ("", 0, "found the end, expected the name of an attribute: write true for a filter that every event matches"),
        ("a", 1, "found the end, expected an operator"),
        ("a <", 3, "found the end, expected a value"),
        ("a = STOCK", 4, "found 'STOCK', expected a value .*: put strings in single quotes, 'STOCK'"),
        ('a = "x"', 4, "double quotes are for names"),
        ("a = 1 b = 2", 6, "found 'b', expected 'and', 'or' or the end"),
        ("a = 1 and", 9, "found the end, expected the name"),
        ("and = 1", 0, 'put an attribute of that name in double quotes, "and"'),
        ("'a' = 1", 0, "the name comes first"),
        ("(a = 1", 6, r"found the end, expected '\)', 'and' or 'or'"),
        ("a = 1)", 5, r"found '\)', expected 'and', 'or' or the end"),
        ("[a,=,1] and b = 1", 8, "found 'and', expected ',' or the end"),
        ("b = 1 and [a,=,1]", 10, "use one spelling for the whole filter"),
        ("[a,=]", 4, r"found '\]', expected ','"),
        ("[a =,1]", 3, "found '=', expected ','"),
        ("[a,=,1", 6, r"found the end, expected '\]'"),
        ("[a,=,1],", 8, r"found the end, expected '\['"),
        ("[a,exists,1]", 9, r"found ',', expected '\]'"),
        ("a in 1", 5, r"found '1', expected '\('"),
        ("a in ()", 6, "expected a value"),
        ("a in (1 2)", 8, r"expected ',' or '\)'"),
        ("a is integer", 5, "expected 'number', 'string' or 'boolean'"),
        ("a not = 1", 6, "expected 'in', 'prefix', 'suffix', 'contains', 'wildcard' or 'cidr'"),
        ("a = 'x", 4, "the quote that opens here is never closed; expected '"),
        ('"a = 1', 0, 'expected "'),
        ("a = 12x", 6, "is followed by 'x'"),
        ("a = 1..2", 6, "is followed by '.'"),
        ("a = 1__0", 5, "is followed by '_'"),
        ("a = 18446744073709551616", 4, "does not fit in 64 bits: write it with an exponent"),
        (f"a = {'9' * 5000}", 4, "does not fit in 64 bits"),
        ("a = 1e999", 4, "beyond the range of float64"),
        ("a < true", 4, "'<' takes no boolean, because booleans have no order: use '=' or '!='"),
        ("a prefix 3", 9, "'prefix' takes a string, not 3"),
        ("§ = 1", 0, "found '§', expected a name, a value or an operator"),
        ("a- = 1", 1, "found '-'"),
        ("a = '\ud800'", 5, "surrogate"),
        ('"" = 1', 0, "must not be empty"),
        ("a != *", 5, "expected a value"),
        (" \n ", 3, "found the end, .*: write true for a filter that every event matches"),
        ("a = null", 4, "write absent after the name"),
        ("a is NULL", 5, "write absent"),
        ("a is not null", 9, "write exists"),
        ("a = 1 && b = 2", 6, "found '&&', expected 'and'"),
        ("a = 1 | b = 2", 6, "found '[|]', expected 'or'"),
        ("a = 1 || b = 2", 6, "found '[|][|]', expected 'or'"),
        ("!a = 1", 0, "found '!', expected 'not'"),
        ("a like 'x'", 2, "write wildcard, with [*] for any characters"),
        ("a not like 'x'", 6, "write wildcard, with [*] for any characters"),
        ("a between 1 and 2", 2, "write two bounds: price >= 1 and price <= 5"),
        ("a starts_with 'x'", 2, "write prefix"),
        ("a endsWith 'x'", 2, "write suffix"),
        ("starts_with(a, 'x')", 11, "write prefix"),
        ("lower(a) = 'x'", 5, r"write ignorecase\(symbol\) = 'yhoo'"),
        ("a ignore case 'x'", 2, r"write ignorecase\(symbol\) = 'yhoo'"),
        ("(a = 1) (", 8, "found '[(]', expected 'and', 'or' or the end"),
        ("a int", 2, "write is number"),
        ("a is text", 5, "write is string"),
        ("[price,<]", 8, r"found '\]', expected ',' and a value: write \[name,<,value\]"),
        ("[a,=,1];;", 8, "found ';', expected the end"),
        ("a = 1;", 5, "found ';', expected 'and', 'or' or the end"),
    ],
)
def test_an_error_says_what_was_found_where_and_what_was_expected(text: str, position: int, says: str) -> None:
    with pytest.raises(FilterError, match=says) as caught:
        parse(text)
    assert (caught.value.text, caught.value.position) == (text, position)


def test_an_error_shows_the_line_with_a_caret_under_the_position() -> None:
    with pytest.raises(FilterError) as caught:
        parse("a = 1 or\n  b = = 2")
    assert str(caught.value).splitlines() == [
        "line 2, column 7: found '=', expected a value ('text', a number, true or false)",
        "      b = = 2",
        "          ^",
    ]
    assert caught.value.expected == ("a value ('text', a number, true or false)",)


def test_an_error_shows_only_the_part_of_a_long_line_around_the_position() -> None:
    with pytest.raises(FilterError) as caught:
        parse(" and ".join(["a = 1"] * 100) + " or or")
    shown, caret = str(caught.value).splitlines()[1:]
    assert len(shown) < 120
    assert shown[caret.index("^") :].startswith("or")


# -- Any text at all -------------------------------------------------------------------------------------------


@given(st.text(max_size=60))
def test_no_text_raises_anything_but_a_filter_error(text: str) -> None:
    try:
        parse(text)
    except FilterError as error:
        assert str(error)  # noqa: PT017  # not every text raises


@pytest.mark.parametrize("text", [None, 5, b"a = 1", ["a = 1"]])
def test_anything_but_text_is_rejected(text: str) -> None:
    with pytest.raises(FilterError, match="a text is needed"):
        parse(text)


def test_a_short_fuzz() -> None:
    budget = iter(range(1500))
    report = fuzz(seed=5, go_on=lambda: next(budget, None) is not None)
    assert report.failures == []
    assert report.texts == 1500
    assert min(report.accepted, report.refused, report.events) > 10


@pytest.mark.parametrize(
    ("text", "position", "says"),
    [
        ("a is not true", 9, "'is not' takes a string or a number, not a boolean"),
        ("a is not number", 9, "put 'not' before the name"),
        ("a is not in ('x')", 9, "put 'not' before the name"),
        ("a is not prefix ''", 16, "'is not prefix' takes a text that is not empty"),
        ("[a,str-eq,5]", 10, "'str-eq' takes a string, not 5: put the text in single quotes"),
        ("a Str-Lt true", 9, "'Str-Lt' takes a string, not true"),
        ("[a,str-eq,*]", 10, r"found '\*', expected a value"),
        ("a str-gt b", 9, "put strings in single quotes"),
    ],
)
def test_operators_that_take_only_strings_say_so(text: str, position: int, says: str) -> None:
    with pytest.raises(FilterError, match=says) as caught:
        parse(text)
    assert caught.value.position == position


def test_text_given_to_the_constructor_is_refused_with_the_name_of_the_parser() -> None:
    with pytest.raises(FilterError, match=r"Filter\(\) takes conjunctions, not str.*shoal.filters.parse"):
        Filter("price > 10")  # type: ignore[arg-type]
