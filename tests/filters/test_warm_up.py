"""Warm-up of the index: it reaches all kernels that take long to compile."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.filters.index import grid, matcher, record_encoder, segment, segment_builder, signatures
from shoal.filters.index.warm_up import warm_up

SLOW: tuple[Any, ...] = (
    grid.edges_of,
    grid.measure_bounds,
    grid.tile,
    matcher.count_table,
    matcher.match_ids,
    matcher.match_slices,
    matcher.match_table,
    record_encoder.encode_table,
    segment.insert_record,
    segment.remove_id,
    segment_builder.choose_entries,
    segment_builder.lay_out,
    segment_builder.merge_duplicates,
    signatures.count_values,
)


@pytest.mark.parametrize("kernel", SLOW, ids=lambda kernel: kernel.__name__)
def test_slow_kernels_are_reached(kernel: Any) -> None:
    warm_up()
    assert kernel.signatures
