"""The runner: claims runs and works on each until it has an answer."""

import os

# A child process of a runner only executes another program. gRPC would prepare it for further
# calls, and sometimes crashes it by that.
os.putenv("GRPC_ENABLE_FORK_SUPPORT", "false")  # gRPC's core reads this when it is loaded.
