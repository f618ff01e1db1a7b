"""`shoal queue`: what queues hold, and what operators do with it.

Owns the commands that look at a queue or change its content. `queue_messages` has put and take, `queue_changes` what
only a leader can do: create, configure, drop; `queue_places` moves queues and gives up or recovers their stores.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import msgspec

from shoal.bus import Bus, connect
from shoal.cli.channels import add_url, cluster_url
from shoal.cli.numbers import positive_int
from shoal.cli.output import Handler, HelpFormatter, Subparsers, add_command, note, plural, result, shown, size_text
from shoal.cli.queue_changes import register_changes
from shoal.cli.queue_messages import register_messages
from shoal.cli.queue_places import register_places
from shoal.errors import ConfigError, QueueFullError, ShoalError
from shoal.queues.queue import DeadLetter, KeyStatus, Message, Queue, QueueStatistics

T = TypeVar("T")

PAGE: Final = 100
"""Dead letters that are read at a time."""
KEY_WIDTH: Final = 28
"""Columns of a key in a table."""
_EXAMPLE: Final = """shoal queue put orders '{"order": 7}' --key customer-17
shoal queue take orders --count 1
shoal queue stats orders --keys --json"""


def register(subparsers: Subparsers) -> None:
    """Add the command group."""
    parser = subparsers.add_parser(
        "queue",
        help="use and manage queues",
        description="Put messages into queues, take them, and manage queues. Every command has\n"
        "--json. docs/queues.md explains queues.",
        epilog="example:\n  " + _EXAMPLE.replace("\n", "\n  "),
        formatter_class=HelpFormatter,
        allow_abbrev=False,
    )
    group = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    register_changes(group)
    register_messages(group)
    _register_views(group)
    _register_repairs(group)
    register_places(group)


def _register_views(group: Subparsers) -> None:
    listed = add_command(group, "list", run_list, "list the queues of the cluster", example="shoal queue list --json")
    add_url(listed)
    stats = add_command(
        group,
        "stats",
        run_stats,
        "show what queues hold, and which keys are blocked",
        example="shoal queue stats\nshoal queue stats orders --keys",
        description="Show messages, keys, consumers and dead letters of queues. With --keys also each key with work: "
        "whether it waits, which consumer holds it, or why it is blocked.",
    )
    stats.add_argument("names", metavar="QUEUE", nargs="*", help="names of queues (default: all)")
    stats.add_argument(
        "--keys", action="store_true", help="show keys, blocked ones first, then those that consumers hold"
    )
    _add_count(stats, 20, "keys to show of each queue")
    add_url(stats)
    peek = _add_queue_command(
        group,
        "peek",
        run_peek,
        "show the next messages without taking them",
        "shoal queue peek orders --key customer-17",
    )
    peek.add_argument("--key", metavar="KEY", help="messages of this key (default: the first message of several keys)")
    _add_count(peek, 10, "messages to show")
    dead = _add_queue_command(
        group, "dead", run_dead, "list dead letters with their reasons", "shoal queue dead orders --count 50"
    )
    _add_count(dead, 20, "dead letters to show, the oldest first")


def _register_repairs(group: Subparsers) -> None:
    replay = _add_queue_command(
        group,
        "replay",
        run_replay,
        "put dead letters back into their queue",
        "shoal queue replay orders 17-0@q1\nshoal queue replay orders --all",
    )
    replay.add_argument("entries", metavar="ENTRY", nargs="*", help="dead letters, as `shoal queue dead` names them")
    replay.add_argument("--all", action="store_true", help="all current dead letters")
    purge = _add_queue_command(
        group,
        "purge",
        run_purge,
        "delete the messages of a queue",
        "shoal queue purge orders --yes\nshoal queue purge orders --dead --yes",
    )
    purge.add_argument("--dead", action="store_true", help="delete the dead letters instead")
    purge.add_argument("--yes", action="store_true", help="really delete them")
    _add_queue_command(group, "pause", run_pause, "stop giving out messages", "shoal queue pause orders")
    _add_queue_command(group, "resume", run_resume, "give out messages again", "shoal queue resume orders")
    release = _add_queue_command(
        group,
        "release",
        run_release,
        "let a halted key continue with its next message",
        "shoal queue release orders customer-17",
    )
    release.add_argument("key", metavar="KEY", help="a key that `shoal queue stats --keys` shows as halted")


def _add_queue_command(
    group: Subparsers, name: str, run: Handler, summary: str, example: str
) -> argparse.ArgumentParser:
    parser = add_command(group, name, run, summary, example=example)
    parser.add_argument("name", metavar="QUEUE", help="name of the queue")
    add_url(parser)
    return parser


def _add_count(parser: argparse.ArgumentParser, usual: int, what: str) -> None:
    parser.add_argument("--count", type=positive_int, default=usual, metavar="N", help=f"{what} (default {usual})")


@asynccontextmanager
async def _bus(args: argparse.Namespace) -> AsyncIterator[Bus]:
    url = cluster_url(args.url, args.settings, servers=True)
    async with connect(url, limits=args.settings.limits) as bus:
        yield bus


def _with_queue(args: argparse.Namespace, act: Callable[[Queue], Awaitable[T]]) -> T:
    """Do something with the queue of the command."""

    async def run() -> T:
        async with _bus(args) as bus:
            return await act(bus.queue(args.name))

    return asyncio.run(run())


# Views


def run_list(args: argparse.Namespace) -> int:
    """List the queues."""

    async def names() -> list[str]:
        async with _bus(args) as bus:
            return await bus.queues()

    found = asyncio.run(names())
    result(args, {"queues": found}, "\n".join(found) or "there are no queues")
    return 0


def run_stats(args: argparse.Namespace) -> int:
    """Show what queues hold. A queue that cannot be read does not hide the others."""
    shown_queues, failed = asyncio.run(_read_stats(args))
    facts = [
        {
            "queue": name,
            **msgspec.to_builtins(stats),
            **({"key_states": [_key_facts(key) for key in keys]} if args.keys else {}),
        }
        for name, stats, keys in shown_queues
    ]
    blocks = [_stats_text(name, stats, keys if args.keys else None) for name, stats, keys in shown_queues]
    blocks += [f"{name}: {error}" for name, error in failed.items()]
    result(args, {"queues": facts, "failed": failed}, "\n\n".join(blocks) or "there are no queues")
    return 1 if failed else 0


async def _read_stats(
    args: argparse.Namespace,
) -> tuple[list[tuple[str, QueueStatistics, list[KeyStatus]]], dict[str, str]]:
    found: list[tuple[str, QueueStatistics, list[KeyStatus]]] = []
    failed: dict[str, str] = {}
    async with _bus(args) as bus:
        for name in args.names or await bus.queues():
            queue = bus.queue(name)
            try:
                found.append((name, await queue.stats(), await queue.keys(args.count) if args.keys else []))
            except ShoalError as error:  # a damaged queue is a ProtocolError
                if len(args.names) == 1:
                    raise
                failed[name] = str(error)
    return found, failed


def _stats_text(name: str, stats: QueueStatistics, keys: Sequence[KeyStatus] | None) -> str:
    limits = stats.settings
    lines = [
        f"{name}{', paused' if stats.paused else ''}",
        f"  messages    {stats.messages:,} of {limits.messages_max:,}, {size_text(stats.bytes)} of "
        f"{size_text(limits.bytes_max)}; {stats.delayed:,} not due yet",
        f"  keys        {stats.keys:,} of {limits.keys_max:,}: {stats.ready:,} ready, {stats.held:,} held, "
        f"{stats.halted:,} halted",
        f"  consumers   {stats.consumers:,}, {stats.waiting_consumers:,} without work",
        f"  oldest      {stats.oldest_s:.1f} s",
        f"  dead        {stats.dead:,} of {limits.dead_max:,}",
        f"  ids         {stats.ids:,} of {limits.dedupe_ids_max:,}, kept for {limits.dedupe_s:g} s",
    ]
    if keys is not None:
        lines += _key_table(keys)
    return "\n".join(lines)


def _key_table(keys: Sequence[KeyStatus]) -> list[str]:
    if not keys:
        return ["", "  no key has messages"]
    lines = ["", f"  {'key':<{KEY_WIDTH}} {'messages':>8} {'attempts':>8}  state"]
    lines += [
        f"  {_cut(_text(key.key), KEY_WIDTH):<{KEY_WIDTH}} {key.messages:>8,} {key.attempts:>8}  {_state_text(key)}"
        for key in keys
    ]
    return lines


def _state_text(key: KeyStatus) -> str:
    if key.state == "held":
        return f"held by {_line(key.consumer[-10:])}, {key.lease_s:.0f} s"
    return {"ready": "ready", "retry": "waits for a retry", "halted": "halted: replay or release"}[key.state]


def _key_facts(key: KeyStatus) -> dict[str, Any]:
    return {**msgspec.structs.asdict(key), "key": _text(key.key)}


def run_peek(args: argparse.Namespace) -> int:
    """Show messages."""
    messages = _with_queue(args, lambda queue: queue.peek(args.key, args.count))
    lines = [f"{_cut(_text(message.key), KEY_WIDTH)}  {_line(_text(message.payload))}" for message in messages]
    facts = {"queue": args.name, "messages": [message_facts(message) for message in messages]}
    result(args, facts, "\n".join(lines) or "no message waits")
    return 0


def run_dead(args: argparse.Namespace) -> int:
    """List dead letters."""
    letters = _with_queue(args, lambda queue: queue.dead(args.count))
    facts = {"queue": args.name, "dead": [_dead_facts(letter) for letter in letters]}
    result(args, facts, "\n".join(map(_dead_text, letters)) or "there are no dead letters")
    return 0


def _dead_facts(letter: DeadLetter) -> dict[str, Any]:
    facts = {"entry": letter.entry, "reason": letter.reason, "attempts": letter.attempts, "at": letter.at}
    return {**facts, **message_facts(letter.message)}


def _dead_text(letter: DeadLetter) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(letter.at))
    key = _cut(_text(letter.message.key), KEY_WIDTH)
    return (
        f"{letter.entry}  {when}  {plural(letter.attempts, 'attempt')}  {key}\n"
        f"  reason   {_line(letter.reason) or 'none given'}\n"
        f"  payload  {_cut(_text(letter.message.payload), 68)}"
    )


def message_facts(message: Message) -> dict[str, Any]:
    """A message as the fields of a JSON object; bytes that are not UTF-8 are shown as `\\xff`."""
    facts = {
        "number": message.number,
        "key": _text(message.key),
        "id": None if message.id is None else _text(message.id),
        "payload": _text(message.payload),
        "put_at": message.put_at,
    }
    return {**facts, "attributes": message.attributes} if message.attributes else facts


# Repairs


def run_replay(args: argparse.Namespace) -> int:
    """Put dead letters back."""
    if args.entries and args.all:
        raise ConfigError("names of dead letters were given, and --all", do="give either")
    if not args.entries and not args.all:
        raise ConfigError("nothing says which dead letters to replay", do="give their names, or --all")
    replayed, missing, full = _with_queue(args, lambda queue: _replay(queue, None if args.all else args.entries))
    text = f"{plural(replayed, 'message')} put back into {args.name}"
    if missing:
        text += f"; no dead letter has the name {', '.join(missing)}"
    facts: dict[str, Any] = {"queue": args.name, "replayed": replayed, "missing": missing}
    if full is not None:
        facts["error"] = str(full)
        note(f"shoal: {full}")
    result(args, facts, text)
    return 1 if missing or full is not None else 0


async def _replay(queue: Queue, entries: Sequence[str] | None) -> tuple[int, list[str], QueueFullError | None]:
    """The number of messages that were put back, the names that no dead letter has, and why it ended early."""
    if entries is None:
        entries = [letter.entry async for letter in _dead_letters(queue)]
    replayed, missing = 0, list[str]()
    for entry in entries:
        try:
            found = await queue.replay(entry)
        except QueueFullError as full:
            return replayed, missing, full
        replayed += found
        if not found:
            missing.append(entry)
    return replayed, missing, None


async def _dead_letters(queue: Queue) -> AsyncIterator[DeadLetter]:
    after = ""
    while page := await queue.dead(PAGE, after):
        for letter in page:
            yield letter
        after = page[-1].entry


def run_purge(args: argparse.Namespace) -> int:
    """Delete messages or dead letters."""
    what = "dead letter" if args.dead else "message"
    confirm(args, f"this deletes the {what}s of queue {args.name}")
    count = _with_queue(args, _forget_all if args.dead else lambda queue: queue.purge())
    result(args, {"queue": args.name, "deleted": count, "dead": args.dead}, f"{plural(count, what)} deleted")
    return 0


async def _forget_all(queue: Queue) -> int:
    total, after = 0, ""
    while page := await queue.dead(PAGE, after):
        total += await queue.forget(*(letter.entry for letter in page))
        after = page[-1].entry  # entries that no script has written stay
    return total


def confirm(args: argparse.Namespace, what: str) -> None:
    """Raise an error unless --yes was given."""
    if not args.yes:
        raise ConfigError(what, do="repeat the command with --yes")


def run_pause(args: argparse.Namespace) -> int:
    """Stop giving out messages."""
    _with_queue(args, lambda queue: queue.pause())
    result(args, {"queue": args.name, "paused": True}, f"{args.name} is paused; consumers finish what they hold")
    return 0


def run_resume(args: argparse.Namespace) -> int:
    """Give out messages again."""
    _with_queue(args, lambda queue: queue.resume())
    result(args, {"queue": args.name, "paused": False}, f"{args.name} gives out messages")
    return 0


def run_release(args: argparse.Namespace) -> int:
    """Let a halted key continue."""
    released = _with_queue(args, lambda queue: queue.release(args.key))
    text = f"key {args.key} continues with its next message" if released else f"key {args.key} is not halted"
    result(args, {"queue": args.name, "key": args.key, "released": released}, text)
    return 0 if released else 1


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


def _line(text: str) -> str:
    """A text in one line. What applications and clients have stored must not control the operator's terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in shown(text))


def _cut(text: str, width: int) -> str:
    """A text in one line of at most this width."""
    line = _line(text)
    return line if len(line) <= width else line[: width - 3] + "..."
