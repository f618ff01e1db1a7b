"""The operators of one process in one instance of an engine: a matcher, an exit point, both or none.

Owns how they are linked: inside a process by function calls, between processes by messages. Without I/O: `links` and
`flush` are the outputs.
"""

from __future__ import annotations

from shoal.engine.configuration import Configuration
from shoal.engine.exit_point import ExitPoint, Post
from shoal.engine.links import Batch, Changes, Events, Part, ToMember
from shoal.engine.matcher import Matcher
from shoal.engine.measures import MATCHING, MERGING, Meter
from shoal.limits import Limits
from shoal.rules import ALL_RULES, Rules


class Operators:
    """What runs in the process `name`. `following` is the configuration to which the engine changes, if it does."""

    def __init__(
        self,
        name: str,
        instance: int,
        configuration: Configuration,
        limits: Limits,
        rules: Rules = ALL_RULES,
        following: Configuration | None = None,
        meter: Meter | None = None,
    ) -> None:
        self.name = name
        self.meter = meter or Meter()
        self.instance = instance
        self._limits = limits
        self._rules = rules
        self.matcher: Matcher | None = None
        self.exit_point: ExitPoint | None = None
        if name in configuration.exits:
            self.exit_point = ExitPoint(name, configuration, limits, rules)
        self.arrange(configuration, following)
        self._next = 0
        """The number of the next batch; 0 until one was heard."""
        self._hole = ""
        self.links: list[tuple[str, ToMember]] = []
        """What goes to other processes."""

    def arrange(self, configuration: Configuration, following: Configuration | None) -> None:
        """Begins or ends a matcher, as the configurations say."""
        wanted = self.name in configuration.matchers or (following is not None and self.name in following.matchers)
        if not wanted:
            self.matcher = None
        elif self.matcher is None:
            self.matcher = Matcher(self.name, self.instance, configuration, self._limits, self._rules)

    @property
    def failed(self) -> str:
        """Why this process cannot go on with this instance."""
        return self._hole or ("" if self.matcher is None else self.matcher.failed)

    @property
    def ready(self) -> int:
        """The newest configuration whose filters are here."""
        return 0 if self.matcher is None else self.matcher.ready

    @property
    def is_busy(self) -> bool:
        """Whether there is more to do than to wait for messages."""
        return self.matcher is not None and self.matcher.is_busy

    def heard(self, batch: Batch) -> None:
        """The next batch of the fan."""
        if self._next and batch.number != self._next:
            self._hole = f"batch {batch.number} came in place of {self._next}"
        self._next = batch.number + 1
        if self.exit_point is not None:
            self.exit_point.heard(batch)
        if self.matcher is not None:
            self.matcher.heard(batch)
            self._route()
            self._count(batch)
            self.meter.lap(MATCHING)

    def _count(self, batch: Batch) -> None:
        body = batch.body
        if type(body) is Events:
            self.meter.matched += len(body.events)
        elif type(body) is Changes:
            self.meter.changed += sum(len(change.added) + len(change.removed) for change in body.changes)

    def received(self, message: ToMember) -> None:
        """A message of another process, or of the matcher here."""
        if isinstance(message, Part):
            if self.exit_point is not None:
                self.exit_point.received(message)
        elif self.matcher is not None:
            self.matcher.received(message)
            self._route()

    def missed(self, what: str) -> None:
        """A part of what this process was told is lost."""
        self._hole = what

    def work(self) -> None:
        """Does a slice of the work that takes long, and delivers what is complete."""
        if self.matcher is not None and self.matcher.is_busy:
            self.matcher.work()
            self.meter.lap(MATCHING)
        if self.matcher is not None:
            self._route()
        if self.exit_point is not None:
            before = self.exit_point.deliveries
            self.exit_point.join()
            self.meter.delivered += self.exit_point.deliveries - before

    def _route(self) -> None:
        assert self.matcher is not None
        out, self.matcher.out = self.matcher.out, []
        for name, message in out:
            if name == self.name and self.exit_point is not None:
                assert isinstance(message, Part), "a matcher sends itself no state"
                self.exit_point.received(message)
            else:
                self.links.append((name, message))

    def flush(self) -> list[Post]:
        """The letters that go now."""
        if self.exit_point is None:
            return []
        posts = self.exit_point.flush()
        self.meter.lap(MERGING)
        return posts

    def settled(self) -> int:
        """The batch up to which everything is delivered; 0 if that is unchanged."""
        return 0 if self.exit_point is None else self.exit_point.settled()
