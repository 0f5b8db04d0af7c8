"""Tokens end with time, with use, and with too many others."""

from dieselfs_server.web.tokens import Tokens


def test_a_token_is_found_until_it_ends() -> None:
    tokens: Tokens[str] = Tokens(10, 10, life_s=100)
    token = tokens.add("value", "a", 0)
    assert tokens.find(token, 99) == "value"
    assert tokens.find(token, 100) is None
    assert tokens.find("another", 0) is None


def test_what_is_not_used_ends_earlier() -> None:
    tokens: Tokens[str] = Tokens(10, 10, life_s=100, idle_s=10)
    used, unused = tokens.add("used", "a", 0), tokens.add("unused", "a", 0)
    assert [tokens.find(used, second) for second in (9, 18, 27)] == ["used"] * 3
    assert tokens.find(unused, 27) is None


def test_a_taken_token_is_worthless() -> None:
    tokens: Tokens[str] = Tokens(10, 10, life_s=100)
    token = tokens.add("value", "a", 0)
    assert (tokens.take(token, 1), tokens.take(token, 1), tokens.find(token, 1)) == ("value", None, None)


def test_the_oldest_of_an_owner_gives_way_before_that_of_others() -> None:
    tokens: Tokens[int] = Tokens(4, 2, life_s=100)
    made = [tokens.add(number, owner, 0) for number, owner in enumerate("abaac")]
    assert [tokens.find(token, 1) for token in made] == [None, 1, 2, 3, 4]
    tokens.add(9, "d", 1)
    assert len(tokens) == 4 and tokens.find(made[1], 1) is None


def test_tokens_are_not_guessed() -> None:
    tokens: Tokens[None] = Tokens(100, 100, life_s=100)
    made = {tokens.add(None, "a", 0) for _ in range(100)}
    assert len(made) == 100 and all(len(token) == 43 for token in made)
