import pytest

from dieselfs.errors import InvalidInput
from dieselfs.shuffle.cursor import Cursor
from dieselfs.shuffle.skips import Skips
from dieselfs_client.mount.shuffle_name import ShuffleName

CURSOR = Cursor("ab" * 12, 1, 2, 3, 4, Skips([range(7, 9)]))


def test_every_key() -> None:
    name = (
        b"seed=18446744073709551615,epoch=2,group=0,rank=3,world=8,batch=1024,start=77,worker=1,workers=2,"
        b"drop_last=1,null=1,skip=100-199+300-300"
    )
    assert ShuffleName.parse(name) == ShuffleName(
        seed=(1 << 64) - 1,
        epoch=2,
        group=0,
        rank=3,
        world=8,
        batch=1024,
        start=77,
        worker=1,
        workers=2,
        drop_last=True,
        null=True,
        skip=Skips([range(100, 200), range(300, 301)]),
    )


def test_a_folder_is_written_as_in_an_address() -> None:
    assert ShuffleName.parse(b"folder=train%2Fa%2C%3D%25%FF,seed=1") == ShuffleName(
        folder=b"train/a,=%\xff", seed=1
    )
    assert ShuffleName.parse(b"folder=").folder == b""
    with pytest.raises(InvalidInput, match=r"folder=\.\.: "):
        ShuffleName.parse(b"folder=..")


def test_any_subset_in_any_order() -> None:
    assert ShuffleName.parse(b"world=8,epoch=5") == ShuffleName(epoch=5, world=8)
    assert ShuffleName.parse(b"epoch=5,world=8") == ShuffleName(epoch=5, world=8)


def test_a_cursor() -> None:
    assert ShuffleName.parse(f"rank=1,world=2,cursor={CURSOR}".encode()) == ShuffleName(
        rank=1, world=2, cursor=CURSOR
    )


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (b"sed=1", "'sed=1' is no KEY=VALUE of a shuffle; the keys are seed"),
        (b"seed", "'seed' is no KEY=VALUE"),
        (b"seed=1,", "'' is no KEY=VALUE"),
        (b"seed=\xff", "write a number"),
        (b"seed=", "write a number"),
        (b"seed=-1", "write a number"),
        (b"seed= 1", "write a number"),
        ("seed=\N{ARABIC-INDIC DIGIT ONE}".encode(), "write a number"),
        (b"seed=" + b"1" * 100, "write a number"),
        (b"drop_last=true", "write 0 or 1"),
        (b"skip=5", "write the first and the last position"),
        (b"skip=1-2+", "write the first and the last position"),
        (b"skip=" + b"+".join(b"%d-%d" % (10 * i, 10 * i) for i in range(9)), "9 ranges"),
        (b"seed=1,seed=1", "seed is given twice"),
        (b"cursor=order1", "cursor=order1: 'order1' is no cursor"),
        (f"cursor={CURSOR},start=4,seed=1".encode(), "the cursor says already what seed, start would"),
    ],
)
def test_what_is_wrong_is_said(name: bytes, reason: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        ShuffleName.parse(name)
    assert reason in str(caught.value)
