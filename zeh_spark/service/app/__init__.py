"""The publisher: feeds of a store over HTTP.

`app` puts the parts together: `page_api`, `direct_api`, `publish_api` and `telemetry_api` answer
requests, `read_requests`, `publish_requests` and `upload_validation` judge them, `rendering` and
`pieces` make answers. `stores` opens a store by its URL, and `server` runs the app.
"""
