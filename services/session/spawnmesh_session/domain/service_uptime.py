"""Heartbeats of replicas: they tell since when the service has been serving without a break.

An expired lease means a lost runner only if runners could reach the service for as long as a lease
lasts. The view `served_time` of the migration says how the heartbeats decide that.
"""

from datetime import timedelta

HEARTBEAT_INTERVAL = timedelta(seconds=1)

LONGEST_BREAK = timedelta(seconds=3)
"""The service is away if no replica has sent a heartbeat for this long.

A runner calls again within a break that is shorter: heartbeats of runs leave most of a lease for
that. With leases shorter than two such breaks they leave too little.
"""
