import pytest

from dieselfs.errors import MountError
from dieselfs.settings.table import AUTO, FUSE, IMAGE, OVERLAY
from dieselfs_client.mount.points.view_choice import (
    BY_FILESYSTEM,
    Choice,
    Facts,
    after_refusal,
    choices,
    obstacle,
)

ROOT = Facts(may_mount=True, is_in_user_namespace=False, linux=(6, 18))
NAMESPACE = Facts(may_mount=True, is_in_user_namespace=True, linux=(6, 18))
USER = Facts(may_mount=False, is_in_user_namespace=False, linux=(6, 18))


@pytest.mark.parametrize(
    ("view", "facts", "words"),
    [
        (IMAGE, ROOT, None),
        (IMAGE, NAMESPACE, "needs root"),
        (IMAGE, USER, "needs root, or a user namespace"),
        (IMAGE, Facts(True, False, (6, 11)), "needs Linux 6.12, and this is 6.11"),
        (OVERLAY, ROOT, None),
        (OVERLAY, NAMESPACE, None),
        (OVERLAY, USER, "needs root, or a user namespace"),
        (OVERLAY, Facts(True, False, (5, 4)), None),
        (OVERLAY, Facts(True, True, (5, 10)), "needs Linux 5.11, and this is 5.10"),
        (FUSE, USER, None),
        (FUSE, Facts(False, False, (5, 4)), None),
    ],
)
def test_what_a_view_needs(view: str, facts: Facts, words: str | None) -> None:
    reason = obstacle(view, facts)
    assert (reason is None) == (words is None)
    assert (words or "") in (reason or "")


def test_the_view_that_was_asked_for_is_the_only_one() -> None:
    assert choices(OVERLAY, ROOT) == [Choice(OVERLAY, "")]
    with pytest.raises(MountError, match=r"needs root.*mount without --view, or with --view fuse"):
        choices(OVERLAY, USER)


@pytest.mark.parametrize("facts", [ROOT, NAMESPACE, USER])
def test_one_view_is_always_possible(facts: Facts) -> None:
    assert choices(AUTO, facts)[-1].view == FUSE


def test_a_refusal_is_the_reason_of_the_views_that_are_left() -> None:
    left = [Choice(OVERLAY, ""), Choice(FUSE, "too old")]
    assert after_refusal(left, "no EROFS") == [Choice(OVERLAY, "no EROFS"), Choice(FUSE, "too old; no EROFS")]


def test_the_type_of_a_mount_names_its_view() -> None:
    assert [BY_FILESYSTEM[kind] for kind in ("erofs", "overlay", "fuse.dieselfs")] == [IMAGE, OVERLAY, FUSE]
