"""The hook service: plugins that review what runs are about to do, events for them, and webhooks."""
