"""The interceptors of every RPC, outermost first: drain, authentication, trace, log, errors,
deadline, authorization, limits, admission, read.

`server.py` composes them.
"""
