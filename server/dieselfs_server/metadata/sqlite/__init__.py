"""The metadata store in one SQLite file."""
