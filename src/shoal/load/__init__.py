"""From telemetry to load windows: the load of every unit on its host, for any kind of unit and host.

Cores only: nothing here touches a socket, a clock or a file. Each kind (`kinds`) is declared by its own package; this
package only knows the names of the kinds in windows of version 2. `record`, `kinds` and `table` work without pyarrow,
so that an agent need not load it.

    record (agent) --> report --> fold --> load window --> balance, pipeline
"""
