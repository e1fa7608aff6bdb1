"""The beats of replicas, by which the service knows since when it has been serving.

An expired lease means a lost runner only if runners could reach the service for as long as a lease
lasts. The view `served_time` of the migration says how the beats decide that.
"""

from datetime import timedelta

BEAT_INTERVAL = timedelta(seconds=1)

LONGEST_BREAK = timedelta(seconds=3)
"""The service is away if no replica has beaten for this long.

A runner calls again within a break that is shorter: heartbeats of runs leave most of a lease for
that. With leases shorter than two such breaks they leave too little.
"""
