"""Recorded channels: read from servers and from an archive, merged into the history of a channel.

    table.py            schema of recorded rows, and functions over them
    row_selection.py    selects rows, also of columns above 2 GiB
    entry_decoder.py    entries of a record to rows
    server_reader.py    a blocking connection to one server
    record_reader.py    reads the records of one server
    merge.py            rows of several servers as one history: each message once, in order, with gaps
    archive_location.py where an archive is: a directory, or a place in an object store
    archive_table.py    an archive as a Delta table: its files, and how far records were read into it
    archive.py          reads rows of an archive
    channel_history.py  the history of one channel, from archive and records

A *record* is the Redis stream in which an agent keeps the messages of one channel on its server. This package only
reads. Agents write records (`shoal.channels.recording.record`); a Spark job writes archives (`shoal.pipeline.archive`).
"""
