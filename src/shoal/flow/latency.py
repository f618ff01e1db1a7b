"""Latency between clients and servers: one-way samples, drawn as in the Dynamoth paper (V.B).

Owns the source of the samples: a file with a matrix of measured round trips, or a distance model. A message from a
client to a server takes one sample, a message from client to client takes two.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from shoal.balance.columns import Floats
from shoal.errors import ConfigError

SAMPLES_PER_RESPONSE: Final = 2
"""Latency samples in a response time: from a client to a server, and from there to a client."""
NORTH_AMERICA: Final = (24.0, 60.0, -130.0, -55.0)
"""Latitude and longitude, from and to: the paper uses measurements from North America only."""
CITIES_FILE: Final = "wondernetwork_cities.csv"
"""The positions of the cities, in the same directory as the matrix; optional."""

PLACES: Final = (
    # latitude, longitude, people in millions
    (40.7, -74.0, 19.5),
    (34.1, -118.2, 12.9),
    (41.9, -87.6, 9.3),
    (32.8, -96.8, 8.1),
    (29.8, -95.4, 7.5),
    (38.9, -77.0, 6.3),
    (39.9, -75.2, 6.2),
    (33.7, -84.4, 6.3),
    (25.8, -80.2, 6.2),
    (33.4, -112.1, 5.1),
    (42.4, -71.1, 4.9),
    (37.8, -122.4, 4.6),
    (42.3, -83.0, 4.3),
    (47.6, -122.3, 4.0),
    (45.0, -93.3, 3.7),
    (39.7, -105.0, 3.0),
    (43.7, -79.4, 6.7),
    (45.5, -73.6, 4.4),
    (49.3, -123.1, 3.0),
    (51.0, -114.1, 1.6),
)
"""The larger cities of North America, where the model's clients and servers are."""
FIBRE_KM_PER_MS: Final = 200.0
DETOUR: Final = 1.7
"""Length of a packet's path, divided by the straight line."""
ACCESS_MS: Final = (17.0, 0.5)
"""Median and spread (of the logarithm) of the delay of the last mile and the routers."""
EARTH_KM: Final = 6371.0
MODEL_SAMPLES: Final = 20_000
MODEL_SEED: Final = 14
"""The model's samples are always the same. The seed of the workload decides which of them are drawn."""


@dataclass(frozen=True, slots=True)
class Latencies:
    """One-way samples in milliseconds, and their source."""

    samples_ms: Floats
    source: str

    def mean_ms(self, rng: np.random.Generator, messages: int, samples_each: int) -> float:
        """The mean latency of a number of messages with `samples_each` samples each; 0 without messages."""
        if not messages:
            return 0.0
        return float(rng.choice(self.samples_ms, size=(messages, samples_each)).sum(axis=1).mean())


def distance_model() -> Latencies:
    """The built-in model: distances between pairs of cities, drawn by their size, plus the delay of access."""
    rng = np.random.default_rng(MODEL_SEED)
    places = np.array(PLACES)
    weights = places[:, 2] / places[:, 2].sum()
    ends = rng.choice(len(places), size=(MODEL_SAMPLES, 2), p=weights)
    latitude, longitude = np.radians(places[:, 0])[ends], np.radians(places[:, 1])[ends]
    north, east = np.diff(latitude)[:, 0], np.diff(longitude)[:, 0]
    chord = np.sin(north / 2) ** 2 + np.cos(latitude).prod(axis=1) * np.sin(east / 2) ** 2
    km = 2 * EARTH_KM * np.arcsin(np.sqrt(chord))
    access = ACCESS_MS[0] * np.exp(rng.normal(0.0, ACCESS_MS[1], MODEL_SAMPLES))
    return Latencies(km * DETOUR / FIBRE_KM_PER_MS + access, "built-in distance model")


def from_matrix(path: Path) -> Latencies:
    """Half of each round trip of a matrix (CSV, milliseconds, a row and a column for each city).

    If the file with the cities' positions is beside it, only North American cities are used.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            header, *rows = csv.reader(file)
        wanted = _north_american(path.parent / CITIES_FILE)
        columns = [place for place, city in enumerate(header) if place and (wanted is None or city in wanted)]
        kept = [row for row in rows if wanted is None or row[0] in wanted]
        values = np.array([[float(row[column] or "nan") for column in columns] for row in kept])
    except (OSError, ValueError, IndexError) as error:
        raise ConfigError(f"cannot read latencies from {path}: {error}", do="give a matrix in CSV") from error
    samples = values[np.isfinite(values) & (values > 0)] / 2
    if not len(samples):
        raise ConfigError(f"{path} contains no latencies", do="give a matrix in CSV")
    where = "" if wanted is None else ", North America"
    return Latencies(samples, f"{path.name}{where}")


def _north_american(path: Path) -> set[str] | None:
    """The North American cities; None if there is no file with positions."""
    if not path.is_file():
        return None
    south, north, west, east = NORTH_AMERICA
    with path.open(newline="", encoding="utf-8") as file:
        return {
            row["city"]
            for row in csv.DictReader(file)
            if south <= float(row["Lat"]) <= north and west <= float(row["Long"]) <= east
        }
