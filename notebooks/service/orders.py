"""A service that keeps orders in PostgreSQL, and tells of them by a feed: each change of an order
writes an event into the table `outbox`, in the same transaction, and the feed serves that table.

Rule for editors: orders are changed by `change` alone, which locks them first. So the events of an
order are written one after the other, and the feed brings them in the order of its versions.
"""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from socket import socket
from typing import Any, Literal

import uvicorn
from fastapi import FastAPI, HTTPException
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, Field
from sqlalchemy import Connection, create_engine, text

from zeh_spark.publisher import SqlTableFeed, create_app

DATABASE = os.environ["ORDERS_DATABASE"]  # like postgresql+psycopg://user@host/database
SCHEMA = Path(__file__).with_name("schema.sql").read_text()

engine = create_engine(DATABASE, pool_size=16, max_overflow=0)
feed_engine = create_engine(DATABASE, pool_size=8, max_overflow=0)  # readers take none of ours
feed = SqlTableFeed(
    feed_engine,
    table="outbox",
    data="body",
    headers=["type"],
    partition_by="order_id",
    partitions=4,
)
feeds = create_app({"orders": feed})


class NewOrder(BaseModel):
    customer: str
    amount: int = Field(ge=0, le=10**12)


class Update(BaseModel):
    status: Literal["placed", "paid", "shipped"]


class Transfer(BaseModel):
    """`takers` are orders that get the amount each; `giver` is the one that pays for them all."""

    giver: int
    takers: set[int] = Field(min_length=1, max_length=100)
    amount: int = Field(gt=0, le=10**12)


class Order(BaseModel):
    id: int
    customer: str
    status: str
    amount: int
    version: int


def change(
    connection: Connection, order_id: int, event: str, *, status: str | None = None, more: int = 0
) -> Order:
    """Raises HTTPException for an order that is not there, or cannot give so much."""
    amount = connection.execute(
        text("SELECT amount FROM orders WHERE id = :id FOR UPDATE"), {"id": order_id}
    ).scalar()
    if amount is None:
        raise HTTPException(404, f"there is no order {order_id}")
    if amount + more < 0:
        raise HTTPException(409, f"order {order_id} has {amount}, and cannot give {-more}")
    changed = connection.execute(
        text(
            "UPDATE orders SET status = coalesce(:status, status), amount = amount + :more,"
            " version = version + 1 WHERE id = :id RETURNING *"
        ),
        {"id": order_id, "status": status, "more": more},
    )
    return publish(connection, event, changed.mappings().one())


def publish(connection: Connection, event: str, row: Mapping[Any, Any]) -> Order:
    """The event is the whole order: who has the last one of each order has the table."""
    order = Order(**row)
    connection.execute(
        text("INSERT INTO outbox (order_id, type, body) VALUES (:id, :type, CAST(:body AS jsonb))"),
        {"id": order.id, "type": event, "body": order.model_dump_json()},
    )
    return order


def prepare() -> None:
    """Make the tables, and have the feed look at them before anybody asks it."""
    with engine.begin() as connection:
        connection.exec_driver_sql(SCHEMA)
    feed.check()


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    await run_in_threadpool(prepare)
    yield
    feed.close()


app = FastAPI(title="orders", lifespan=lifespan)
app.mount("/feeds", feeds)


# Each call commits at the end of its own `with`, so before it answers. (What a dependency does
# after its `yield` comes later: a client would be told of what may never be committed.)


@app.post("/orders", status_code=201)
def create(new: NewOrder) -> Order:
    with engine.begin() as connection:
        created = connection.execute(
            text("INSERT INTO orders (customer, amount) VALUES (:customer, :amount) RETURNING *"),
            new.model_dump(),
        )
        return publish(connection, "created", created.mappings().one())


@app.patch("/orders/{order_id}")
def update(order_id: int, asked: Update) -> Order:
    with engine.begin() as connection:
        return change(connection, order_id, "updated", status=asked.status)


@app.post("/transfer")
def transfer(asked: Transfer) -> list[Order]:
    """All of it or nothing. Orders are locked in order of their ids: no two transfers can each hold
    what the other one waits for.
    """
    amounts = dict.fromkeys(asked.takers - {asked.giver}, asked.amount)
    amounts[asked.giver] = -sum(amounts.values())
    with engine.begin() as connection:
        return [
            change(connection, each, "transferred", more=amount)
            for each, amount in sorted(amounts.items())
        ]


class Server(uvicorn.Server):
    """Ends long polls when it stops: uvicorn waits for them, and ends the lifespan only then."""

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        feeds.state.stop()
        await super().shutdown(sockets)


if __name__ == "__main__":
    Server(uvicorn.Config(app, port=int(os.environ.get("PORT", "8000")), access_log=False)).run()
