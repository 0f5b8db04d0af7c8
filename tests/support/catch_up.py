"""What a starting server does with all its datasets, at once."""

from dieselfs_server.datasets.commit import catch_up_dataset
from dieselfs_server.metadata.interface import MetadataStore
from dieselfs_server.store.interface import ObjectStore


def catch_up(store: ObjectStore, metadata: MetadataStore, now_ns: int) -> int:
    """Apply chunks that are stored but not applied; returns their number."""
    return sum(catch_up_dataset(store, metadata, each, now_ns)[0] for each in metadata.datasets())
