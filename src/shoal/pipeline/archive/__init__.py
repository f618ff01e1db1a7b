"""The archive job: writes recorded channels into Parquet files, by day and channel.

    parquet_files.py   what workers do: slices of records into files, small files into larger ones
    batch_plan.py      what a batch reads and what a compaction joins
    job.py             runs batches; the manifest commits each one
    archived_mark.py   tells servers that their records are archived

Readers of an archive get each message once. Reading is `shoal.history.archive`, and needs no Spark.
"""
