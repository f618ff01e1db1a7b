"""From telemetry to load windows: what every unit cost its host, for any kind of unit and host.

Cores only: nothing here touches a socket, a clock or a file. A kind (`kinds`) is declared by the package that it
belongs to; this package knows none of them by name, but for the names that windows of version 2 stand for. `record`,
`kinds` and `table` work without pyarrow, so that an agent need not load it.

    record (agent) --> report --> fold --> load window --> balance, pipeline
"""
