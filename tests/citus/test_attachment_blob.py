"""Contract tests of the attachment-blob service, on a cluster: files are staged, attached, uploaded,
released and counted, alone and at once.
"""

import pytest

from tests.contract.attachment_blob.sets.test_release_set import (
    test_one_set_staged_and_released_concurrently_ends_released,
    test_ReleaseSet__one_of_two_concurrent_releases_deletes_the_bytes,
    test_ReleaseSet__shared_bytes_survive_until_the_last_reference,
    test_twenty_concurrent_sets_of_the_same_bytes,
)
from tests.contract.attachment_blob.sets.test_stage_set import (
    test_AttachSet__in_each_state,
    test_PrepareTenant__newest_version_holds,
    test_StageSet__same_set_again,
    test_StageSet__stored_bytes_are_not_put_again,
    test_StageSet__stores_each_file_once_and_returns_the_manifest,
)
from tests.contract.attachment_blob.tenants.test_storage_quota import (
    test_concurrent_uploads_never_exceed_the_quota,
    test_StageSet__concurrent_sets_fill_the_quota_and_never_exceed_it,
    test_the_statements_and_the_domain_agree_on_what_fits,
    test_uploads_of_the_same_bytes_are_stored_once,
)
from tests.support.attachment_blob.fixtures import (
    blobs,
    tenant,
)

pytestmark = pytest.mark.long_citus

__all__ = [
    "blobs",
    "tenant",
    "test_AttachSet__in_each_state",
    "test_PrepareTenant__newest_version_holds",
    "test_ReleaseSet__one_of_two_concurrent_releases_deletes_the_bytes",
    "test_ReleaseSet__shared_bytes_survive_until_the_last_reference",
    "test_StageSet__concurrent_sets_fill_the_quota_and_never_exceed_it",
    "test_StageSet__same_set_again",
    "test_StageSet__stored_bytes_are_not_put_again",
    "test_StageSet__stores_each_file_once_and_returns_the_manifest",
    "test_concurrent_uploads_never_exceed_the_quota",
    "test_one_set_staged_and_released_concurrently_ends_released",
    "test_the_statements_and_the_domain_agree_on_what_fits",
    "test_twenty_concurrent_sets_of_the_same_bytes",
    "test_uploads_of_the_same_bytes_are_stored_once",
]
