// Compares the pairs of sessions that it is given, and prints what it found of each.
import { connect, NotFound } from "@spawnmesh/client";

const { TARGETS, TOKEN, PAIRS } = process.env as Record<string, string>;
const mesh = connect({ targets: JSON.parse(TARGETS!), token: TOKEN! });
const found: unknown[] = [];
for (const [a, b] of JSON.parse(PAIRS!) as [string, string][]) {
  const diff = await mesh.diff(a, await mesh.session(b), { maxEntries: 3 });
  found.push({
    common: [diff.commonCount, diff.commonMessageCount, diff.commonSeqA, diff.commonSeqB],
    left_out: diff.leftOutCount,
    forked_at: diff.forkedAt ? [diff.forkedAt.sessionId, diff.forkedAt.seq] : null,
    only: [diff.onlyA.map(({ seq }) => seq), diff.onlyB.map(({ seq }) => seq)],
    is_cut: [diff.isCutA, diff.isCutB],
    superseded: [...diff.superseded].sort(),
    answers: [diff.answerA, diff.answerB],
    is_equal: diff.isEqual,
  });
}
const missing = await mesh.diff("ses_01k00000000000000000000000", "ses_01k00000000000000000000000").catch(
  (error: unknown) => error instanceof NotFound,
);
console.log(JSON.stringify({ found, missing }));
mesh.close();
