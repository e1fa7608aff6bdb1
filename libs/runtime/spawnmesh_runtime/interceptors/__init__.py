"""The interceptors of every RPC, outermost first: drain, authentication, trace, log, errors,
deadline, authorization, admission, read.

`server.py` composes them.
"""
