"""Workarounds for the behaviour of other projects.

Each module names the behaviour and its issue, why the mesh needs the workaround, and when to remove
it. A test in tests/unit/runtime/workarounds fails when the behaviour is gone.
"""
