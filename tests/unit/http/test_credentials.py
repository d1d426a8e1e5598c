"""Secrets in the words of a publisher, which errors repeat."""

from tests.cases import each_case
from zeh_spark.client.http.credentials import _Mask

SECRET = "zeh_2c18a578_x7Qm9vR2kLpT4wYb"


@each_case(
    ("said", "shown"),
    [
        *((f"no: {SECRET[:length]}", "no: (hidden)") for length in range(12, len(SECRET) + 1)),
        *(
            (f"no: {SECRET[:length]}… ({SECRET})", "no: (hidden)… ((hidden))")
            for length in range(12, len(SECRET) + 1)
        ),
        *((text, text) for text in ("", "short of time", "zeh_2c18", "other")),
    ],
)
def test_a_secret_is_hidden_also_where_a_text_was_cut_in_it(said, shown):
    """Until it is forgotten; other texts stay."""
    mask = _Mask()
    mask.add(SECRET, "short", None)

    assert shown == mask(said)
    mask.forget(SECRET)
    assert said == mask(said)
