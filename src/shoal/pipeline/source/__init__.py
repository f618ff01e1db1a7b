"""The Spark data source: offsets, kinds of streams, readers and writers."""
