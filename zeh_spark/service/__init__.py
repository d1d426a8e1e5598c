"""The service behind feeds: keeps them in a store, or finds them in a service's own table.

`store` is what every store does, `sql`, `sqlite` and `postgresql` do it, `databases` opens one by
its URL, `reads` reads its feeds, `retention` removes what is old, and `outbox` makes a feed of a
table. `network` speaks
HTTP, `access` judges requests, `telemetry` tells how the service is, `console` shows it, and `app`
serves it all.

Rule for editors: nothing here imports PySpark. Runs in the publisher's process.
"""
