"""Views: what a filter can ask of a string besides the string itself.

Owns the two views of an attribute, how each is computed, and the names under which constraints on views are held. Never
touches predicates or text.

    ignorecase(a)   the string with every character folded; operators on it ignore case
    cidr            the string as an address of IPv4 or IPv6, in bits; a network is a prefix of its addresses

A constraint on a view is held like one on an attribute of its own, whose name is that of the attribute and a mark.
Marks are noncharacters, which Unicode reserves for such use, and no attribute has a name that ends in one. A view is a
string, or absent: where the attribute is absent, is not a string, or is no address.

Folding is Unicode's simple case folding (C + S of CaseFolding.txt, by the Unicode version of this Python): character by
character, so `ß` folds to itself and not to `ss`, and the same in all languages. Addresses are read as `ipaddress`
reads them: no leading zeros in IPv4, no zone in IPv6. IPv4 and IPv6 are two families: `::ffff:10.0.0.1` is an address
of IPv6.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

from shoal.errors import FilterError
from shoal.filters.arrays import ARRAY_TYPES
from shoal.filters.values import MARKS, Event

FOLDED: Final = MARKS[0]
"""The mark of `ignorecase`."""
ADDRESS: Final = MARKS[1]
"""The mark of an address."""
IPV4_BITS: Final = 32
IPV6_BITS: Final = 128
_CASED_MAX: Final = 0x20000
"""No code point from here on has case."""
_BLOCK: Final = 256
_FAMILIES: Final = {4: "0", 6: "1"}
"""The first bit of an address."""


def base_of(name: str) -> str:
    """The attribute that a name belongs to, with a mark or without."""
    return name[:-1] if name.endswith(MARKS) else name


def value_of(event: Event, name: str) -> Any:
    """The view with this name of an event's attribute; None if it is absent, the array itself if it is one."""
    value = event.get(name[:-1])
    if isinstance(value, ARRAY_TYPES):
        return value
    return VIEWS[name[-1]](value) if isinstance(value, str) else None


@cache
def folds() -> Mapping[int, int]:
    """The characters that fold to another one, by code point."""
    changed = (
        code for block in range(0, _CASED_MAX, _BLOCK) if _has_case(block) for code in range(block, block + _BLOCK)
    )
    return {code: to for code in changed if (to := ord(_folded(chr(code)))) != code}


def _has_case(block: int) -> bool:
    """Whether any of these characters folds. Most blocks have none, and to look at all characters takes long."""
    text = "".join(map(chr, range(block, block + _BLOCK)))
    return not text == text.casefold() == text.lower()


def fold(text: str) -> str:
    """A string with every character folded."""
    return text.lower() if text.isascii() else text.translate(folds())


def _folded(character: str) -> str:
    for folded in (character.casefold(), character.lower()):
        if len(folded) == 1:
            return folded
    return character


def address_bits(text: str) -> str | None:
    """An address as a family bit and its bits; None if the string is not an address."""
    if "%" in text:
        return None
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return f"{_FAMILIES[address.version]}{int(address):0{address.max_prefixlen}b}"


def network_bits(text: str) -> str:
    """What the bits of all addresses of a network begin with. FilterError if the string is not a network."""
    try:
        if "%" in text:
            raise ValueError(f"{text!r} has a zone")
        network = ipaddress.ip_network(text)
    except ValueError as error:
        raise FilterError(f"this is not a network ({error})", do="write '10.0.0.0/8' or '2001:db8::/32'") from error
    bits = f"{int(network.network_address):0{network.max_prefixlen}b}"
    return _FAMILIES[network.version] + bits[: network.prefixlen]


def network_text(bits: str) -> str:
    """The network whose addresses begin with these bits."""
    is_ipv4 = bits[0] == _FAMILIES[4]
    width = IPV4_BITS if is_ipv4 else IPV6_BITS
    number = int(bits[1:].ljust(width, "0"), 2)
    return f"{ipaddress.IPv4Address(number) if is_ipv4 else ipaddress.IPv6Address(number)}/{len(bits) - 1}"


VIEWS: Final[Mapping[str, Callable[[str], str | None]]] = {FOLDED: fold, ADDRESS: address_bits}
"""How views are computed, by their marks."""
