"""I3: each object has a row, each row an object, nothing ended keeps files, and usage is exact."""

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
    for row in facts.rows("attachment_tenants"):
        tenant = row["tenant_id"]
        blobs = [blob for blob in facts.rows("blobs") if blob["tenant_id"] == tenant]
        uploads = [upload for upload in facts.rows("uploads") if upload["tenant_id"] == tenant]
        used = (
            sum(blob["size_bytes"] for blob in blobs if blob["state"] == "STORED"),
            sum(upload["size_bytes"] for upload in uploads if upload["state"] != "COMPLETE"),
        )
        if used != (row["stored_bytes"], row["uploading_bytes"]):
            found.append(
                f"{tenant} uses {used}, and its row says {row['stored_bytes'], row['uploading_bytes']}"
            )
    live = {
        (row["tenant_id"], row["session_id"]) for row in facts.rows("sessions") if row["state"] == "ACTIVE"
    }
    for row in facts.rows("sets"):
        if row["run_id"]:
            continue  # Published files stay, and those that no call published expire.
        key = (row["tenant_id"], row["session_id"])
        if row["state"] == "STAGED" or (row["state"] == "ATTACHED" and key not in live):
            found.append(f"set {row['set_id']} of {row['session_id']} is still {row['state']}")
    return found
