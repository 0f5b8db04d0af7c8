"""Logins are bounded for each address and for all."""

from dieselfs_server.web.login_rate import TRIES_OF_ALL, TRIES_PER_ADDRESS, WINDOW_S, LoginRate


def test_an_address_has_so_many_tries_in_a_window() -> None:
    rate = LoginRate()
    assert sum(rate.take("a", 1.0) for _ in range(1000)) == TRIES_PER_ADDRESS
    assert rate.take("b", 2.0)
    assert not rate.take("a", WINDOW_S)
    assert rate.take("a", 1.0 + WINDOW_S)


def test_logins_that_succeed_do_not_count() -> None:
    rate = LoginRate()
    for _ in range(1000):
        assert rate.take("a", 1.0)
        rate.give_back("a")
    rate.give_back("b")
    assert sum(rate.take("b", 1.0) for _ in range(1000)) == TRIES_PER_ADDRESS


def test_all_addresses_together_have_a_limit() -> None:
    rate = LoginRate()
    assert sum(rate.take(str(number), 0.0) for number in range(10_000)) == TRIES_OF_ALL
