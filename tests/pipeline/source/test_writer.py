"""Writing to channels: what options mean. What comes of it on a real Spark is in `test_source`."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import types

from shoal.coordination.link import parse_address
from shoal.errors import ConfigError
from shoal.pipeline.source.columns import row_attributes
from shoal.pipeline.source.writer import RowPublisher

pytestmark = pytest.mark.spark
SCHEMA = types.StructType().add("payload", "string")


@pytest.mark.parametrize(
    ("address", "given", "login"),
    [
        ("shoal://host:7400", {"user": "me", "password": "p@ss/:w"}, ("me", "p@ss/:w")),
        ("shoal://other:old@host:7400", {"user": "me", "password": "new"}, ("me", "new")),
        ("shoal://other:old@host:7400", {"password": "new"}, ("other", "new")),
        ("shoal://other:old@host:7400", {}, ("other", "old")),
        ("shoal://[::1]:7400", {"password": "new"}, (None, "new")),
    ],
)
def test_the_log_in_is_the_one_of_the_options(
    address: str, given: dict[str, str], login: tuple[str | None, str]
) -> None:
    publishing = RowPublisher.of({"coordinator": address, "channel": "c", **given}, SCHEMA)
    found = parse_address(publishing.url, None, None)
    assert (found.username, found.password) == login
    assert str(found) == str(parse_address(address, None, None))
    assert login[1] not in repr(publishing)


@pytest.mark.parametrize("text", ["no JSON", "[1]", '{"a": {"b": 1}}'])
def test_attributes_that_are_no_json_object_are_an_error_that_says_so(text: str) -> None:
    with pytest.raises(ConfigError, match="not a JSON object of strings, numbers, booleans and arrays"):
        row_attributes(pa.RecordBatch.from_pydict({"attributes": [text]}))


def test_attributes_are_a_map_or_json_and_nulls_are_none() -> None:
    found = row_attributes(pa.RecordBatch.from_pydict({"attributes": [None, '{"a": 1, "b": "x", "c": null}']}))
    assert found == [{}, {"a": 1, "b": "x"}]
    pairs = pa.array([None, [("a", 1), ("b", None)]], pa.map_(pa.string(), pa.int64()))
    assert row_attributes(pa.RecordBatch.from_arrays([pairs], names=["attributes"])) == [{}, {"a": 1}]


def test_servers_cannot_be_written_to() -> None:
    with pytest.raises(ConfigError, match="name a coordinator"):
        RowPublisher.of({"servers": "s1=a:1", "channel": "c"}, SCHEMA)
