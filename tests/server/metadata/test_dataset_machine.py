"""The whole life of a dataset against a plain dict, on each metadata store that needs no service."""

from dieselfs_server.metadata.interface import MetadataStore
from dieselfs_server.metadata.sqlite import SqliteMetadata
from tests.conformance.dataset_machine import MACHINE_SETTINGS, DatasetMachine


class SqliteMachine(DatasetMachine):
    def make_metadata(self) -> MetadataStore:
        return SqliteMetadata.in_memory()


TestSqliteMachine = SqliteMachine.TestCase
TestSqliteMachine.settings = MACHINE_SETTINGS
