"""The Spark data source "shoal".

datasource.py       Spark's classes: schema, readers, writers
options.py          options of readers and writers
cluster_address.py  the cluster that the options name
kinds.py            kinds of streams: telemetry and recorded channels
offsets.py          how far each stream was read
streams.py          Redis commands on the streams of one server
cluster_view.py     which servers answer, and their streams
offset_planner.py   what the next batch reads
backlog.py          unread entries of streams, and where they end at a time
time_cut.py         the time at which a batch of limited size ends
parts.py            what one task reads
conditions.py       conditions of a query on its rows
part_filter.py      leaves out servers, streams and times that conditions exclude
lag.py              how far a query is behind
columns.py          column types of readers and writers
writer.py           publishes rows as messages
"""
