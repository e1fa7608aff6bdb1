"""Fixtures of the contract tests of the attachment-blob service."""

from tests.support.attachment_blob.fixtures import blobs, eager, tenant

__all__ = ["blobs", "eager", "tenant"]
