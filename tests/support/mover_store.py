"""The coordinator as the mover sees it, without one: for tests of the mover's core."""

from __future__ import annotations

from msgspec.structs import replace

from shoal.coordination.interface import Versioned
from shoal.limits import Limits
from shoal.plan.conductor import Conductor, ConductorView, DropRequest, PutEntry
from shoal.plan.entry import Entry, Phase
from shoal.plan.move_request import ChannelReport, MoveReport, MoveRequest, encode_request
from shoal.plan.placement import Mode, Placement
from shoal.plan.ring import Ring, ServerAddress
from shoal.plan.signature import Signer, Verifier
from shoal.plan.steps import ChannelSteps
from shoal.rules import Rules

PREPARE_S = 10.0
WIDEN_S = 2.0
LIMITS = Limits(prepare_timeout_s=PREPARE_S, widen_timeout_s=WIDEN_S)
SIGNER = Signer(Signer.generate())
VERIFIER = Verifier(SIGNER.public)
SERVERS = ("s1", "s2", "s3", "s4")
CHANNEL = b"tile"
WELL = ChannelReport(revision=0, handed=0, behind=0, here=0, streams=0, spoken=True)


def ring_of(version: int, *ids: str) -> Ring:
    return Ring(version, tuple(ServerAddress(id, "127.0.0.1", 7000 + number) for number, id in enumerate(ids)))


def place(version: int, *servers: str, mode: Mode = Mode.SINGLE) -> Placement:
    return Placement(version, mode, servers)


def bare(entry: Entry | None) -> Entry:
    """An entry without the revision at which its phase began, which must be its own."""
    assert entry is not None
    assert entry.since == entry.newness
    return replace(entry, since=0)


def mover(rules: Rules | None = None) -> Conductor[Entry, Ring, MoveReport, MoveRequest]:
    """A conductor of channels."""
    return Conductor(ChannelSteps(LIMITS) if rules is None else ChannelSteps(LIMITS, rules), SIGNER)


class Store:
    """The coordinator as the mover sees it: a ring, entries, requests and reports under versions."""

    def __init__(self, ring: Ring | None = None, rules: Rules | None = None) -> None:
        self.ring = ring_of(3, *SERVERS) if ring is None else ring
        self.mover = mover(rules)
        self.now = 100.0
        self.version = 0
        self.entries: dict[bytes, Versioned] = {}
        self.requests: dict[bytes, Versioned] = {}
        self.reports: dict[str, MoveReport] = {}
        self.leaving: set[str] = set()
        self.written: list[Entry] = []
        self.dropped: list[str] = []
        self.given_up: list[str] = []

    @property
    def home(self) -> str:
        return self.ring.home(CHANNEL)

    @property
    def others(self) -> tuple[str, ...]:
        """The servers that are not the channel's home."""
        return tuple(server for server in self.ring.ids if server != self.home)

    def entry(self, channel: bytes = CHANNEL) -> Entry:
        return VERIFIER.entry(self.entries[channel].value)

    def put(self, entry: Entry) -> None:
        self.version += 1
        self.entries[entry.unit] = Versioned(SIGNER.line(entry), self.version)

    def ask(self, *servers: str, mode: Mode = Mode.SINGLE, eager: bool = False, channel: bytes = CHANNEL) -> None:
        self.version += 1
        request = MoveRequest(channel, servers, mode, eager, f"request-{self.version}")
        self.requests[channel] = Versioned(encode_request(request), self.version)

    def say(self, servers: str, channel: bytes = CHANNEL, **facts: int) -> None:
        """The agents of these servers report the entry that there is, with these facts."""
        for server in servers.split():
            said = replace(WELL, **{"revision": self.entry(channel).newness, **facts})
            channels = {**self.reports[server].channels} if server in self.reports else {}
            self.reports[server] = MoveReport(server, 1, {**channels, channel: said})

    def all_well(self, channel: bytes = CHANNEL) -> None:
        """All agents report that everything is done that the entry asks for."""
        self.say(" ".join(self.ring.ids), channel, handed=self.entry(channel).newness)

    def look(self, seconds: float = 0.1) -> Entry | None:
        """Lets time pass, looks, writes what is asked; returns the channel's new entry, if any."""
        self.now += seconds
        new = None
        view = ConductorView(self.ring, self.entries, self.requests, self.reports, self.leaving)
        for write in self.mover.observe(view, self.now):
            match write:
                case PutEntry():
                    stored = self.entries.get(write.unit)
                    assert write.expect == (stored.version if stored else 0)
                    assert VERIFIER.entry(write.data) == write.entry
                    self.put(write.entry)
                    self.written.append(write.entry)
                    if write.given_up is not None:
                        self.given_up.append(write.given_up)
                    new = write.entry
                case DropRequest():
                    assert write.expect == self.requests.pop(write.unit).version
                    self.dropped.append(write.reason)
        return new

    def run(self, looks: int = 20) -> list[Phase]:
        """Looks with agents that do everything at once; returns the phases that followed."""
        phases = []
        for _ in range(looks):
            if (entry := self.look()) is not None:
                phases.append(entry.phase)
            for channel in self.entries:
                self.all_well(channel)
        return phases

    def until(self, phase: Phase) -> Entry:
        """Goes on with willing agents until the channel's move is in a phase of which nothing is reported yet."""
        for _ in range(20):
            entry = self.look()
            if entry is not None and entry.phase is phase:
                assert self.look() is None
                return entry
            self.all_well()
        raise AssertionError(f"{phase} was not reached")
