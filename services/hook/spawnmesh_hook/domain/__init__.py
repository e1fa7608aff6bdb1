"""Rules of plugins, endpoints and decisions: frozen values and pure functions."""
