"""The gateway of a mesh: one address for all services. It is Envoy; this package configures it."""
