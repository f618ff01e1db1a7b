"""The archive job: writes recorded channels into Parquet files, by day and channel.

    parquet_files.py   what workers do: slices of records into files, small files into larger ones
    batch_plan.py      what a batch reads and what a compaction merges
    table_writer.py    commits to the table
    job.py             runs batches
    migration.py       turns an archive of an older version into a table
    archived_mark.py   tells servers that their records are archived

Readers of an archive get each message once. Reading is `shoal.history.archive`, and needs no Spark.
"""
