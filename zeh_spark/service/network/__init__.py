"""HTTP as the publisher speaks it: sockets, TLS, request heads and bodies, and how it all ends.

uvicorn parses and Starlette routes. What is here bounds them: how many connections there are and
how long they may be silent (`connections`, `http_protocol`), how large and how slow a body may be
(`bodies`), what each client may have of what all need (`shares`), how open requests end when the
publisher stops (`draining`). `certificates` reads files for TLS again when they change. Nothing
here knows feeds.
"""

MOST_CONNECTIONS = 16_384
"""Most open connections, if the process may have as many files open."""
