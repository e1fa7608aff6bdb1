"""The texts of the agents in the pictures. A scene begins with words of the task."""

from collections.abc import Mapping
from typing import Any

from spawnmesh_devstack.scripted_agents import Reply, ScriptedCall

Scene = tuple[Reply, ...]

_VENDORS = (
    ("Postbird", "0.40", "50,000 messages in an hour", "two in twelve months, 95 minutes in all"),
    ("Quillmail", "0.55", "none", "none in twelve months"),
    ("Northpost", "0.35", "20,000 messages in an hour", "five in twelve months, seven hours in all"),
)

MARCH = """position,quantity,price,amount
Seats,42,12.00,504.00
Storage in GB,310,0.20,62.00
Support plan,1,90.00,90.00
"""
FEBRUARY = """position,quantity,price,amount
Seats,30,12.00,360.00
Storage in GB,295,0.20,59.00
Support plan,1,90.00,90.00
"""
CHANGES = """- Exports of more than 10,000 rows no longer time out.
- The calendar shows holidays of the customer's country.
- Fixed: a deleted user was still named in the audit log.
- Fixed: the audit log named users that were deleted.
"""

TICKET = "Answer ticket 4711"
REFUND = "Prepare the refund for ticket 4698"
NOTES = "Write the release notes for 4.2"
SURVEY = "Compare three vendors of e-mail delivery"
VENDOR = "Find prices, limits and outages of"
DIGEST = "Write the digest of the week"
TRIAGE = "Sort the new messages of the inbox"
PATIENT = "Draft the handbook chapter about on-call duty"
INVOICES = "Check the invoices of the last quarter"


def _call(tool: str, **arguments: Any) -> ScriptedCall:
    return ScriptedCall(tool, arguments)


def _read(name: str) -> ScriptedCall:
    return _call("read_file", path=f"{{files}}/{name}")


def _vendor(name: str) -> ScriptedCall:
    task = f"{VENDOR} {name}. Answer in three lines."
    return _call("sessions_spawn", agent_id="researcher", task=task, label=name.lower())


def _findings(price: str, limit: str, outages: str) -> Scene:
    text = f"Price: {price} for 1,000 messages.\nLimit: {limit}.\nOutages: {outages}."
    return (Reply(text, thinking="Prices and limits are on the vendor's pages, outages on its status page."),)


_REPLY = """Hello Ms. Okafor,

your invoice for March is 147.00 higher than the one for February, for two reasons:

  Seats     42 instead of 30    + 144.00
  Storage   310 instead of 295 GB  + 3.00

The twelve seats were added on March 3 by an administrator of your account. You can remove seats
under Settings, Seats; the next invoice then has the lower number.

Kind regards
"""

_DIFFERENCE = "position,february,march\nSeats,360.00,504.00\nStorage,59.00,62.00\n"
_REFUND = """{
  "ticket": 4698,
  "customer": "Hartmann Logistics",
  "amount": "86.40",
  "currency": "EUR",
  "reason": "charged twice on November 2"
}
"""

_CHAPTER = " ".join(
    """On-call duty begins on Monday at 9:00 and ends a week later at the same time. The person on duty
carries the phone, answers a page within fifteen minutes, and writes a line into the channel when
they begin to work on it.
|Before your first week, do three things. Sign in to the console and find the sessions of the last
incident. Read the runbook of each service that can page you. Send yourself a test page, at night
too: a phone that is silent at night is the most frequent reason for a missed page.
|When a page comes in, look first at what changed. Most incidents follow a deployment, and to roll it
back is nearly always right. You do not need to know why something broke to undo it.
|""".splitlines()
).replace(" |", "\n\n")

SCENES: Mapping[str, Scene] = {
    TICKET: (
        Reply(
            calls=(_read("invoice-march.csv"), _read("invoice-february.csv")),
            thinking="Both invoices are attached. I compare them line by line before I explain anything.",
        ),
        Reply(
            calls=(
                _call("write_file", path="reply.txt", content=_REPLY),
                _call("write_file", path="difference.csv", content=_DIFFERENCE),
            ),
            thinking="Seats went from 30 to 42, and storage grew by 15 GB: 144.00 and 3.00, together 147.00.",
        ),
        Reply(calls=(_call("publish_files", paths=["reply.txt", "difference.csv"]),)),
        Reply(
            "The invoice is 147.00 higher because twelve seats were added on March 3 (144.00), and 15 GB more "
            "were stored (3.00). The reply to the customer is published as reply.txt."
        ),
        Reply("Yes: the reply names the administrator's change, and says how seats are removed again."),
    ),
    REFUND: (
        Reply(
            calls=(_call("transcript_search", words="refund"),),
            thinking="A refund above 50 needs a person. I prepare it, and the mesh asks for the approval.",
        ),
        Reply(
            calls=(
                _call(
                    "write_file",
                    path="refunds/4698.json",
                    content=_REFUND,
                ),
            ),
        ),
        Reply("The refund of 86.40 EUR for ticket 4698 is prepared, and is paid out with the next run."),
    ),
    NOTES: (
        Reply(calls=(_read("changes.md"),)),
        Reply(
            calls=(
                _call(
                    "ask_user",
                    question="Two lines of changes.md describe the same fix of the audit log. Which one goes into "
                    "the release notes?",
                    choices=[
                        "A deleted user was still named in the audit log.",
                        "The audit log named users that were deleted.",
                        "Both",
                    ],
                ),
            ),
            thinking="Lines 3 and 4 are one fix in two words. The person who wrote them should choose.",
        ),
        Reply("The release notes are written."),
    ),
    SURVEY: (
        Reply(
            calls=(_vendor("Postbird"), _vendor("Quillmail"), _vendor("Northpost")),
            thinking="Three vendors, and the questions are the same: one researcher for each, at the same time.",
        ),
        Reply(calls=(_call("sessions_wait", session_ids="{children}", timeout_seconds=60),)),
        Reply(
            calls=(
                _call(
                    "write_file",
                    path="comparison.csv",
                    content="vendor,price for 1000,limit in an hour,outages in a year\n"
                    "Postbird,0.40,50000,2\nQuillmail,0.55,none,0\nNorthpost,0.35,20000,5\n",
                ),
            )
        ),
        Reply(calls=(_call("publish_files", paths=["comparison.csv"]),)),
        Reply(
            "Quillmail had no outage in the last year and has no limit for an hour, at 0.55 for 1,000 messages. "
            "Northpost is cheapest (0.35), but its limit of 20,000 in an hour is below our peak. I recommend "
            "Quillmail; the table is published as comparison.csv."
        ),
    ),
    **{f"{VENDOR} {name}": _findings(*figures) for name, *figures in _VENDORS},
    DIGEST: (Reply("Seven tickets were closed, two are open, and the export of large tables is fixed."),),
    TRIAGE: (Reply("Four messages: two questions about invoices, one about seats, and one is spam."),),
    INVOICES: (Reply("I begin with October, and compare each invoice with its order."),),
    PATIENT: (
        Reply(
            _CHAPTER * 4,
            thinking="The chapter is for people who are on call for the first time: what to do, in which order.",
        ),
    ),
}
"""The replies of each scene, one after the other; the last one is repeated."""
