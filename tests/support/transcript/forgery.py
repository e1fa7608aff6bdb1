"""Changes to a stored transcript that no RPC makes, by an attacker with database access."""

from dataclasses import dataclass
from typing import Any, LiteralString

from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh_core.ids import IdKind, new_id

from tests.support.transcript.chains import chain_hash, micros_of
from tests.support.transcript.fixtures import Session
from tests.support.transcript.tables import Superuser


@dataclass(frozen=True)
class Forger:
    """Writes the rows of one session's transcript."""

    connection: Superuser
    session: Session

    async def execute(self, statement: LiteralString, **parameters: Any) -> list[tuple[Any, ...]]:
        key = {"tenant": self.session.tenant_id, "session": self.session.session_id}
        cursor = await self.connection.execute(statement, {**key, **parameters})
        return await cursor.fetchall() if cursor.description else []

    async def insert(
        self, body: bytes, *, kind: str, role: str = "", claim: pb.WriterClaim | None = None, client: str = ""
    ) -> None:
        """Append an entry that continues the chain correctly, and move the head."""
        ((seq,),) = await self.execute(
            "select seq from transcripts where tenant_id = %(tenant)s and session_id = %(session)s"
        )
        await self.execute(
            """
            insert into entries (
                tenant_id, session_id, seq, entry_id, parent_entry_id, kind, role, token_count, calls,
                answers, is_synthetic, label,
                writer_run_id, writer_epoch, writer_service, writer_client, create_time, chain_hash, body
            ) values (
                %(tenant)s, %(session)s, %(seq)s, %(entry_id)s, '', %(kind)s, %(role)s, 0, '{}', '', false,
                '',
                %(run_id)s, %(epoch)s, '', %(client)s, now(), ''::bytea, %(body)s
            )
            """,
            seq=seq + 1,
            entry_id=new_id(IdKind.ENTRY),
            kind=kind,
            role=role,
            run_id=claim.run_id if claim else "",
            epoch=claim.epoch if claim else 0,
            client=client,
            body=body,
        )
        await self.rechain()

    async def rechain(self) -> None:
        """Recompute all chain hashes and the head, as an attacker who hides a change would."""
        entries = await self.execute(
            "select seq, body, entry_id, parent_entry_id, writer_run_id, writer_epoch, writer_service,"
            " writer_client, create_time from entries"
            " where tenant_id = %(tenant)s and session_id = %(session)s order by seq"
        )
        chain = b""
        for seq, body, entry_id, parent, run_id, epoch, service, client, create_time in entries:
            chain = chain_hash(
                chain,
                body,
                entry_id=entry_id,
                parent=parent,
                run_id=run_id,
                epoch=epoch,
                service=service,
                client=client,
                micros=micros_of(create_time),
            )
            await self.execute(
                """
                update entries set chain_hash = %(chain)s
                where tenant_id = %(tenant)s and session_id = %(session)s and seq = %(seq)s
                """,
                seq=seq,
                chain=chain,
            )
        await self.set_head(entries[-1][0], chain)

    async def set_head(self, seq: int, chain: bytes) -> None:
        await self.execute(
            """
            update transcripts set seq = %(seq)s, chain_hash = %(chain)s
            where tenant_id = %(tenant)s and session_id = %(session)s
            """,
            seq=seq,
            chain=chain,
        )

    async def set_body(self, seq: int, body: bytes) -> None:
        await self.execute(
            """
            update entries set body = %(body)s
            where tenant_id = %(tenant)s and session_id = %(session)s and seq = %(seq)s
            """,
            seq=seq,
            body=body,
        )

    async def delete(self, *seqs: int) -> None:
        await self.execute(
            """
            delete from entries
            where tenant_id = %(tenant)s and session_id = %(session)s and seq = any(%(seqs)s)
            """,
            seqs=list(seqs),
        )
