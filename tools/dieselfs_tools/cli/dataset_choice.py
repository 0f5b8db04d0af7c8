"""One dataset, or all of them: how `purge`, `fsck` and `rebuild` repeat their work for each."""

from collections.abc import Callable, Mapping, Sequence

from dieselfs.errors import EXIT_DAMAGED, EXIT_OK, DieselfsError, InvalidInput
from dieselfs.units import count
from dieselfs_tools.cli.session import Session

Result = tuple[str, Mapping[str, object], int]
"""The text and the fields of a result, and its exit code."""


def names_of_all(session: Session) -> list[str]:
    """Of the datasets whose metadata exists, and that this user may read."""
    return sorted(dataset.name for dataset in session.client.datasets())


def names_with_lost(session: Session) -> list[str]:
    """Also of the datasets whose chunks exist, but no metadata."""
    return sorted({*names_of_all(session), *session.client.lost_datasets()})


def worse(one: int, other: int) -> int:
    """The exit code of both: damage is worse than what may pass."""
    return EXIT_DAMAGED if EXIT_DAMAGED in (one, other) else max(one, other)


def for_each_dataset(
    session: Session,
    dataset: str | None,
    is_all: bool,
    done: str,
    work: Callable[[str], Result],
    names: Callable[[Session], Sequence[str]] = names_of_all,
    fields: Mapping[str, object] | None = None,
) -> int:
    """Do the work for one dataset and print its result as the summary; with `is_all` for all `names`: each result is a
    record, and the summary counts them. A dataset that fails does not stop the others. Returns the exit code.

    `done`: the verb of the summary; `fields`: further ones of it. Raises InvalidInput unless one of both is given.
    """
    if is_all == (dataset is not None):
        raise InvalidInput("give one dataset (dl://DATASET), or --all")
    if dataset is not None:
        return session.output.summary(*work(dataset))
    chosen, exit_code = names(session), EXIT_OK
    for name in chosen:
        try:
            text, found, code = work(name)
        except DieselfsError as error:
            session.output.failure(f"dl://{name}", str(error))
            code = error.exit_code
        else:
            session.output.detail("dataset", f"dl://{name}: {text}", found)
        exit_code = worse(exit_code, code)
    total = {**(fields or {}), "datasets": len(chosen)}
    return session.output.summary(f"{done} {count(len(chosen), 'dataset')}", total, exit_code)
