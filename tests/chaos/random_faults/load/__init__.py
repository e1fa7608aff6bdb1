"""The load that tenants make meanwhile: each module is one kind of user."""
