"""The interceptors of every RPC, outermost first: drain, authentication, rates, trace, log, audit,
errors, deadline, authorization, limits, admission, read.

`server.py` composes them.
"""
