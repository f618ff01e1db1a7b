"""Events: maps of attributes, checked once where they come in, and their form on the wire.

Owns which mappings are events, their canonical form, the papers' spelling of an event, and its MessagePack form (a
plain map of names to values, as the envelope carries it). `event_batches` has the columns for many events. Never
touches filters.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from math import isfinite
from typing import Any, Final, TypeAlias

import msgspec

from shoal.errors import EventError, FilterError
from shoal.filters.arrays import ARRAY_TYPES, combinations_of
from shoal.filters.reader import TokenReader
from shoal.filters.values import (
    INTEGER_MAX,
    INTEGER_MIN,
    Event,
    Value,
    canonical,
    canonical_number,
    native,
    problem_of,
    problem_of_name,
)
from shoal.limits import DEFAULT_LIMITS, Limits

_NO_LIMITS: Final = Limits(attributes_max=sys.maxsize, attribute_name_bytes_max=sys.maxsize)
_encoder: Final = msgspec.msgpack.Encoder()
_Single: TypeAlias = str | int | float | bool | None
_decoder: Final = msgspec.msgpack.Decoder(dict[str, _Single | list[_Single]])
_Element: TypeAlias = str | int | float | bool
_matched_decoder: Final = msgspec.msgpack.Decoder(dict[str, _Element | list[_Element]])


def check_event(attributes: Event, limits: Limits = DEFAULT_LIMITS) -> dict[str, Any]:
    """A mapping as an event: canonical values, and no attribute whose value is None.

    Raises EventError for invalid names and values, and above `attributes_max` and `attributes_bytes_max`.
    """
    event = _checked(attributes, limits)
    _encoded(event, limits)
    return event


def encode_event(attributes: Event, limits: Limits = DEFAULT_LIMITS) -> bytes:
    """A mapping, checked, as MessagePack."""
    return _encoded(_checked(attributes, limits), limits)


def decode_any_event(data: bytes) -> Event:
    """The event in some MessagePack, of any size."""
    try:
        return _checked(_decoder.decode(data), _NO_LIMITS)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EventError(f"the bytes are not an event in MessagePack ({error})") from error


def decode_matched_event(data: bytes) -> Event:
    """An event that a matcher has read. Its emitter has checked it, so names and values are not looked at one by one
    again: that would take ten times as long."""
    try:
        return _matched_decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):  # an emitter that is not ours has left it in another form
        return decode_any_event(data)


def decode_event(data: bytes, limits: Limits = DEFAULT_LIMITS) -> dict[str, Any]:
    """The event in some MessagePack, checked like `check_event`."""
    if not isinstance(data, bytes | bytearray | memoryview):
        raise EventError(f"bytes are needed to decode an event, not something of type {type(data).__name__}")
    if len(data) > limits.attributes_bytes_max:
        raise attributes_too_large(len(data), limits)
    try:
        attributes = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EventError(f"the bytes are not an event in MessagePack ({error})") from error
    return _checked(attributes, limits)


def parse_event(text: str, limits: Limits = DEFAULT_LIMITS) -> dict[str, Any]:
    """The event in the papers' spelling: `[class,'STOCK'],[volume,10]`, perhaps with a `;` at the end. Empty text is
    the event without attributes.

    Raises EventError with the position of the mistake.
    """
    event: dict[str, Any] = {}
    try:
        reader = TokenReader(text, limits)
        while not reader.at_end() and not (event and reader.next_is(";")):
            if event:
                reader.expect(",")
            position = reader.position
            name, value = reader.pair()
            if name in event:
                raise FilterError(f"attribute {name!r} is given twice", text=text, position=position)
            event[name] = value
        reader.close()
    except FilterError as error:
        raise EventError(str(error)) from error
    return check_event(event, limits)


def plain_event(attributes: Event) -> dict[str, Any]:
    """A mapping as an event of any size. Raises EventError for invalid names and values, and for anything but a
    mapping."""
    return _checked(attributes, _NO_LIMITS)


def _checked(attributes: Event, limits: Limits) -> dict[str, Any]:
    if type(attributes) is not dict and not isinstance(attributes, Mapping):
        raise EventError(f"an event is a mapping of names to values, not something of type {type(attributes).__name__}")
    event: dict[str, Any] = {}
    has_array, name_max = False, limits.attribute_name_bytes_max
    for name, value in attributes.items():
        # Nearly all names and values are recognized without a call: emitters check every event.
        if type(name) is not str or not name.isascii() or not 0 < len(name) <= name_max:
            if problem := problem_of_name(name, limits):
                raise EventError(problem)
            name = str.__str__(name)
        kind = type(value)
        if (kind is int and INTEGER_MIN <= value <= INTEGER_MAX) or (kind is str and value.isascii()) or kind is bool:
            event[name] = value
        elif kind is float and isfinite(value):
            event[name] = canonical_number(value)
        elif isinstance(value, ARRAY_TYPES):
            has_array = True
            elements = [_element(name, each, " has an element that") for each in value if each is not None]
            if elements:
                event[name] = elements
        elif value is not None:
            event[name] = _element(name, value)
    if len(event) > limits.attributes_max:
        raise EventError(
            f"an event has at most attributes_max={limits.attributes_max} attributes, this one has {len(event)}"
        )
    if has_array and combinations_of(event) > limits.array_combinations_max:
        raise EventError(
            f"the arrays of an event have {combinations_of(event)} combinations of elements, "
            f"more than array_combinations_max={limits.array_combinations_max}",
            do="emit several events",
        )
    return event


def _element(name: str, value: Value, which: str = "") -> Value:
    if problem_of(value):
        value = native(value)
        if problem := problem_of(value):
            raise EventError(f"attribute {name!r}{which} {problem}")
    return canonical(value)


def _encoded(event: Event, limits: Limits) -> bytes:
    data = _encoder.encode(event)
    if len(data) > limits.attributes_bytes_max:
        raise attributes_too_large(len(data), limits)
    return data


def attributes_too_large(size: int, limits: Limits) -> EventError:
    """The error for attributes above `attributes_bytes_max`."""
    return EventError(f"attributes take {size} bytes, more than attributes_bytes_max={limits.attributes_bytes_max}")
