"""The attachment-blob service: sets of files in one S3 bucket for each tenant."""
