"""`shoal soak redis`: redis-py's client and ours end their calls in the same way. How long they take is not judged."""

from __future__ import annotations

import pytest
from tests.support.command import run_command, run_json_command

from shoal.lab.soak.redis_round import FORGOTTEN, Call, Ending


async def test_our_client_behaves_as_redis_pys(capsys: pytest.CaptureFixture[str]) -> None:
    status, facts = await run_json_command(capsys, "soak", "redis")
    assert facts["deadline_differences"] == 0, facts["differences"]
    assert facts["leaked"] == 0, f"of {FORGOTTEN}"
    assert status == 0
    endings = {(call["phase"], call["name"]): call["endings"]["shoal"] for call in facts["calls"]}
    assert endings["frozen", "listen"] == "waits"
    assert endings["frozen", "publish"] == "gone"
    assert endings["dead", "listen"] == "gone"
    assert endings["dead", "close"] == "nothing"
    assert endings["returned", "publish"] == "value"


def test_a_call_differs_if_it_ends_in_another_way() -> None:
    seconds = {"redis-py": 1.0, "shoal": 2.0}
    assert not Call("dead", "publish", {"redis-py": Ending.GONE, "shoal": Ending.GONE}, seconds).differs
    waits = Call("dead", "publish", {"redis-py": Ending.GONE, "shoal": Ending.WAITS}, seconds)
    assert waits.differs
    assert str(waits) == "dead publish: redis-py: gone after 1.0 s, shoal: waits after 2.0 s"


async def test_options_of_other_soaks_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, errors = await run_command(capsys, "soak", "redis", "--servers", "3")
    assert status == 1
    assert "--servers" in errors
