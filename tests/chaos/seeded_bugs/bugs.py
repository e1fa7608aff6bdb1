"""All seeded bugs, by area."""

from tests.chaos.seeded_bugs.approval_bugs import APPROVAL_BUGS
from tests.chaos.seeded_bugs.data_bugs import DATA_BUGS
from tests.chaos.seeded_bugs.security_bugs import SECURITY_BUGS
from tests.chaos.seeded_bugs.stream_bugs import STREAM_BUGS

BUGS_BY_AREA = {
    "approvals": APPROVAL_BUGS,
    "data": DATA_BUGS,
    "security": SECURITY_BUGS,
    "streams": STREAM_BUGS,
}
SEEDED_BUGS = (*APPROVAL_BUGS, *DATA_BUGS, *SECURITY_BUGS, *STREAM_BUGS)
