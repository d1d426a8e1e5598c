-- The tables of the service "orders". Can be run again: what is there stays. It is to be run in one
-- transaction (psql -1 -f schema.sql), as the service does when it starts.

SELECT pg_advisory_xact_lock(7236541);  -- services that start together run this one after the other

CREATE TABLE IF NOT EXISTS orders (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer text NOT NULL,
    status   text NOT NULL DEFAULT 'placed',
    amount   bigint NOT NULL CHECK (amount >= 0),    -- in cents
    version  integer NOT NULL DEFAULT 1
);

-- An event for each change of an order, written in the transaction that changes it. `tx` is for the
-- feed: id alone tells the order in which rows were numbered, not the one in which they were
-- committed.
CREATE OR REPLACE FUNCTION zeroeventhub_next_tx() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$ BEGIN RETURN
    greatest(pg_current_xact_id()::text::bigint, pg_snapshot_xmax(pg_current_snapshot())::text::bigint - 1); END $$;

CREATE TABLE IF NOT EXISTS outbox (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tx       bigint NOT NULL DEFAULT zeroeventhub_next_tx(),
    order_id bigint NOT NULL,
    type     text NOT NULL,
    body     jsonb NOT NULL,
    CONSTRAINT zeroeventhub_is_json_cb9a7018 CHECK (body IS NOT NULL AND jsonb_typeof(body) <> 'null'),
    CONSTRAINT zeroeventhub_fits_b676098c CHECK (octet_length(body::text) <= 65489)
);

-- The rest as `zeh-spark ddl outbox --data body --partition-by order_id --partitions 4 --url …`
-- prints it; the index without CONCURRENTLY, which a table that is new does not need.

CREATE INDEX IF NOT EXISTS outbox_zeroeventhub_4
    ON outbox ((mod(('x' || substr(md5(coalesce(order_id::text, id::text)), 1, 8))::bit(32)::bigint, 4)), tx, id);

CREATE TABLE IF NOT EXISTS zeroeventhub_history (
    table_name text PRIMARY KEY, history text NOT NULL, cluster text, feed_id text);
INSERT INTO zeroeventhub_history (table_name, history, cluster, feed_id)
    SELECT 'outbox', left(gen_random_uuid()::text, 8), system_identifier::text,
        right(replace(gen_random_uuid()::text, '-', ''), 16)
    FROM pg_control_system() ON CONFLICT DO NOTHING;
