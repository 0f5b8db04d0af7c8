from dieselfs_client.ahead.read_order import ReadOrder


def test_a_read_goes_on_where_the_last_one_of_the_file_ended() -> None:
    order = ReadOrder()
    assert not order.goes_on(7, 0, 100)
    assert order.goes_on(7, 100, 200)
    assert not order.goes_on(7, 500, 600)
    assert order.goes_on(7, 600, 700)


def test_files_do_not_disturb_each_other() -> None:
    order = ReadOrder()
    order.goes_on(1, 0, 10)
    order.goes_on(2, 0, 20)
    assert order.goes_on(1, 10, 20)
    assert order.goes_on(2, 20, 30)


def test_what_was_read_longest_ago_is_forgotten() -> None:
    order = ReadOrder(files_max=2)
    for inode in (1, 2, 3):
        order.goes_on(inode, 0, 10)
    assert not order.goes_on(1, 10, 20)
    assert order.goes_on(3, 10, 20)
