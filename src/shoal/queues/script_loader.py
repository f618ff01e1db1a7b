"""The server-side scripts of queues: their texts, their hashes, and the rules that can be removed from them.

Owns reading the Lua files in `scripts/`. Runs nothing: `shoal.queues.store_link` sends them to a store, the simulator
and `shoal.testing` run the same texts without one.

A block between the lines `-- guard: NAME` and `-- end: NAME` enforces one rule of the protocol. A campaign that breaks
the rule runs the script without that block.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Final

from shoal.rules import ALL_RULES, Rule, Rules, rule

CLOCK_CLAMP: Final = rule("clock_clamp", "A jump of the server's clock ends no lease and makes nothing due.")
REPAIR_SEQUENCE: Final = rule(
    "repair_sequence", "A repair that is sent again is carried out once, and none after a later one."
)
PRODUCER_SEQUENCE: Final = rule("producer_sequence", "A batch that is sent again after a lost reply is stored once.")
REFUSED_SEQUENCE: Final = rule(
    "refused_sequence", "A message that was refused is not reported as accepted when its batch is sent again."
)
TURN_SEQUENCE: Final = rule("turn_sequence", "A turn that is sent again after a lost reply gets the same answer.")
MOVE_LEASE: Final = rule(
    "move_lease", "Consumers keep their keys for a full lease after the shard was opened on another store."
)
RULES: Final[tuple[Rule, ...]] = (
    CLOCK_CLAMP,
    rule("done_once", "A `done` that comes again removes no further message."),
    rule("one_owner", "A key that is held is not given to a second consumer."),
    PRODUCER_SEQUENCE,
    REFUSED_SEQUENCE,
    rule("message_ids", "A message whose id was accepted before is refused."),
    TURN_SEQUENCE,
    REPAIR_SEQUENCE,
    rule("bound", "A queue holds at most `messages_max` messages and `bytes_max` bytes."),
    rule("lease_before_takeover", "A consumer keeps its keys until its lease has ended."),
    rule("attempts_on_start", "Only a message that was started counts as an attempt."),
    rule("delayed_order", "A delayed message joins the tail of its key."),
    rule("retry_holds_key", "A key whose head failed waits for the retry, then becomes ready."),
    rule("fencing", "An operation under an old token changes nothing."),
    rule("move_seal", "Nothing in a shard changes while it is copied to another store."),
    rule("move_dedupe", "The ids of messages move with their shard."),
    MOVE_LEASE,
    rule("move_tombstone", "A store does not serve a shard that has moved away."),
)
"""The rules inside the scripts."""

PARTS: Final = {
    "put": ("common", "put"),
    "turn": ("common", "held_keys", "turn"),
    "look": ("common", "settings", "look"),
    "repair": ("common", "settings", "held_keys", "purge", "repair"),
    "admin": ("common", "settings", "held_keys", "purge", "admin"),
    "ship": ("common", "settings", "held_keys", "ship"),
}
"""The files of each script."""
_BLOCK: Final = re.compile(r"^[ ]*-- guard: (\w+)\n(.*?)^[ ]*-- end: \1\n", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Script:
    """One script as a server gets it."""

    name: str
    text: bytes
    sha: bytes
    """The SHA-1 of the text in hex, by which EVALSHA names it."""


@dataclass(frozen=True, slots=True)
class Scripts:
    """The scripts of queues."""

    put: Script
    turn: Script
    look: Script
    repair: Script
    admin: Script
    ship: Script

    def __iter__(self) -> Iterator[Script]:
        """All of them."""
        return iter((*self.of_agent, *self.of_clients))

    @property
    def of_agent(self) -> tuple[Script, ...]:
        """Those that a store's agent needs, and that change no message for a client."""
        return (self.look, self.admin, self.ship)

    @property
    def of_clients(self) -> tuple[Script, ...]:
        """Those with which clients change messages."""
        return (self.put, self.turn, self.repair)


def load_scripts(rules: Rules = ALL_RULES) -> Scripts:
    """Return the scripts, without the blocks of rules that are off."""
    texts = _texts()
    made = {name: _script(name, "".join(texts[part] for part in parts), rules) for name, parts in PARTS.items()}
    return Scripts(**made)


def guards() -> set[str]:
    """Return the names of all guarded blocks in the scripts."""
    return {found[1] for text in _texts().values() for found in _BLOCK.finditer(text)}


def _script(name: str, text: str, rules: Rules) -> Script:
    kept = _BLOCK.sub(lambda block: block[0] if Rule(block[1]) in rules else "", text).encode()
    return Script(name, kept, hashlib.sha1(kept, usedforsecurity=False).hexdigest().encode())


@cache
def _texts() -> dict[str, str]:
    folder = resources.files("shoal.queues") / "scripts"
    return {name: (folder / f"{name}.lua").read_text() for parts in PARTS.values() for name in parts}
