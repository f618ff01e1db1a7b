"""The loads of `shoal bench match`: filters and events, made from a seed.

Owns what is subscribed and what is published in each of them. Measures nothing. Filters are put together from canonical
constraints, not read from text: a million of them take seconds.

    load.py      what a load is, and the choice by name
    stock.py     the six templates of the PADRES paper; `quotes.py` makes or reads its publications
    hard.py      ranges over twenty attributes, no equality that would help
    iot.py       thresholds over a hundred sensors, of which an event has thirty
    strings.py   prefixes, suffixes and parts of addresses and names
"""
