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
const path = list.dataset.path; // The address of the page is another one after a form that was refused.

let draft = null;
let newHead = null;

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

/**
 * A part of the page that is read again after something happened: at once, or when nobody uses it.
 * @returns {() => Promise<void>} to call when the part is out of date.
 */
function keptPart(element, name, isUsed = () => element.contains(document.activeElement)) {
  let isOld = false;
  let isReading = false;

  async function renew() {
    if (!isOld || isReading || isUsed()) return;
    isReading = true;
    isOld = false;
    try {
      const response = await fetch(`${path}?part=${name}`, { headers: { accept: "text/html-fragment" } });
      if (response.status >= 500) throw new Error(`status ${response.status}`);
      const nodes = nodesOf(await response.text());
      if (isUsed()) isOld = true;
      else if (response.ok) element.replaceChildren(nodes);
    } catch { // The console or the mesh is away.
      isOld = true;
      setTimeout(renew, RETRY_MS);
      return;
    } finally {
      isReading = false;
    }
    await renew(); // Something happened in between.
  }

  element.addEventListener("toggle", renew, true);
  element.addEventListener("focusout", () => setTimeout(renew));
  document.addEventListener("visibilitychange", () => { if (!document.hidden) renew(); });
  return async () => {
    isOld = true;
    if (!document.hidden) await renew();
  };
}

/** Return whether a person is using the form of a budget. */
function isUsageUsed() {
  if (usage.contains(document.activeElement) || usage.querySelector("details[open]")) return true;
  return [...usage.querySelectorAll("input")].some((field) => field.value !== field.defaultValue);
}

const renewPublished = keptPart(published, "published");
const renewUsage = keptPart(usage, "usage", isUsageUsed);
const renewFamily = keptPart(family, "family");

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
    if (isPublication) renewPublished();
    renewUsage();
    if (event) renewFamily();
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
    (marked.querySelector(".saw") ?? marked.querySelector(".seq")).before(nodesOf(html));
  },
};

function follow(address) {
  let cursor = "";
  let stream = null;
  let isOver = false;

  function open() {
    if (isOver || stream !== null || document.hidden) return;
    const opened = new EventSource(cursor ? `${path}/live?cursor=${encodeURIComponent(cursor)}` : address);
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

/** Descendants further below, and what they use, have no events on this page. */
function followFamily() {
  setTimeout(async () => {
    if (usage.querySelector("[data-budgets]") !== null) renewUsage();
    await renewFamily();
    if (document.hidden || list.dataset.live || family.querySelector(".lane.is-live")) followFamily();
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
