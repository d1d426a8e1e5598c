"""The console: web pages on which an operator sees a publisher, and changes a few settings.

Pages are rendered here, with Jinja2; there are no scripts. `pages` has the routes that read, `acts`
those that change something. `overview`, `feed_facts` and `events` ask the store what a page shows,
`viewer` decides what a token may see, and `sessions` lets a browser stay signed in.

Rule for editors: a page costs a bounded number of short reads of the store, in a worker thread,
however many feeds, partitions and events there are. What comes from events, producers and consumers
is shown as text that `text.visible` has made harmless to read. Runs in the publisher's process.
"""
