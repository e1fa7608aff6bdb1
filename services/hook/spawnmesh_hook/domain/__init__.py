"""Rules of plugins, endpoints and decisions: values in, decisions out."""
