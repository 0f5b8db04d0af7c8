from dieselfs_client.mount.sequential import SequentialReads


def test_a_read_continues_where_the_last_one_of_the_file_ended() -> None:
    order = SequentialReads()
    assert not order.continues(7, 0, 100)
    assert order.continues(7, 100, 200)
    assert not order.continues(7, 500, 600)
    assert order.continues(7, 600, 700)


def test_files_do_not_disturb_each_other() -> None:
    order = SequentialReads()
    order.continues(1, 0, 10)
    order.continues(2, 0, 20)
    assert order.continues(1, 10, 20)
    assert order.continues(2, 20, 30)


def test_what_was_read_longest_ago_is_forgotten() -> None:
    order = SequentialReads(files_max=2)
    for inode in (1, 2, 3):
        order.continues(inode, 0, 10)
    assert not order.continues(1, 10, 20)
    assert order.continues(3, 10, 20)
