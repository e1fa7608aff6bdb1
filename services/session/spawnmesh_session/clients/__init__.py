"""The other services that this service calls, with the deadline of each call."""
