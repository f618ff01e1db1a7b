"""Metrics of jobs: each batch of a query counts once, and the lag is that of the last one."""

from __future__ import annotations

import socket
import urllib.request
from argparse import Namespace
from typing import Any

import pytest

from shoal.cli.pipeline import metrics_page
from shoal.errors import ConfigError
from shoal.metrics import REGISTRY
from shoal.pipeline.job_metrics import JobMetrics


class Query:
    """What `JobMetrics` uses of a streaming query."""

    def __init__(self) -> None:
        self.recentProgress: list[dict[str, Any]] = []

    @property
    def lastProgress(self) -> dict[str, Any] | None:  # noqa: N802
        return self.recentProgress[-1] if self.recentProgress else None

    def batch(self, number: int, rows: int, read: int, newest: int) -> None:
        """One more batch; entries `read` to `newest` are left, a second apart."""
        end, latest = ({"s1": {"telemetry": f"{at}000-0/{at}"}} for at in (read, newest))
        source = {"endOffset": end, "latestOffset": latest}
        made = {"batchId": number, "numInputRows": rows, "durationMs": {"triggerExecution": 2000}, "sources": [source]}
        self.recentProgress.append(made)


def value(name: str, job: str) -> float | None:
    return REGISTRY.get_sample_value(name, {"job": job})


def figures(job: str) -> tuple[float | None, ...]:
    names = ("rows_total", "batch_seconds_count", "batch_seconds_sum", "behind_entries", "behind_seconds")
    return tuple(value(f"shoal_pipeline_{name}", job) for name in names)


def test_each_batch_counts_once_and_the_lag_is_that_of_the_last() -> None:
    query: Any = Query()
    metrics = JobMetrics("a test")
    metrics.follow(query)
    assert figures("a test") == (0, 0, 0, 0, 0)
    query.batch(0, 10, read=10, newest=40)
    query.batch(1, 10, read=20, newest=40)
    for _ in range(3):
        metrics.follow(query)
    assert figures("a test") == (20, 2, 4, 20, 20)
    for number in (2, 3):  # both since the last look
        query.batch(number, 10, read=10 + number * 10, newest=40)
    metrics.follow(query)
    assert figures("a test") == (40, 4, 8, 0, 0)
    query.batch(4, 0, read=40, newest=45)  # Spark tells of an idle query too
    metrics.follow(query)
    assert figures("a test") == (40, 4, 8, 5, 5)


def test_the_page_has_them() -> None:
    JobMetrics("a page").count(7, 0.5)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with metrics_page(Namespace(metrics_port=port), lambda: "shoal://127.0.0.1:1"):
        page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    assert 'shoal_pipeline_rows_total{job="a page"} 7.0' in page
    with pytest.raises(ConfigError, match="--metrics-port is 70000"):
        metrics_page(Namespace(metrics_port=70000), lambda: "")
