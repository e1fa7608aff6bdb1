"""What tenants do meanwhile: each module is one kind of user."""
