"""I3: each object has a row, each row an object, and nothing ended keeps files."""

from tests.chaos.random_faults.facts import Facts


def check(facts: Facts) -> list[str]:
    """Compare buckets with rows, blobs with the sets that refer to them, and sets with sessions."""
    found = []
    stored = {
        (row["tenant_id"], row["object_key"]) for row in facts.rows("blobs") if row["state"] == "STORED"
    }
    objects = {(tenant, key) for tenant, keys in facts.objects.items() for key in keys}
    found += [f"object {key} of {tenant} has no row" for tenant, key in sorted(objects - stored)]
    found += [f"row {key} of {tenant} has no object" for tenant, key in sorted(stored - objects)]
    found += [
        f"blob {row['sha256']} is {row['state']}" for row in facts.rows("blobs") if row["state"] == "LOST"
    ]
    live = {
        (row["tenant_id"], row["session_id"]) for row in facts.rows("sessions") if row["state"] == "ACTIVE"
    }
    for row in facts.rows("sets"):
        key = (row["tenant_id"], row["session_id"])
        if row["state"] == "STAGED" or (row["state"] == "ATTACHED" and key not in live):
            found.append(f"set {row['set_id']} of {row['session_id']} is still {row['state']}")
    return found
