// A session while it works: new entries, answers as they come, and states. After a lost connection the
// stream goes on with the cursor of the last event. While the page is hidden there is no stream: a
// browser has few connections to one host.
import { hasText, nodesOf } from "./console.js";

const RETRY_MS = 3000;
const FAMILY_MS = 15000;

const list = document.getElementById("entries");
const connection = document.getElementById("connection");
const head = document.getElementById("head");
const family = document.getElementById("family");
const published = document.getElementById("published");
const usage = document.getElementById("usage");

let draft = null;
let newHead = null;
let hasNewFiles = false;
let isReadingFiles = false;
let isUsageOld = false;
let isReadingUsage = false;

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
  draft.append(nodesOf('<div class="entry-head"><span class="who"></span></div>'));
  draft.querySelector(".who").textContent = model || "Answer";
  list.append(draft);
}

const OUTPUTS = {
  text: '<div class="said text" dir="auto"></div>',
  thinking: '<details class="fold" open><summary><span class="kind">thinking</span></summary><div class="said text soft" dir="auto"></div></details>',
  tool_call: '<details class="fold" open><summary><span class="kind">calls</span> <code></code></summary><pre class="said"></pre></details>',
};

/** Return the newest output of the draft, if it is of this kind and the delta continues it; else a new one. */
function outputFor({ kind, call, beginsCall }) {
  const newest = draft.lastElementChild;
  if (newest.dataset.kind === kind && !beginsCall) return newest;
  newest.classList.remove("is-growing");
  draft.append(nodesOf(OUTPUTS[kind]));
  const output = draft.lastElementChild;
  output.dataset.kind = kind;
  output.classList.add("is-growing");
  if (kind === "tool_call") output.querySelector("code").textContent = call;
  return output;
}

function endDraft() {
  draft?.remove();
  draft = null;
}

/** Show the newest head, unless a person is using the one that is there. */
function renewHead() {
  if (newHead === null || head.querySelector("details[open]") || head.contains(document.activeElement)) return;
  head.replaceChildren(nodesOf(newHead));
  newHead = null;
  const isOpen = ["ACTIVE", "PROVISIONING"].includes(head.querySelector("[data-session]").dataset.session);
  document.getElementById("message")?.toggleAttribute("hidden", !isOpen);
}
head.addEventListener("toggle", renewHead, true);
head.addEventListener("focusout", () => setTimeout(renewHead));

/** Show the newest list of published files, unless a person is using the one that is there. */
async function renewPublished() {
  if (!hasNewFiles || isReadingFiles || published.contains(document.activeElement)) return;
  isReadingFiles = true;
  hasNewFiles = false;
  try {
    const response = await fetch(`${location.pathname}?part=published`, { headers: { accept: "text/html-fragment" } });
    if (response.status >= 500) throw new Error(`status ${response.status}`);
    const nodes = nodesOf(await response.text());
    if (published.contains(document.activeElement)) hasNewFiles = true;
    else if (response.ok) published.replaceChildren(nodes);
  } catch { // The console or the mesh is away.
    hasNewFiles = true;
    setTimeout(renewPublished, RETRY_MS);
    return;
  } finally {
    isReadingFiles = false;
  }
  renewPublished(); // More was published in between.
}
published.addEventListener("focusout", () => setTimeout(renewPublished));

/** Return whether a person is using the form of a budget. */
function isUsageUsed() {
  if (usage.contains(document.activeElement) || usage.querySelector("details[open]")) return true;
  return [...usage.querySelectorAll("input")].some((field) => field.value !== field.defaultValue);
}

/** Show what is used of the budgets now, unless a person is using what is there. */
async function renewUsage() {
  if (!isUsageOld || isReadingUsage || isUsageUsed()) return;
  isReadingUsage = true;
  isUsageOld = false;
  try {
    const response = await fetch(`${location.pathname}?part=usage`, { headers: { accept: "text/html-fragment" } });
    if (response.status >= 500) throw new Error(`status ${response.status}`);
    const nodes = nodesOf(await response.text());
    if (isUsageUsed()) isUsageOld = true;
    else if (response.ok) usage.replaceChildren(nodes);
  } catch { // The console or the mesh is away.
    isUsageOld = true;
    setTimeout(renewUsage, RETRY_MS);
    return;
  } finally {
    isReadingUsage = false;
  }
  renewUsage(); // Something happened in between.
}
usage.addEventListener("toggle", renewUsage, true);
usage.addEventListener("focusout", () => setTimeout(renewUsage));

const steps = {
  head({ html, event, published: isPublication }) {
    if (event) {
      const happened = nodesOf(event);
      if (document.getElementById(happened.querySelector("li").id) === null) {
        document.getElementById("events").append(happened);
      }
    }
    newHead = html;
    renewHead();
    hasNewFiles ||= Boolean(isPublication);
    renewPublished();
    isUsageOld = true;
    renewUsage();
  },
  delta({ begins, model, text, ...part }) {
    if (begins || draft === null) beginDraft(model);
    const output = outputFor(part);
    (output.matches(".said") ? output : output.querySelector(".said")).append(text);
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

/** Renew the lanes. Return whether one of them will change. */
async function renewFamily() {
  try {
    const response = await fetch(`${location.pathname}?part=family`, { headers: { accept: "text/html-fragment" } });
    if (response.ok && !family.contains(document.activeElement)) family.replaceChildren(nodesOf(await response.text()));
  } catch {
    return true; // The console is away: the next look may reach it.
  }
  return family.querySelector(".lane.is-live") !== null;
}

function follow(address) {
  let cursor = "";
  let stream = null;
  let isOver = false;

  function open() {
    if (isOver || stream !== null || document.hidden) return;
    const opened = new EventSource(cursor ? `${location.pathname}/live?cursor=${encodeURIComponent(cursor)}` : address);
    stream = opened;
    for (const [name, step] of Object.entries(steps)) {
      opened.addEventListener(name, (event) => {
        if (event.lastEventId) cursor = event.lastEventId;
        stayingAtTheEnd(() => step(event.data ? JSON.parse(event.data) : {}));
      });
    }
    opened.addEventListener("open", () => { connection.textContent = ""; });
    opened.addEventListener("error", () => {
      connection.textContent = "The connection to the mesh was lost. It is being made again.";
      // After an answer that is no stream, a browser does not try again by itself.
      if (opened.readyState === EventSource.CLOSED) {
        stream = null;
        setTimeout(open, RETRY_MS);
      }
    });
    opened.addEventListener("end", () => stop("The session has ended."));
    opened.addEventListener("gone", () => stop("The session was deleted."));
    opened.addEventListener("reload", () => {
      stop("This page is not up to date any more. Reload it to go on.");
      if (!hasText()) location.reload();
    });
  }

  function close() {
    stream?.close();
    stream = null;
  }

  function stop(text) {
    isOver = true;
    close();
    connection.textContent = text;
  }

  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  open();
}

function followFamily() {
  setTimeout(async () => {
    isUsageOld ||= usage.querySelector("[data-budgets]") !== null;
    if (!document.hidden) renewUsage();
    if (document.hidden || (await renewFamily())) followFamily();
  }, FAMILY_MS);
}

if (list.dataset.live) follow(list.dataset.live);
if (list.dataset.live || family.querySelector(".lane.is-live")) followFamily();

// A notice is about what was just done, and not about each later look at the page.
const address = new URL(location.href);
if (address.searchParams.has("done")) {
  address.searchParams.delete("done");
  history.replaceState(null, "", address);
}
