"""The RPCs of the services in `protos/spawnmesh/session/v1`: a module for each."""
