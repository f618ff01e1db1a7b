"""The suite itself: one failure that cannot be shown well does not end the run."""

from __future__ import annotations

import pytest
from tests.conftest import pytest_runtest_makereport


def test_a_failure_is_reported_although_its_source_could_not_be_parsed(request: pytest.FixtureRequest) -> None:
    def fail() -> None:
        raise ValueError("the failure")

    call = pytest.CallInfo.from_call(fail, "call")
    reporting = pytest_runtest_makereport(request.node, call)
    next(reporting)
    with pytest.raises(StopIteration) as stop:
        reporting.throw(SystemError("AST constructor recursion depth mismatch (before=74, after=75)"))
    report = stop.value.value
    assert report.outcome == "failed"
    assert "the failure" in report.longreprtext
