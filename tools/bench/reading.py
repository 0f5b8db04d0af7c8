"""Reading every file once: through mounts and local file systems by one and by four processes, and inside a process.

`reading_files` and `reading_library` say what is compared with what.
"""

from collections.abc import Generator
from pathlib import Path

from bench.figures import Trial
from bench.forms import all_forms
from bench.reading_files import cold_trial, warm_trials
from bench.reading_library import cold_library_trial, resident_trials
from bench.scale import Scale
from bench.trees import LARGE_FILE_BYTES, SMALL_FILE_BYTES, can_drop_caches

READERS = (1, 4)
COLD_ROUNDS_MAX = 3
"""A cold round takes long, most of it to get there."""


def reading(folder: Path, scale: Scale) -> Generator[Trial]:
    cold_rounds = min(scale.rounds, COLD_ROUNDS_MAX)
    for files, file_bytes in (
        (scale.small_files, SMALL_FILE_BYTES),
        (scale.large_files // 2, LARGE_FILE_BYTES),
    ):
        with all_forms(folder / str(file_bytes), files, file_bytes) as forms:
            if can_drop_caches():
                for readers in READERS:
                    yield cold_trial(forms, readers, cold_rounds)
                yield cold_library_trial(forms, cold_rounds)
            yield from warm_trials(forms, READERS, scale.rounds)
            yield from resident_trials(forms, READERS, scale.rounds)
