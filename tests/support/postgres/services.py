"""The services that have a database."""

SERVICES_WITH_DATABASE = ("session", "attachment_blob", "transcript", "model_router", "hook")
