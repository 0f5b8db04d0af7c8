"""The work on sources that are attached: their list, and their removal. No I/O of its own."""

import os
from collections.abc import Sequence

from dieselfs.attached.web_url import is_web_url
from dieselfs.bucket.url import is_object_url
from dieselfs.errors import EXIT_DAMAGED, EXIT_OK, InvalidInput
from dieselfs.names import is_location, printable
from dieselfs.units import count
from dieselfs_tools.cli.options import dataset_name
from dieselfs_tools.cli.output import name_fields
from dieselfs_tools.cli.session import Session


def list_attached(session: Session, dataset: str) -> int:
    """Print the sources of a dataset; the exit code says whether one of them cannot be read."""
    output, sources = session.output, session.client.attached_sources(dataset)
    for source in sources:
        size = f"{count(source.files, 'file')} ({output.size(source.total_bytes)})"
        output.detail(
            "source",
            f"{printable(source.location)}  {size}",
            {
                **name_fields(source.location, "source"),
                "size": source.size_bytes,
                "mark": source.mark,
                "chunks": source.chunks,
                "files": source.files,
                "bytes": source.total_bytes,
                "trouble": source.trouble,
            },
        )
    troubles = [(printable(source.location), source.trouble) for source in sources if source.trouble]
    output.failures(troubles, len(troubles))
    text = f"{count(len(sources), 'source')}, {count(sum(source.files for source in sources), 'file')}"
    if troubles:
        text += f"; {len(troubles):,} cannot be read: attach what has changed again, or dlcmd detach it"
    fields = {"dataset": dataset, "sources": len(sources), "unreadable": len(troubles)}
    return output.summary(text, fields, EXIT_DAMAGED if troubles else EXIT_OK)


def detach(session: Session, names: Sequence[str]) -> int:
    """Remove the files of sources; the last name is the dataset."""
    if len(names) < 2 or not is_location(names[-1]):
        raise InvalidInput("name sources and a dataset: dlcmd detach SOURCE... dl://DATASET")
    dataset = dataset_name(names[-1])
    locations = [
        os.fsencode(name if is_object_url(name) or is_web_url(name) else os.path.realpath(name))
        for name in names[:-1]
    ]
    removed = [session.client.detach(dataset, location) for location in locations]
    entries, sources = sum(each.entries for each in removed), sum(each.sources for each in removed)
    return session.output.summary(
        f"detached {count(entries, 'entry')} of {count(sources, 'source')}; the sources are unchanged",
        {"dataset": dataset, "entries": entries, "sources": sources, "generation": removed[-1].generation},
    )
