"""The interceptors of every RPC, outermost first: drain, authentication, trace, log, audit, errors,
deadline, authorization, admission, read.

`server.py` composes them.
"""
