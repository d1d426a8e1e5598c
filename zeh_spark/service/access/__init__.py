"""What a request may do, and how much of the publisher it may take.

`gate` compares tokens with what a route needs; `jwt_tokens` reads tokens that others issue.
`limits` says how much clients may take, and `disk` refuses uploads before the disk is full. The
store keeps the tokens that are issued here (`store.token_rights`).
"""
