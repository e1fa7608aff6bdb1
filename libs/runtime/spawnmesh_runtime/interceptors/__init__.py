"""The interceptors of every RPC, outermost first: drain, trace, log, errors, deadline,
auth, validate.

`server.py` composes them.
"""
