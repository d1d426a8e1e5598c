"""The contract for tokens: who may do what."""

from __future__ import annotations

from zeh_spark.service.store.token_rights import ADMIN, Grant, Right, Token, new_token

_GRANTS = Grant(Right.READ, "orders*"), Grant(Right.PUBLISH, "orders", 'till-"ä*')


def _made(name: str, now: int, expires: int | None = None) -> Token:
    return new_token(name, _GRANTS, now, expires)[1]


def test_a_token_comes_back_as_it_was(store, opened):
    """My rights are the same after the publisher's restart, and nobody has one that nobody gave."""
    assert [] == store.tokens()
    made = [_made("b", 1), _made("a", 2, expires=3), new_token("c", ADMIN, 4)[1]]
    for each in made:
        store.add_token(each)
    assert made == store.tokens() == opened().tokens()


def test_tokens_are_revoked_by_id_or_by_name_and_stay(store):
    """I take back one of two tokens of a name, or both; the list still shows them."""
    first, second, other = _made("a", 1), _made("a", 2), _made("b", 3)
    for each in (first, second, other):
        store.add_token(each)
    assert [first.id] == store.revoke_token(first.id)
    assert [second.id] == store.revoke_token("a")
    assert [] == store.revoke_token("a") == store.revoke_token("nobody")
    assert [False, False, True] == [each.is_valid(store.now()) for each in store.tokens()]
    assert [store.now(), store.now(), None] == [each.revoked for each in store.tokens()]
