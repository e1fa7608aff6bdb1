// Keeps the queue up to date without touching a form that is in use, and moves by keys. The page
// works without it.

import { nodesOf } from "./console.js";

const REFRESH_MS = 3000;
const queue = document.getElementById("queue");

function isInUse(item) {
  if (item.contains(document.activeElement)) return true;
  if (item.querySelector("details[open]")) return true;
  return [...item.querySelectorAll("textarea, input[type=radio]")].some((field) =>
    field.type === "radio" ? field.checked !== field.defaultChecked : field.value !== field.defaultValue,
  );
}

/** Say that the item does not wait any more. Its form stays: the mesh says who decided. */
function markGone(item) {
  if (item.querySelector(".gone")) return;
  const note = document.createElement("p");
  note.className = "problem gone";
  note.setAttribute("role", "status");
  note.textContent = "This does not wait any more: it was decided meanwhile, or its run has ended.";
  item.querySelector(".decisions")?.before(note);
}

/** Take over which approvals wait. Items that are there already stay as they are. */
function merge(fresh) {
  const items = new Map([...queue.querySelectorAll("li[data-id]")].map((item) => [item.dataset.id, item]));
  const arrived = new Map([...fresh.querySelectorAll("li[data-id]")].map((item) => [item.dataset.id, item]));
  let isKept = false;
  for (const [id, item] of items) {
    if (arrived.has(id)) isKept = true;
    else if (isInUse(item)) {
      markGone(item);
      isKept = true;
    } else item.remove();
  }
  if (!isKept) {
    queue.replaceChildren(fresh);
    return;
  }
  const list = queue.querySelector("ol.queue");
  for (const [id, item] of arrived) {
    if (!items.has(id)) list.append(item);
  }
}

async function refresh() {
  if (document.hidden) return;
  let response;
  try {
    response = await fetch(queue.dataset.queue);
  } catch {
    return; // The console is away: the next refresh may reach it.
  }
  if (response.status === 401) location.reload();
  if (response.ok) merge(nodesOf(await response.text()));
}

if (queue.dataset.queue) setInterval(refresh, REFRESH_MS);

/** Focus the field or the button of a key, and open what it is folded into. No key decides. */
function go(card, key) {
  const target = card.querySelector(`[data-key="${key}"]`);
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
  const isArrow = event.key.startsWith("Arrow");
  if (isArrow && focused !== current) return; // Elsewhere, arrows scroll.
  const cards = [...queue.querySelectorAll("article.approval")];
  const place = cards.indexOf(current);
  if (event.key === "j" || event.key === "ArrowDown") cards[Math.min(place + 1, cards.length - 1)]?.focus();
  else if (event.key === "k" || event.key === "ArrowUp") cards[Math.max(place - 1, 0)]?.focus();
  else if ("aed".includes(event.key) && cards.length) go(current ?? cards[0], event.key);
  else return;
  event.preventDefault(); // Else the field that has the focus now gets the letter.
});

for (const hint of document.querySelectorAll(".keys")) hint.hidden = false;
