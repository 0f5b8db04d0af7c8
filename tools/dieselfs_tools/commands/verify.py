"""`dlcmd verify`: one digest of a dataset or of a local folder."""

from typing import TYPE_CHECKING

import click

from dieselfs.errors import EXIT_OK, EXIT_PARTIAL
from dieselfs.names import SCHEME, is_location, printable
from dieselfs.units import count
from dieselfs_tools.cli import options
from dieselfs_tools.cli.progress import Reading, shown
from dieselfs_tools.cli.session import Session

if TYPE_CHECKING:
    from dieselfs.transfer.tree_digest import TreeDigest


@options.verb(
    "verify",
    "dlcmd verify dl://pets@v1        # read every byte of a tag",
    "dlcmd verify ./pets              # a folder with the same content has the same digest",
    "dlcmd verify --quick dl://pets   # believe the digests of the signed snapshot",
)
@click.argument("source", type=options.SOURCE, metavar="dl://DATASET[@TAG]|FOLDER")
@options.flag("--quick", "is_quick", text="Of a dataset, read only the files that span chunks.")
def verify(session: Session, source: str, is_quick: bool) -> int:
    """Read a dataset, or a local folder, and print one digest of its paths, contents and link targets.

    Equal trees have equal digests, however their files are stored; modes and times do not count. Exit code 0: all
    bytes are those that were stored; 5: some are not; 2: a local folder has devices, pipes or sockets, left out here.
    """
    from dieselfs.transfer.tree_digest import TreeDigest, digest_of_folder, digest_of_snapshot

    output, tree = session.output, TreeDigest()
    fields: dict[str, object]
    if is_location(source):
        state = options.dataset_state(source)
        dataset = session.dataset(state)
        total_bytes = int(dataset.snapshot.column("extent_lengths").sum())

        def reading() -> Reading:
            return Reading(0, tree.read_bytes, 0, total_bytes, None, not is_quick, "")

        with shown(output, "verify", reading):
            digest_of_snapshot(dataset.snapshot, dataset.chunks, is_quick, tree)
        name = f"{SCHEME}{state}"
        fields = {"dataset": state, "generation": dataset.snapshot.generation, "quick": is_quick}
    else:
        with shown(output, "verify", lambda: Reading(0, tree.read_bytes, 0, 0, None, False, "")):
            digest_of_folder(source, tree)
        name, fields = source, {"folder": source}
    output.record("digest", f"{tree.hex()}  {name}", {"digest": tree.hex(), **fields})
    for path in tree.skipped:
        output.error(f"{source}: {printable(path)}: neither file, folder nor link; left out")
    return output.summary(_covered(tree, session), fields, EXIT_PARTIAL if tree.skipped else EXIT_OK)


def _covered(tree: "TreeDigest", session: Session) -> str:
    parts = [count(tree.files, "file"), count(tree.folders, "folder"), count(tree.links, "link")]
    return f"verified {', '.join(parts)} ({session.output.size(tree.total_bytes)})"
