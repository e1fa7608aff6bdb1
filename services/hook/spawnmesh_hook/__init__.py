"""Plugins that review what a run is about to do."""
