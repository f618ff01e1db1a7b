"""The scripts of queues as a server gets them, and the rules that can be removed from them."""

from __future__ import annotations

import hashlib

import pytest

from shoal.queues.script_loader import RULES, guards, load_scripts
from shoal.rules import without


def test_every_guarded_block_is_a_declared_rule_and_every_rule_has_a_block() -> None:
    assert guards() == set(RULES)


@pytest.mark.parametrize("name", RULES)
def test_a_broken_rule_removes_its_block_and_nothing_else(name: str) -> None:
    whole, broken = load_scripts(), load_scripts(without(name))
    differ = [(one, other) for one, other in zip(whole, broken, strict=True) if one != other]
    assert differ
    for one, other in differ:
        kept = set(other.text.splitlines())
        assert kept < set(one.text.splitlines())
        assert b"-- guard: %b\n" % name.encode() not in other.text
        assert one.text.count(b"-- guard: ") > other.text.count(b"-- guard: ")


def test_a_script_is_named_by_its_hash() -> None:
    for script in load_scripts():
        assert script.sha.decode() == hashlib.sha1(script.text).hexdigest()
