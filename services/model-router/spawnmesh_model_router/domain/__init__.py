"""Rules of the model router: values in, decisions out. Nothing here waits, reads a clock or talks to anything."""
