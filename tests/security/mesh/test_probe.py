from spawnmesh_runtime.caller import CallerKind
from spawnmesh_runtime.methods import policy_of
from tests.security.mesh.conftest import Attacked
from tests.support.security.every_rpc import ask
from tests.support.security.forms import form_of, id_fields, with_id
from tests.support.security.tenants import Filled, settled_rows, stored_rows

async def test_probe(running: Attacked, attacker: Filled, victim: Filled) -> None:
    before = await settled_rows(victim)
    print("IDS", victim.ids)
    out = open("/tmp/attacks_probe.txt", "w")
    last = ("Delete", "Purge", "Kill", "Archive", "Fail", "Finalize", "ReleaseR", "Release", "Close", "Remove", "Discard")
    for one in sorted(running.rpcs, key=lambda o: (o.method.name.startswith(last), o.name)):
        policy = policy_of(one.method)
        callers = [("client", attacker.token(CallerKind.CLIENT), CallerKind.CLIENT in policy.callers), ("run", attacker.token(CallerKind.RUN), CallerKind.RUN in policy.callers)]
        callers += [(s, attacker.token(CallerKind.SERVICE, s), not policy.without_tenant) for s in sorted(policy.services)]
        for label, token, allowed in callers:
            channel = running.channels[one.service]
            if not allowed:
                a = await ask(channel, one.method, token, form_of(one.method, victim.ids).SerializeToString())
                print(one.name, label, "DENIED" if a.code == "PERMISSION_DENIED" else f"!!! {a.code} {a.reason}", file=out)
                continue
            own = form_of(one.method, attacker.ids)
            c = await ask(channel, one.method, token, own.SerializeToString(), seconds=5)
            print(one.name, label, "CONTROL", c.code, c.reason, c.text[:150], file=out)
            for f in id_fields(one.method.input_type):
                v = victim.ids.get(f.kind)
                if v is None: print("   no id of kind", f.kind, f.path, file=out); continue
                a = await ask(channel, one.method, token, with_id(own, f, v, attacker.ids).SerializeToString(), seconds=5)
                flag = "MARKER!!" if victim.marker.encode() in a.seen else ""
                print("   ", ".".join(f.path), a.code, a.reason, flag, a.text[:100], file=out)
            out.flush()
    after = await stored_rows(victim)
    for t in before:
        if before[t] != after[t]: print("CHANGED", t, before[t], after[t], file=out)
