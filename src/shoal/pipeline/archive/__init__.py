"""The archive job: recorded channels into Parquet, by day and channel, each message once for whoever reads.

    slices.py     what a worker does: a slice of a record into files, small files into larger ones
    planning.py   what there is to do: slices behind the manifest's positions, files to be put together
    paths.py      a manifest lists nothing that is not in its archive
    job.py        one batch after the other, committed by the manifest

Reading is `shoal.history.archive`, and needs no Spark.
"""
