"""The form of dead letters: written, cut into parts, read again, known again."""

import itertools
import json
import random
from collections import Counter
from dataclasses import replace

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.cases import each_case
from zeh_spark.client.dead_letter_replay import repaired
from zeh_spark.wire import upload_format, wire
from zeh_spark.wire.dead_letters import (
    LETTER_BYTES,
    DeadLetterId,
    Unreadable,
    cut,
    letter,
    letter_id,
    letters,
)

FEED, OTHER = "9f86d081884c7d65", "60303ae22b998861"
PLACE = DeadLetterId("orders-job", 17, 3, 5, 1795000000000, FEED)


def line(data, place=PLACE, sequence=None, partition=0):
    """An event as `tail --headers` prints it."""
    stamps = {
        "zeh-producer": place.producer,
        "zeh-batch": str(place.batch),
        "zeh-partition": str(place.partition),
        "zeh-sequence": str(place.sequence if sequence is None else sequence),
        "zeh-time": str(place.time),
        "zeh-feed": place.feed,
    }
    return wire.event_line(partition, stamps, data) + b"\n"


def lines(data, place=PLACE):
    """Of a dead letter, with its parts one after the other."""
    return [line(part, place, place.sequence + each) for each, part in enumerate(cut(data))]


def long_letter(size=200_000, filler="x"):
    return letter("too long", "p", 1, {"data": json.dumps(filler * size), "key": "k"})


def test_a_dead_letter_that_fits_is_one_event():
    """To the byte, in every partition of every feed; one byte more, and it is in parts."""
    fitting = b'"' + b"x" * (LETTER_BYTES - 2) + b'"'

    (event,) = cut(fitting)

    for partition in (0, 99_999):
        assert len(wire.event_line(partition, {}, event)) <= upload_format.LINE_BYTES
    assert 1 < len(cut(fitting + b" "))


@each_case("filler", ["x", '"', "\\", "é", "\u2028", "😀", "\n"])
def test_each_part_of_a_long_dead_letter_fits_into_a_line(filler):
    """Whatever JSON makes of it. The content alone names parts: a repeated batch gives the same."""
    whole = long_letter(filler=filler)

    parts = cut(whole)

    assert all(len(part) <= LETTER_BYTES for part in parts)
    assert [whole] == [data_of(each) for each in letters(lines(whole))]
    assert parts == cut(long_letter(filler=filler))
    assert [(letter_id(whole), number, len(parts)) for number in range(1, len(parts) + 1)] == [
        (part["id"], part["part"], part["parts"]) for part in map(json.loads, parts)
    ]


def data_of(found):
    return bytes(msgspec.json.decode(found.whole, type=dict[str, msgspec.Raw])["data"])


def test_a_whole_dead_letter_is_the_first_event_with_all_of_it():
    """What dead-letters prints can be repaired, and is the same dead letter still."""
    (found,) = letters(lines(long_letter()))

    (again,) = letters([found.whole])

    assert (PLACE, found.whole) == (again.place, again.whole)
    assert str(PLACE.sequence) == json.loads(again.whole)["headers"]["zeh-sequence"]


def test_lines_that_come_again_change_nothing():
    """Files overlap."""
    whole = lines(long_letter())
    twice = [each for line in whole for each in (line, line)]
    for some in ([*whole[:-1], *whole], [*whole, *whole[:-1]], twice):
        assert [PLACE] == [each.place for each in letters(some)]


def test_whoever_wants_to_goes_round_what_is_no_dead_letter():
    """The others are printed, and who is told of it can say so."""
    left_out = []
    given = [b'{"id":1}', line(SMALL), *lines(long_letter())[1:], line(SMALL, sequence=99)]

    found = list(letters(given, left_out.append))

    assert [5, 99] == [each.place.sequence for each in found]
    assert [1, 3] == [each.line for each in left_out]


def test_edits_beside_the_row_are_named():
    """They would be left out unnoticed."""
    (found,) = letters([line(SMALL.replace(b'"batch"', b'"key":"k","batch"'))])

    with pytest.raises(ValueError, match="`key`"):
        _ = found.row


SMALL = letter("why", "p", 1, {"data": "1"})
PARTS = lines(long_letter())
OTHER_PARTS = [each.replace(b"xxxxx", b"xxyxx") for each in PARTS]
OWN_HEADER = line(SMALL).replace(b'{"zeh-b', b'{"type":"x","zeh-b')
UNREADABLE = {
    "no JSON": ([b"{\n"], 1, "not JSON"),
    "a header of its own": ([OWN_HEADER], 1, "data.row.headers"),
    "a batch that is too long": ([line(SMALL).replace(b'"17"', b'"%s"' % (b"9" * 200))], 1, "tail"),
    "a producer that cannot be": ([line(SMALL).replace(b"orders-job", b"a b")], 1, "tail"),
    "no stamps": ([wire.event_line(0, {"h": "1"}, SMALL)], 1, "tail --headers"),
    "no feed": ([line(SMALL, replace(PLACE, feed=""))], 1, "zeh-feed"),
    "a url for a feed": ([line(SMALL, replace(PLACE, feed="http://a.example"))], 1, "zeh-feed"),
    "an odd stamp": ([line(SMALL).replace(b'"17"', b'"x"')], 1, "tail --headers"),
    "another event": ([b"\n", line(b'{"id":1}')], 2, "no 'row'"),
    "data that is none": ([line(SMALL), line(b"1", sequence=6)], 2, "no 'row'"),
    "part 0": ([line(b'{"id":"a","part":0,"parts":2,"text":""}')], 1, "no part 0 of 2"),
    "a missing part": (PARTS[1:], 1, "part 1 is missing"),
    "the last one": (PARTS[:-1], 1, "is missing"),
    "another text": (OTHER_PARTS, 1, "Repair the whole dead letter"),
    "a part and another one": ([PARTS[0], OTHER_PARTS[0]], 1, "line 2 has another part 1"),
    "what a terminal obeys": ([b'{"a\\u001b[2J":1}'], 1, "x1b"),
    "an array": ([b"[]"], 1, "object"),
}


@each_case(("given", "number", "why"), UNREADABLE.values())
def test_a_line_that_is_no_dead_letter_is_named(given, number, why):
    """By its number, with what is wrong; nothing that it says moves the cursor of a terminal."""
    with pytest.raises(Unreadable, match=why) as raised:
        list(letters(given))

    assert (number, True) == (raised.value.line, raised.value.reason.isprintable())


# The row


@each_case(
    ("row", "event"),
    [
        (b'{"data":"{\\"a\\": 1.50}"}', b'{"a": 1.50}'),
        (b'{"data":"\\"text\\""}', b'"text"'),
        (b'{"data":{"a": 1.50}}', b'{"a": 1.50}'),
        (b'{"data":[1,2],"unfit":[1,"NaN"]}', b"[1,2]"),
        (b'{"data":7}', b"7"),
    ],
)
def test_data_is_json_or_text_that_is(row, event):
    """As the row had it, or as a JSON tool puts it there."""
    (found,) = letters([line(b'{"row":%b}' % row)])

    assert event == found.row.event()


@each_case(
    ("row", "why"),
    [
        (b'{"base64":"/w=="}', "no 'data'"),
        (b'{"unfit":{"a":"NaN"}}', "no 'data'"),
        (b'{"data":null}', "null cannot be"),
        (b'{"data":"null"}', "null cannot be"),
        (b'{"data":"{"}', "not JSON"),
        (b'{"data":"1","dada":2}', "unknown field `dada`"),
        (b'{"data":"1","headers":{"h":null}}', "headers"),
        (b'{"data":"1","key":{"base64":"/w=="}}', "key"),
        (b"7", r"Expected `object . null`"),
    ],
)
def test_a_row_that_is_not_repaired_is_refused(row, why):
    """What has no form in JSON is not published as what stands in for it."""
    (found,) = letters([line(b'{"row":%b}' % row)])

    with pytest.raises(ValueError, match=why):
        found.row.event()


@each_case(
    ("sequence", "row", "why"),
    [
        (6, {"data": "{"}, "not JSON"),
        (6, {"unfit": {"x": "NaN"}}, "no 'data'"),
        (6, {"data": "1", "partition": 4}, "no partition 4"),
        (6, {"data": "1", "partition": 1, "key": "k"}, "exclude each other"),
        (6, {"data": json.dumps("x" * upload_format.LINE_BYTES)}, "bytes as a line"),
        (6, {"data": "[" * 501 + "]" * 501}, "nested 501 deep"),
        # the dead letter before once more: nobody guesses which repair is meant
        (5, {"data": "2"}, "of line 1, repaired in another way"),
    ],
)
def test_a_dead_letter_that_still_cannot_be_published_is_named(sequence, row, why):
    """By its line, before anything is published."""
    other = line(json.dumps({"row": row}).encode(), sequence=sequence)

    with pytest.raises(Unreadable, match=why) as raised:
        repaired(letters([line(SMALL), other]), 4)

    assert 2 == raised.value.line


# Which dead letter


def test_places_have_names_that_batches_may_have():
    """As long as can be. A name stays, or the publisher would take the dead letter twice."""
    most = 2**63 - 1
    place = DeadLetterId("p" * 100 + "#" + "k" * 100, most, 99_999, most, most, f"{FEED}~999999999")

    assert wire.NAME.fullmatch(place.name)
    assert "p" * 100 == place.base
    assert "dead:17:3:5:1795000000000:88bc3f273efa378b" == PLACE.name


def test_no_two_dead_letters_have_one_name():
    producers, feeds = ("a", "b", "a#1", "a#2"), (FEED, f"{FEED}~1", OTHER)
    each_field = itertools.product(producers, (0, 1, 11), (0, 1), (0, 1, 11), (1, 11), feeds)
    places = [DeadLetterId(*fields) for fields in each_field]

    assert len(places) == len({(each.base, each.name) for each in places})


# Laws


@given(
    st.lists(
        st.tuples(st.text(), st.integers(1, 70_000), st.sampled_from([FEED, OTHER])),
        min_size=1,
        max_size=3,
    ),
    st.randoms(use_true_random=False),
)
@example([("x", 200_000, FEED), ("x", 200_000, FEED), ("x", 200_000, OTHER)], random.Random(1))
def test_dead_letters_are_read_as_they_were_written(texts, chance):
    """Law: whatever is in them, however long, and in whatever order their lines come. Equal rows
    are several dead letters, also at the same place of two feeds: numbers tell their parts apart.
    """
    written, given_lines, sequences = {}, [], Counter()
    for text, times, feed in texts:
        whole = letter("why", "p", 1, {"data": text.encode(errors="replace").decode() * times})
        place = DeadLetterId("p", 1, 0, sequences[feed], 7, feed)
        given_lines += lines(whole, place)
        written[place] = whole
        sequences[feed] += len(cut(whole))
    chance.shuffle(given_lines)

    assert written == {each.place: data_of(each) for each in letters(given_lines)}


def test_a_dead_letter_without_an_event_has_no_row():
    """It tells of a session; there is nothing to publish."""
    (found,) = letters([line(b'{"reason":"skipped","row":null}')])

    assert found.row is None
    assert [] == repaired([found], 2)
