"""The state tables: no dead ends, no unreachable rooms, and the code takes exactly the events that the tables name."""

from __future__ import annotations

import ast
from collections import defaultdict
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from shoal.channels import states

SOURCE = Path(states.__file__).parent

MACHINES: dict[str, tuple[type[Enum], Any, Enum, set[Enum]]] = {
    "link": (states.LinkState, states.LINK, states.LinkState.DOWN, set()),
    "site": (states.SiteState, states.SITE, states.SiteState.WAITING, {states.SiteState.LEFT}),
    "lane": (states.LaneState, states.LANE, states.LaneState.WAITING, {states.LaneState.DROPPED}),
    "agent": (states.AgentState, states.AGENT, states.AgentState.AWAY, set()),
    "record": (states.RecordState, states.RECORD, states.RecordState.READING, {states.RecordState.CLOSED}),
}
"""For each machine: its states, its table, where it begins, where it ends."""

RECEIVERS = {"link": "link", "site": "site", "lane": "lane", "_step": "agent", "_serve": "agent", "self": "record"}
"""By what name code that takes a step calls the machine: `link.step(...)`, `self._step(...)`."""

machines = pytest.mark.parametrize("name", list(MACHINES))


@machines
def test_every_state_can_be_reached(name: str) -> None:
    kind, table, begin, _ = MACHINES[name]
    reached, frontier = {begin}, [begin]
    while frontier:
        here = frontier.pop()
        for (source, _), target in table.items():
            if source is here and target not in reached:
                reached.add(target)
                frontier.append(target)
    assert reached == set(kind)


@machines
def test_every_state_but_the_last_can_be_left(name: str) -> None:
    kind, table, _, ends = MACHINES[name]
    left = {source for (source, _), target in table.items() if target is not source}
    assert left == set(kind) - ends


@machines
def test_nothing_comes_after_the_end(name: str) -> None:
    _, table, _, ends = MACHINES[name]
    assert not {source for source, _ in table} & ends


def test_a_connection_can_be_lost_in_every_state() -> None:
    for state in states.LinkState:
        if state is not states.LinkState.DOWN:
            assert states.LINK[state, "lost"] is states.LinkState.DOWN


def test_an_event_that_the_table_does_not_know_is_our_own_bug() -> None:
    with pytest.raises(AssertionError, match="LaneState dropped cannot take 'answered'"):
        states.step(states.LANE, states.LaneState.DROPPED, "answered")


def events_in_code() -> dict[str, set[str]]:
    """The events that the code takes, by machine: the literals in calls of `step` and its kin."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            owner = node.func.value
            names = [node.func.attr, owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")]
            if node.func.attr not in ("step", "_step", "_serve"):
                continue
            machine = next((RECEIVERS[name] for name in names if name in RECEIVERS), None)
            for argument in node.args:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    assert machine is not None, f"{path.name}:{node.lineno} steps a machine without a table"
                    found[machine].add(argument.value)
    return found


@machines
def test_tables_and_code_know_the_same_events(name: str) -> None:
    in_table = {event for _, event in MACHINES[name][1]}
    assert events_in_code()[name] == in_table


def test_states_change_by_steps_only() -> None:
    """An assignment past the table is a transition that no diagram shows."""
    past_the_table = []
    for path in SOURCE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
            if function.name in ("__init__", "step", "_step"):
                continue
            past_the_table += [
                f"{path.name}:{node.lineno}"
                for node in ast.walk(function)
                if isinstance(node, ast.Assign)
                for target in node.targets
                if isinstance(target, ast.Attribute) and target.attr == "state"
            ]
    assert past_the_table == []
