"""What was recorded of channels: as tables, on servers, in an archive, and all of it together.

    table.py      entries of records as Arrow rows, and rows as messages
    plain.py      the quick way for pages of plain messages
    taking.py     rows in another order, however much they hold
    joining.py    rows of several servers as one history: each message once, in order, gaps where something is missing
    servers.py    a conversation with one server
    records.py    the records of servers, read
    manifest.py   what an archive holds
    archive.py    rows of an archive, read
    reading.py    the history of one channel: archive and records together

Owns reading. Agents write records (`shoal.channels.record`), a job writes archives (`shoal.pipeline.archive`).
"""
