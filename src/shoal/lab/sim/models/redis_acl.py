"""Access rights of the model of Redis: users, passwords, rules for commands, keys and channels, selectors.

Owns: what an ACL line means and whether a user may run a command. Never touches: connections.

Modelled after Redis 7.0, for the commands of `COMMANDS` only. Left out: the rights of commands inside a script, key
rights by direction (`%R~`), hashed passwords (`#...`), `allkeys` is `~*`, first arguments (`+select|0` of commands
without subcommands).
"""

from dataclasses import dataclass, field
from typing import Final

from shoal.wire.glob import glob_match


@dataclass(frozen=True, slots=True)
class CommandSpec:
    """The properties of a command that decide whether it may run."""

    name: str
    arity: int
    """Number of arguments, the name included; negative: at least that many."""
    categories: frozenset[str]
    keys: str = ""
    """Which arguments are keys: "", "first", "second", "all", for XREAD "streams", for EVALSHA "numbered"."""
    channels: str = ""
    """Which arguments are channels: "", "first" or "all"; "patterns" are all, compared literally."""
    no_auth: bool = False
    """Allowed before authentication."""
    subscribed: bool = False
    """Allowed to a RESP2 connection that has subscriptions."""


def _spec(name: str, arity: int, categories: str, **more: str | bool) -> tuple[str, CommandSpec]:
    return name, CommandSpec(name, arity, frozenset(categories.split()), **more)  # type: ignore[arg-type]


COMMANDS: Final[dict[str, CommandSpec]] = dict(
    (
        _spec("ping", -1, "connection fast", subscribed=True),
        _spec("echo", 2, "connection fast"),
        _spec("auth", -2, "connection fast", no_auth=True),
        _spec("hello", -1, "connection fast", no_auth=True),
        _spec("quit", -1, "connection fast", no_auth=True, subscribed=True),
        _spec("subscribe", -2, "pubsub slow", channels="all", subscribed=True),
        _spec("unsubscribe", -1, "pubsub slow", subscribed=True),
        _spec("psubscribe", -2, "pubsub slow", channels="patterns", subscribed=True),
        _spec("punsubscribe", -1, "pubsub slow", subscribed=True),
        _spec("publish", 3, "pubsub fast", channels="first"),
        _spec("pubsub|channels", -2, "pubsub slow"),
        _spec("pubsub|numsub", -2, "pubsub slow"),
        _spec("pubsub|numpat", 2, "pubsub slow"),
        _spec("client|setname", 3, "connection slow"),
        _spec("client|getname", 2, "connection slow"),
        _spec("client|id", 2, "connection slow"),
        _spec("client|list", -2, "admin connection dangerous slow"),
        _spec("client|kill", -3, "admin connection dangerous slow"),
        _spec("set", -3, "string write slow", keys="first"),
        _spec("get", 2, "string read fast", keys="first"),
        _spec("del", -2, "keyspace write slow", keys="all"),
        _spec("sadd", -3, "set write fast", keys="first"),
        _spec("smembers", 2, "set read slow", keys="first"),
        _spec("scard", 2, "set read fast", keys="first"),
        _spec("zcard", 2, "sortedset read fast", keys="first"),
        _spec("unlink", -2, "keyspace write fast", keys="all"),
        _spec("xadd", -5, "stream write fast", keys="first"),
        _spec("xlen", 2, "stream read fast", keys="first"),
        _spec("xread", -4, "stream read slow blocking", keys="streams"),
        _spec("xrevrange", -4, "stream read slow", keys="first"),
        _spec("xinfo|stream", -3, "stream read slow", keys="second"),
        _spec("info", -1, "dangerous slow"),
        _spec("script|load", 3, "scripting slow"),
        _spec("evalsha", -3, "scripting slow", keys="numbered"),
    )
)
"""The commands that the model has; arities and categories as `COMMAND INFO` of Redis 7.0 gives them."""

CONTAINERS: Final = frozenset(name.partition("|")[0] for name in COMMANDS if "|" in name)
"""Commands that need a subcommand."""

# Of several selectors that all refuse, Redis reports the refusal with the greatest of these numbers.
ALLOWED, DENIED_COMMAND, DENIED_KEY, DENIED_CHANNEL = 0, 1, 2, 4


@dataclass(slots=True)
class Selector:
    """One set of rights; a command must be allowed by one selector as a whole."""

    commands: set[str] = field(default_factory=set)
    keys: list[bytes] = field(default_factory=list)
    channels: list[bytes] = field(default_factory=list)

    def apply(self, rule: str) -> None:
        """One word of an ACL line. Raises ValueError for a rule that is not modelled."""
        if rule in ("allcommands", "nocommands", "allkeys", "allchannels"):
            rule = {"allcommands": "+@all", "nocommands": "-@all", "allkeys": "~*", "allchannels": "&*"}[rule]
        if rule[0] in "+-":
            names = _commands_named(rule[1:])
            self.commands = self.commands | names if rule[0] == "+" else self.commands - names
        elif rule[0] == "~":
            self.keys.append(rule[1:].encode())
        elif rule[0] == "&":
            self.channels.append(rule[1:].encode())
        elif rule == "resetkeys":
            self.keys.clear()
        elif rule == "resetchannels":
            self.channels.clear()
        else:
            raise ValueError(f"the model does not know the ACL rule {rule!r}")

    def check(self, spec: CommandSpec, command: tuple[bytes, ...]) -> int:
        """ALLOWED or why not."""
        if not spec.no_auth and spec.name not in self.commands:
            return DENIED_COMMAND
        if spec.keys:
            keys = _keys_of(spec, command)
            if not all(any(glob_match(pattern, key) for pattern in self.keys) for key in keys):
                return DENIED_KEY
        if spec.channels and b"*" not in self.channels:
            channels = command[1:2] if spec.channels == "first" else command[1:]
            if not all(self._channel_allowed(spec, channel) for channel in channels):
                return DENIED_CHANNEL
        return ALLOWED

    def _channel_allowed(self, spec: CommandSpec, channel: bytes) -> bool:
        if spec.channels == "patterns":
            return channel in self.channels
        return any(glob_match(pattern, channel) for pattern in self.channels)


def _keys_of(spec: CommandSpec, command: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """The arguments of a command that are keys."""
    if spec.keys == "streams":
        words = [word.lower() for word in command]
        after = words.index(b"streams") + 1 if b"streams" in words else len(words)
        return command[after : after + (len(words) - after) // 2]
    if spec.keys == "numbered":
        return command[3 : 3 + int(command[2])] if command[2].isdigit() else ()
    return {"first": command[1:2], "second": command[2:3], "all": command[1:]}[spec.keys]


def _commands_named(text: str) -> set[str]:
    """The commands of a rule: one, one with all its subcommands, or a category. Commands that are not modelled are left
    out."""
    if text.startswith("@"):
        return {name for name, spec in COMMANDS.items() if text == "@all" or text[1:] in spec.categories}
    return {name for name in COMMANDS if name == text.lower() or name.partition("|")[0] == text.lower()}


class User:
    """A user from the words of an ACL line without the name: `User("on >secret ~* &tile.* +@pubsub")`."""

    __slots__ = ("enabled", "no_password", "passwords", "selectors", "unrestricted")

    def __init__(self, line: str) -> None:
        self.enabled = False
        self.no_password = False
        self.passwords: set[bytes] = set()
        self.selectors = [Selector()]
        for rule in _words(line):
            self._apply(rule)
        first = self.selectors[0]
        self.unrestricted = first.commands >= {*COMMANDS} and b"*" in first.keys and b"*" in first.channels
        """Whether the user may do everything."""

    def accepts(self, password: bytes) -> bool:
        """Whether the password is valid."""
        return self.enabled and (self.no_password or password in self.passwords)

    def check(self, spec: CommandSpec, command: tuple[bytes, ...]) -> int:
        """ALLOWED or why not."""
        worst = ALLOWED
        for selector in self.selectors:
            verdict = selector.check(spec, command)
            if verdict == ALLOWED:
                return ALLOWED
            worst = max(worst, verdict)
        return worst

    def _apply(self, rule: str) -> None:
        if rule in ("on", "off"):
            self.enabled = rule == "on"
        elif rule == "nopass":
            self.no_password = True
            self.passwords.clear()
        elif rule == "resetpass":
            self.no_password = False
            self.passwords.clear()
        elif rule[0] == ">":
            self.passwords.add(rule[1:].encode())
            self.no_password = False
        elif rule == "clearselectors":
            del self.selectors[1:]
        elif rule == "reset":
            self.__init__("")  # type: ignore[misc]
        elif rule[0] == "(":
            selector = Selector()
            for word in rule[1:-1].split():
                selector.apply(word)
            self.selectors.append(selector)
        else:
            self.selectors[0].apply(rule)


def _words(line: str) -> list[str]:
    """The rules of a line; a selector in brackets is one of them."""
    words: list[str] = []
    for word in line.split():
        if words and words[-1].startswith("(") and not words[-1].endswith(")"):
            words[-1] += " " + word
        else:
            words.append(word)
    return words
