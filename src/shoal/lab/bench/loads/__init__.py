"""The loads of `shoal bench match`: filters and events, made from a seed.

Owns the filters and events of each load. Measures nothing. Filters are built from canonical constraints instead of
text, so that a million of them take only seconds.

    load.py      the record of a load, and the choice by name
    stock.py     the six templates of the PADRES paper; `quotes.py` makes or reads its publications
    hard.py      ranges over twenty attributes, without an equality
    iot.py       thresholds over a hundred sensors, of which an event has about thirty
    strings.py   prefixes, suffixes and substrings of addresses and names
    mixed.py     wildcards, names without case, networks, arrays, `is not`
"""
