"""What an agent measures: its copy of the server's traffic, counted and closed second by second."""
