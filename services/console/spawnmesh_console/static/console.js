// Keeps relative times true, and lists up to date. The pages can be read without it.

const parser = window.trustedTypes
  ? trustedTypes.createPolicy("spawnmesh", { createHTML: (html) => html })
  : { createHTML: (html) => html };

/** Return the nodes of HTML that the console rendered. Texts in it are escaped there. */
export function nodesOf(html) {
  const template = document.createElement("template");
  template.innerHTML = parser.createHTML(html);
  return template.content;
}

const MINUTE = 60, HOUR = 3600, DAY = 86400;

/** Return the distance to a time, in the words of the server. */
export function age(then, now) {
  const seconds = (now - then) / 1000;
  const far = Math.abs(seconds);
  if (far < 1.5) return "now";
  let words;
  if (far < MINUTE) words = `${Math.round(far)} s`;
  else if (far < HOUR) words = `${Math.floor(far / MINUTE)} min`;
  else if (far < 2 * DAY) words = `${Math.floor(far / HOUR)} h`;
  else words = `${Math.floor(far / DAY)} days`;
  return seconds > 0 ? `${words} ago` : `in ${words}`;
}

function renewTimes(element) {
  const now = Date.now();
  for (const time of element.querySelectorAll("time[datetime]")) {
    const text = age(Date.parse(time.dateTime), now);
    if (time.textContent !== text) time.textContent = text;
  }
}

const REFRESH_MS = 3000;

/** Replace the content of an element by what its address returns, if that is different. */
async function refresh(element) {
  if (document.hidden || !element.dataset.refresh || element.contains(document.activeElement)) return;
  let response;
  try {
    response = await fetch(element.dataset.refresh, { headers: { accept: "text/html-fragment" } });
  } catch {
    return; // The console is away: the next refresh may reach it.
  }
  if (response.status === 401) location.reload();
  if (!response.ok) return;
  const nodes = nodesOf(await response.text());
  const fresh = document.createElement("div");
  fresh.append(nodes);
  renewTimes(fresh);
  if (fresh.innerHTML !== element.innerHTML) element.replaceChildren(...fresh.childNodes);
}

setInterval(() => renewTimes(document), 1000);
for (const element of document.querySelectorAll("[data-refresh]")) {
  setInterval(() => refresh(element), REFRESH_MS);
}

// A menu closes when something else is chosen.
document.addEventListener("click", (event) => {
  for (const menu of document.querySelectorAll("details.person[open]")) {
    if (!menu.contains(event.target)) menu.open = false;
  }
});
