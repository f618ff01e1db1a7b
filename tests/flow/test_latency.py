"""Latencies: from a matrix of round trips, or from the distance model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shoal.errors import ConfigError
from shoal.flow import distance_model, from_matrix
from shoal.flow.latency import CITIES_FILE

MATRIX = "city,Boston,Paris,Denver\nBoston,0,90,40\nParis,92,0,130\nDenver,44,,0\n"
CITIES = "city,Lat,Long,Population\nBoston,42.4,-71.1,1\nParis,48.9,2.4,1\nDenver,39.7,-105.0,1\n"


def test_the_distance_model_is_at_the_papers_level() -> None:
    samples = distance_model().samples_ms
    assert 30 < samples.mean() < 40  # two samples make about 75 ms, as in the paper
    assert samples.min() > 0
    assert np.array_equal(samples, distance_model().samples_ms)


def test_a_matrix_gives_half_of_each_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "matrix.csv"
    path.write_text(MATRIX)
    found = from_matrix(path)
    assert sorted(found.samples_ms.tolist()) == [20, 22, 45, 46, 65]
    assert found.source == "matrix.csv"


def test_only_north_america_is_used_if_positions_are_known(tmp_path: Path) -> None:
    path = tmp_path / "matrix.csv"
    path.write_text(MATRIX)
    (tmp_path / CITIES_FILE).write_text(CITIES)
    found = from_matrix(path)
    assert sorted(found.samples_ms.tolist()) == [20, 22]
    assert "North America" in found.source


@pytest.mark.parametrize("text", ["", "city,a\na,0\n", "city,a,b\na,0,x\n"])
def test_a_file_that_is_no_matrix_is_rejected(tmp_path: Path, text: str) -> None:
    path = tmp_path / "matrix.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"matrix\.csv"):
        from_matrix(path)


def test_a_missing_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        from_matrix(tmp_path / "none.csv")


def test_a_message_takes_as_many_samples_as_it_has_hops() -> None:
    found, rng = distance_model(), np.random.default_rng(1)
    one, two = (found.mean_ms(rng, 20_000, hops) for hops in (1, 2))
    assert two == pytest.approx(2 * one, rel=0.05)
    assert found.mean_ms(rng, 0, 2) == 0.0
