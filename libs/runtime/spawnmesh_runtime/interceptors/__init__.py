"""What surrounds every RPC, outermost first: trace, log, errors, drain, deadline, auth, validate. `server.py` puts them together."""
