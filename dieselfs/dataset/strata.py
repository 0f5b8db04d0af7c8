"""The strata of a dataset, as its user names them. This module waits for sockets."""

from dieselfs.errors import InvalidInput
from dieselfs.names import COLUMNS_PATH
from dieselfs.rpc.client import ServerClient
from dieselfs.selection.selected import content_at
from dieselfs.shuffle.strata import Strata, column_of, strata_of_classes, strata_of_lengths
from dieselfs.snapshot.reader import Snapshot


def strata_of(
    snapshot: Snapshot, client: ServerClient, stratify: str, class_of: str | None, column: str | None
) -> Strata:
    """By "class", which is the first folder of a path, or what the regular expression `class_of` matches; by "length";
    or by the values of a "column". As `column_of`. Raises InvalidInput, and NotFound without columns.
    """
    if stratify == "length":
        return strata_of_lengths(snapshot)
    if stratify == "class":
        return strata_of_classes(snapshot, class_of)
    if stratify != "column" or column is None:
        raise InvalidInput(f"{stratify!r}: give 'class', 'length', or 'column' with the name of a column")
    content = content_at(snapshot, client, COLUMNS_PATH)
    from dieselfs.selection.file_columns import FileColumns  # with pyarrow, for columns alone

    return column_of(snapshot, FileColumns.decode(content, [column]).strata(column))
