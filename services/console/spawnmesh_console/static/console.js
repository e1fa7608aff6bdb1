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

let aheadMs = null;

/** Return the time of the server: its clock is ahead by what it was when this page began to arrive. */
function serverNow() {
  if (aheadMs === null) {
    const began = performance.timeOrigin + (performance.getEntriesByType("navigation")[0]?.responseStart ?? 0);
    aheadMs = Date.parse(document.documentElement.dataset.now) - began;
  }
  return Date.now() + aheadMs;
}

function renewTimes(element) {
  const now = serverNow();
  for (const time of element.querySelectorAll("time[datetime]")) {
    const text = age(Date.parse(time.dateTime), now);
    if (time.textContent !== text) time.textContent = text;
  }
}

const REFRESH_MS = 3000, PATIENCE_MS = 30000;

let hasEnded = false;

/** Return whether something that a person has typed or chosen would be lost with the page. */
export function hasText() {
  return [...document.querySelectorAll("textarea, input")].some((field) => {
    if (field.type === "hidden") return false;
    if (field.type === "checkbox" || field.type === "radio") return field.checked !== field.defaultChecked;
    if (field.type === "file") return field.files.length > 0;
    return field.tagName === "TEXTAREA" ? field.value.trim() !== "" : field.value !== field.defaultValue;
  });
}

/** Lead to the sign-in. A page with text stays, and says so. */
export function endSignIn() {
  if (hasEnded) return;
  hasEnded = true;
  if (!hasText()) {
    location.reload();
    return;
  }
  const link = document.createElement("a");
  link.href = `/sign-in?next=${encodeURIComponent(location.pathname + location.search)}`;
  link.textContent = "Sign in";
  const line = document.createElement("p");
  line.className = "problem";
  line.setAttribute("role", "alert");
  line.append("Your sign-in has ended. Copy what you have typed before you leave this page. ", link);
  document.getElementById("main").prepend(line);
}

/** Replace the content of an element by what its address returns, if that is different. */
async function refresh(element) {
  const response = await fetch(element.dataset.refresh, {
    headers: { accept: "text/html-fragment" },
    signal: AbortSignal.timeout(PATIENCE_MS),
  });
  if (response.status === 401) endSignIn();
  if (!response.ok) throw new Error(`status ${response.status}`);
  const fresh = document.createElement("div");
  fresh.append(nodesOf(await response.text()));
  renewTimes(fresh);
  if (isUsed(element) || fresh.innerHTML === element.innerHTML) return;
  element.replaceChildren(...fresh.childNodes);
}

/** Return whether a person uses the element, or reads what was unfolded in it. */
function isUsed(element) {
  return element.contains(document.activeElement) || element.querySelector("details[open]") !== null;
}

/** Refresh the element again and again, and say below it when that does not work. */
function keepUpToDate(element) {
  const note = document.createElement("p");
  note.className = "hint";
  note.setAttribute("role", "status");
  note.hidden = true;
  element.after(note);
  const say = (text) => {
    note.hidden = text === "";
    if (note.textContent !== text) note.textContent = text;
  };
  let isRunning = false;
  let renewed = new Date();

  async function step() {
    if (document.hidden || isRunning || hasEnded) return;
    if (!element.dataset.refresh) {
      say("");
    } else if (isUsed(element)) {
      say("Paused while you use it.");
    } else {
      isRunning = true;
      try {
        await refresh(element);
        renewed = new Date();
        say("");
      } catch { // The next refresh may reach the console.
        say(`Not up to date since ${renewed.toLocaleTimeString()}.`);
      } finally {
        isRunning = false;
      }
    }
  }

  setInterval(step, REFRESH_MS);
}

// In a narrow window the names of the pages are wider than it: the current one is in sight.
for (const current of document.querySelectorAll(".top nav [aria-current]")) {
  const pages = current.parentElement;
  const [inner, outer] = [current.getBoundingClientRect(), pages.getBoundingClientRect()];
  pages.scrollLeft += inner.left + inner.width / 2 - outer.left - outer.width / 2;
}

setInterval(() => renewTimes(document), 1000);
for (const element of document.querySelectorAll("[data-refresh]")) keepUpToDate(element);

// A menu closes when something else is chosen.
document.addEventListener("click", (event) => {
  for (const menu of document.querySelectorAll("details.person[open]")) {
    if (!menu.contains(event.target)) menu.open = false;
  }
});
