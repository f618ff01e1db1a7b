"""The program that `spark-submit` runs: a job of `shoal pipeline` in the session of `spark-submit`.

spark-submit --master spark://host:7077 .../pyspark_shoal/submit.py archive --once --archive /data/shoal
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from shoal import cli


def main(words: list[str]) -> int:
    """Runs a job and returns its exit status. Master and settings are those of `spark-submit`."""
    spark = SparkSession.builder.getOrCreate()
    try:
        return cli.main(["pipeline", *words])
    finally:
        spark.stop()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
