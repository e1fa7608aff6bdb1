// Keeps the queue up to date, and moves by keys. The page works without it. An approval that is
// shown stays where it is until the page is loaded again: no other one may slide under the pointer.

import { nodesOf } from "./console.js";

const REFRESH_MS = 3000;
const PATIENCE_MS = 20_000;
const MAX_CARDS = 100;
const queue = document.getElementById("queue");
const fresh = document.getElementById("fresh");
const { ids, card } = queue.dataset;
let isRunning = false;
let freshTime = new Date();

class SignedOut extends Error {}

async function answerOf(address) {
  const response = await fetch(address, { signal: AbortSignal.timeout(PATIENCE_MS) });
  if (response.status === 401) throw new SignedOut();
  return response;
}

/** Say that the item does not wait any more, and let nothing of it be sent. */
function markGone(item) {
  const shown = item.querySelector("article.approval");
  if (shown.classList.contains("gone")) return;
  shown.style.minHeight = `${shown.getBoundingClientRect().height}px`; // What is below stays where it is.
  shown.classList.add("gone");
  for (const button of shown.querySelectorAll("button")) button.disabled = true;
  const note = shown.querySelector(".until");
  note.setAttribute("role", "status");
  note.textContent = "Decided meanwhile, or its run has ended";
}

/** Add the item of an approval that is new at the end, if it still waits. */
async function add(id) {
  const response = await answerOf(`/approvals/${encodeURIComponent(id)}?${card}`);
  if (response.status === 204 || response.status === 404) return;
  if (!response.ok) throw new Error(response.statusText);
  const item = nodesOf(await response.text());
  let list = queue.querySelector("ol.queue");
  if (!list) {
    list = document.createElement("ol");
    list.className = "queue";
    queue.querySelector(".empty").replaceWith(list);
  }
  list.append(item);
}

async function takeOver() {
  const response = await answerOf(ids);
  if (!response.ok) throw new Error(response.statusText);
  const waiting = await response.json();
  const items = new Map([...queue.querySelectorAll("li[data-id]")].map((item) => [item.dataset.id, item]));
  for (const [id, item] of items) {
    if (!waiting.ids.includes(id)) markGone(item);
  }
  const arrived = waiting.ids.filter((id) => !items.has(id));
  const place = MAX_CARDS - items.size;
  for (const id of arrived.slice(0, place)) await add(id);
  if (arrived.length > place) return "More wait. Load the page again to see them.";
  const more = document.getElementById("more");
  if (more) more.hidden = waiting.is_all;
  return "";
}

function hasText() {
  return [...queue.querySelectorAll("textarea, input[type=radio]")].some((field) =>
    field.type === "radio" ? field.checked !== field.defaultChecked : field.value !== field.defaultValue,
  );
}

function say(text) {
  if (fresh.textContent !== text) fresh.textContent = text;
}

/** Lead to the sign-in, in another tab if there is text that the person would lose. */
function leadToSignIn() {
  if (!hasText()) {
    location.reload();
    return;
  }
  if (fresh.querySelector("a")) return;
  const link = document.createElement("a");
  link.href = `/sign-in?next=${encodeURIComponent(location.pathname + location.search)}`;
  link.target = "_blank";
  link.rel = "noopener";
  link.textContent = "Sign in again";
  fresh.replaceChildren("Your sign-in has ended. ", link, " in a new tab, and copy your text before you load this page again.");
}

async function refresh() {
  if (document.hidden || isRunning) return;
  isRunning = true;
  try {
    say(await takeOver());
    freshTime = new Date();
  } catch (error) {
    if (error instanceof SignedOut) leadToSignIn();
    else say(`Not up to date since ${freshTime.toLocaleTimeString()}`);
  } finally {
    isRunning = false;
  }
}

if (ids) setInterval(refresh, REFRESH_MS);

const letters = document.getElementById("keys");
const LETTERS_OFF = "approvals-letters-off";

/** Read or change what the browser keeps; null if it keeps nothing. */
function kept(change) {
  try {
    return change(localStorage);
  } catch {
    return null;
  }
}

if (letters) {
  letters.checked = !kept((storage) => storage.getItem(LETTERS_OFF));
  letters.addEventListener("change", () =>
    kept((storage) => (letters.checked ? storage.removeItem(LETTERS_OFF) : storage.setItem(LETTERS_OFF, "1"))),
  );
}

/** Focus the field or the button of a key, and open what it is folded into. No key decides. */
function go(article, key) {
  const target = article.querySelector(`[data-key="${key}"]`);
  if (!target) return;
  const folded = target.closest("details");
  if (folded) folded.open = true;
  target.focus();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  const focused = document.activeElement;
  const current = focused?.closest("article.approval");
  if (event.key === "Escape" && current) {
    current.focus();
    return;
  }
  if (focused?.closest("input, textarea, select")) return;
  if (event.key.length === 1 && !letters?.checked) return;
  const isArrow = event.key.startsWith("Arrow");
  if (isArrow && focused !== current) return; // Elsewhere, arrows scroll.
  const cards = [...queue.querySelectorAll("article.approval")];
  const place = cards.indexOf(current);
  if (event.key === "j" || event.key === "ArrowDown") cards[Math.min(place + 1, cards.length - 1)]?.focus();
  else if (event.key === "k" || event.key === "ArrowUp") cards[Math.max(place - 1, 0)]?.focus();
  else if ("aed".includes(event.key) && cards.length) {
    go(current ?? cards.find((one) => !one.classList.contains("gone")) ?? cards[0], event.key);
  } else return;
  event.preventDefault(); // Else the field that has the focus now gets the letter.
});

for (const hint of document.querySelectorAll(".keys")) hint.hidden = false;
