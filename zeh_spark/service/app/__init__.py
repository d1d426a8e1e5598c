"""The publisher: feeds of a store over HTTP.

`app` puts the parts together: `page_api`, `direct_api`, `publish_api` and `telemetry_api` answer
requests, `read_requests`, `publish_requests` and `upload_validation` judge them, `rendering` makes
the bodies of answers, and `problem_answers` answers what fails. `server` runs the app.
"""
