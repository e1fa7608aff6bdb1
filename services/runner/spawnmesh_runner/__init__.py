"""Claims runs and carries them to a result."""

import os

# A child of a runner only becomes another program. gRPC would make it ready to go on with its calls, and at times ends it over that.
os.putenv("GRPC_ENABLE_FORK_SUPPORT", "false")  # Read when gRPC is loaded, by its core.
