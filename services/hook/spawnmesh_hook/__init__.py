"""The hook service: plugins that review what runs are about to do, observers and webhooks."""
