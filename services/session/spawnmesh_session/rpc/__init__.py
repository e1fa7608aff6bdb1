"""The RPCs of SessionService, RunService and TenantService: a module for each."""
