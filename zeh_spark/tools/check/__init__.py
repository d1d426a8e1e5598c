"""Judge any publisher by the ZeroEventHub specification and by known traps: `zeh-spark check`.

`rules` lists what is judged and why, `lines` judges the body of an answer, `asking` asks within
limits of time and bytes, and `judge` decides what to ask. Needs neither Spark nor a server's
libraries. Only sends GET requests, and stores nothing.
"""
