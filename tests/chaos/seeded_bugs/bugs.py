"""All seeded bugs, by area."""

from tests.chaos.seeded_bugs.data_bugs import DATA_BUGS
from tests.chaos.seeded_bugs.security_bugs import SECURITY_BUGS

BUGS_BY_AREA = {"data": DATA_BUGS, "security": SECURITY_BUGS}
SEEDED_BUGS = (*DATA_BUGS, *SECURITY_BUGS)
