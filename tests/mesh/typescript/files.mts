// Spawns a session with large files, and downloads them. Prints each step of the uploads as a line of JSON,
// then the receipt and the downloaded files.
import { createHash } from "node:crypto";
import { readFile } from "node:fs/promises";
import { connect } from "@spawnmesh/client";

const { TARGETS, TOKEN, FILE } = process.env as Record<string, string>;
const mesh = connect({ targets: JSON.parse(TARGETS!), token: TOKEN! });
const session = await mesh.spawn("What is in the files?", {
  attachments: [
    { path: FILE!, mimeType: "application/octet-stream" },
    { name: "small.txt", content: "small" },
    { name: "content.bin", content: (await readFile(FILE!)).subarray(0, 3 * 1024 * 1024) },
  ],
  cleanup: "KEEP",
  onProgress: (name, done, size) => console.log(JSON.stringify([name, done, size])),
});
const files = session.view.receipt?.files.map(({ name, sizeBytes, sha256 }) => [name, sizeBytes, sha256]);
const downloaded: unknown[] = [];
for await (const set of mesh.files.sets({ sessionId: session.id })) {
  for (const { name } of set.files) {
    const data = await mesh.files.download(set.setId, name);
    downloaded.push([name, data.length, createHash("sha256").update(data).digest("hex")]);
  }
}
console.log(JSON.stringify({ files, downloaded }));
