"""SQLite keeps the contract of metadata stores, in a file and in memory; and what only a file can get wrong."""

from pathlib import Path

from dieselfs_server.metadata.sqlite import SqliteMetadata
from tests.conformance.metadata_suite import MetadataSuite


class TestSqliteFile(MetadataSuite):
    def make_store(self, folder: Path) -> SqliteMetadata:
        return SqliteMetadata(folder / "metadata.db")


class TestSqliteMemory(MetadataSuite):
    def make_store(self, folder: Path) -> SqliteMetadata:
        return SqliteMetadata.in_memory()
