"""Attachment sets in one S3 bucket for each tenant."""
