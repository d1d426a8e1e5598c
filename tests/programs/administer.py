"""Creates feeds and deletes their producers until it is killed. Not a test.

Usage: administer.py URL BEGIN. Prints the number of each feed when both acts on it are done.
"""

import itertools
import sys

from zeh_spark.publisher import open_store
from zeh_spark.store.acts import Actor, Via


def main(url: str, begin: str) -> None:
    by = Actor("alice@host", Via.CLI)
    store = open_store(url)
    for number in itertools.count(int(begin)):
        store.create(f"feed{number}", 1, by=by)
        store.delete_producer(f"feed{number}", "till", by=by)
        print(number, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
