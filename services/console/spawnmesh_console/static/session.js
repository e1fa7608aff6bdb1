// A session while it works: new entries, text as it comes, and states. The browser resumes the
// stream by itself, with the cursor of the last event.
import { nodesOf } from "./console.js";

const list = document.getElementById("entries");
const connection = document.getElementById("connection");

let draft = null;

/** Do a change, and stay at the end of the page if the end was in view. */
function stayingAtTheEnd(change) {
  const page = document.documentElement;
  const wasAtEnd = page.scrollHeight - page.scrollTop - page.clientHeight < 80;
  change();
  if (wasAtEnd) page.scrollTop = page.scrollHeight;
}

function beginDraft(model) {
  endDraft();
  draft = document.createElement("li");
  draft.className = "entry by-model draft";
  draft.append(nodesOf('<div class="entry-head"><span class="who"></span></div><div class="text" dir="auto"></div>'));
  draft.querySelector(".who").textContent = model || "Answer";
  list.append(draft);
}

function endDraft() {
  draft?.remove();
  draft = null;
}

const steps = {
  head({ html, event }) {
    const happened = nodesOf(event);
    if (document.getElementById(happened.querySelector("li").id) === null) {
      document.getElementById("events").append(happened);
    }
    const head = document.getElementById("head");
    // A person who is about to confirm something is not disturbed: the next event shows the state.
    if (head.querySelector("details[open]")) return;
    head.replaceChildren(nodesOf(html));
    const isOpen = ["ACTIVE", "PROVISIONING"].includes(head.querySelector("[data-session]").dataset.session);
    document.getElementById("message")?.toggleAttribute("hidden", !isOpen);
  },
  delta({ begins, model, text }) {
    if (begins || draft === null) beginDraft(model);
    draft.querySelector(".text").append(text);
  },
  retracted: endDraft,
  entry({ completes, html }) {
    if (completes) endDraft();
    if (!html) return;
    document.getElementById("nothing")?.remove();
    const nodes = nodesOf(html);
    if (document.getElementById(nodes.querySelector("li").id) === null) list.insertBefore(nodes, draft);
  },
  mark({ entry, mark, html }) {
    const marked = list.querySelector(`[data-entry="${CSS.escape(entry)}"]`);
    if (marked === null || marked.querySelector(`.mark-${mark}`) !== null) return;
    marked.classList.add(`is-${mark}`);
    marked.querySelector(".seq").before(nodesOf(html));
  },
};

function follow(address) {
  const stream = new EventSource(address);
  for (const [name, step] of Object.entries(steps)) {
    stream.addEventListener(name, (event) => {
      stayingAtTheEnd(() => step(event.data ? JSON.parse(event.data) : {}));
    });
  }
  stream.addEventListener("open", () => { connection.textContent = ""; });
  stream.addEventListener("error", () => {
    connection.textContent = "The connection to the mesh was lost. It is being made again.";
  });
  const stop = (text) => {
    stream.close();
    connection.textContent = text;
    document.getElementById("family").removeAttribute("data-refresh");
  };
  stream.addEventListener("end", () => stop("The session has ended."));
  stream.addEventListener("gone", () => stop("The session was deleted."));
  stream.addEventListener("reload", () => { stream.close(); location.reload(); });
}

if (list.dataset.live) follow(list.dataset.live);
